//! One NodeSlicePool tended: looked at, planned, written.
//!
//! ```text
//!   load -> settle what the definitions want -> who is gone? -> may the cut change? -> plan -> guarded write
//!                                                (two quorum looks, a grace period between: I4, I8)
//!   proved: recalled, at the next epoch  ->  a pause, one more look  ->  its IPPool goes  ->  free
//! ```
//! A look and a write are two moments: a node that returns between them would give from what the write frees. So nobody
//! gives from a slice that is recalled, and who came back before that is seen by the look after it. The IPPool of a slice
//! goes before the slice is free again: whoever crashes in between leaves a slice that is still its node's, and the next
//! look finds it.

mod end;
mod ended;
mod memory;
mod unused;

use std::time::Duration;

use berth_core::Moment;
use berth_ledger::LedgerError;
use berth_ledger::kube::slicepools::{SlicePools, StoredSlicePool};
use k8s_openapi::jiff::Timestamp;

use crate::events::News;
use crate::look::{LookError, Looker};
use crate::metrics::Metrics;
use crate::networks::{Settled, Trouble, Wish, reason, settle};
use crate::plan::{Change, Known, Returns, plan};
use crate::seen::View;

pub use ended::Ended;
pub use memory::Memory;

use memory::UNSEEN;
use unused::{is_recalled, loss};

/// What a look at a pool led to.
#[derive(Debug, Default)]
pub struct Outcome {
    pub troubles: Vec<Trouble>,
    /// What has happened, for the definitions and nodes that it happened to.
    pub news: Vec<News>,
    /// When to look again, whatever happens.
    pub again: Option<Moment>,
    /// The pool is gone, and so is its memory.
    pub forgotten: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum TendError {
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    #[error(transparent)]
    Look(#[from] LookError),
}

impl TendError {
    /// Whether it may be of what was looked at alone: a server that can't be reached is away for everything.
    pub(crate) fn is_of_one(&self) -> bool {
        match self {
            TendError::Ledger(error) | TendError::Look(LookError::Ledger(error)) => {
                !error.is_passing()
            }
            TendError::Look(LookError::Blind(_)) => false,
        }
    }
}

/// What tending needs.
#[derive(Debug)]
pub struct Tender {
    pub pools: SlicePools,
    pub looker: Looker,
    pub grace: Duration,
    pub metrics: Metrics,
    /// Tables that were just deleted.
    pub ended: Ended,
}

/// One pool, what is wanted of it, and what there is.
#[derive(Debug)]
pub struct Task<'a> {
    pub name: &'a str,
    pub wishes: &'a [Wish],
    pub view: &'a View,
    /// Whether the range, as the network of that name cuts it, is proved to be apart.
    pub apart: &'a crate::disjoint::Apart,
    pub now: Moment,
}

impl Tender {
    pub async fn tend(&self, task: &Task<'_>, memory: &mut Memory) -> Result<Outcome, TendError> {
        memory.check(task.view, task.name, task.now);
        let stored = match memory.known.take() {
            Some(known) => known,
            None => self.pools.load(task.name).await?,
        };
        let current = stored.as_ref().map(|stored| stored.pool.table.cut());
        let outcome = match settle(task.wishes, current) {
            Some(settled) => self.maintain(task, &settled, stored, memory).await,
            None => self.end(task, stored, memory).await,
        };
        if outcome.is_err() {
            memory.known = None;
        }
        let mut outcome = outcome?;
        // Somebody may have deleted it before a watch could show it.
        if let Some(made) = memory.made {
            outcome.look_at(made.plus(UNSEEN));
        }
        Ok(outcome)
    }

    async fn maintain(
        &self,
        task: &Task<'_>,
        settled: &Settled<'_>,
        stored: Option<StoredSlicePool>,
        memory: &mut Memory,
    ) -> Result<Outcome, TendError> {
        let mut outcome = Outcome::default();
        let networks = [settled.network.to_owned()];
        let was = stored.as_ref().map(|stored| stored.pool.table.cut());
        let definitions: Vec<String> = settled
            .sharers(was)
            .filter_map(|wish| Some(wish.definition.split_once('/')?.1.to_owned()))
            .collect();
        let mut returns = Returns::default();
        let mut change = Change::Free;
        if let Some(stored) = &stored {
            memory.note_recalled(stored, task.now);
            returns = self
                .losses(task, stored, &networks, &definitions, memory, &mut outcome)
                .await?;
            let wanted = (settled.cut, &networks[..], &definitions[..]);
            change = self
                .change(task, stored, wanted, memory, &mut returns, &mut outcome)
                .await?;
        }
        let apart = task
            .apart
            .slices(task.name, settled.network, settled.cut.range());
        let now = Timestamp::now().to_string();
        let before = self.ended.recent(task.name, task.now);
        let known = Known {
            name: task.name,
            stored: stored.as_ref(),
            before: before.as_ref(),
            settled,
            change: &change,
            returns: &returns,
            nodes: &task.view.nodes,
            disjoint: apart,
        };
        let draft = plan(&known, &now);
        outcome.troubles = draft.troubles;
        for why in memory.unread.values() {
            let members = settled.members.iter();
            outcome.troubles.extend(members.map(|wish| Trouble {
                definition: wish.definition.clone(),
                reason: reason::UNREADABLE,
                message: format!("NodeSlicePool {}: {why}; its slice stays", task.name),
            }));
        }
        let owned = stored
            .as_ref()
            .is_some_and(|stored| !stored.owners.is_empty());
        let same = stored
            .as_ref()
            .is_some_and(|stored| stored.pool == draft.pool && !owned);
        if same {
            memory.known = Some(stored);
            return Ok(outcome);
        }
        let written = self
            .pools
            .write(task.name, stored.as_ref(), &draft.pool)
            .await;
        self.metrics.wrote(written.is_ok());
        let written = written?;
        for holding in &draft.assigned.fresh {
            tracing::debug!(
                pool = task.name, slice = %holding.slice, node = %holding.node, epoch = holding.epoch.0, "assigned"
            );
        }
        if !draft.assigned.fresh.is_empty() {
            let nodes = draft.assigned.fresh.len();
            tracing::info!(pool = task.name, nodes, "slices were assigned");
            self.metrics.assigned.inc_by(nodes as u64);
        }
        for holding in &returns.recalled {
            if !stored
                .as_ref()
                .is_some_and(|stored| is_recalled(stored, holding))
            {
                tracing::info!(
                    pool = task.name, slice = %holding.slice, node = %holding.node, epoch = holding.epoch.0 + 1,
                    "a slice is recalled: nobody uses it"
                );
            }
        }
        for holding in &returns.reclaimed {
            tracing::info!(
                pool = task.name, slice = %holding.slice, node = %holding.node, epoch = holding.epoch.0,
                "a slice was taken back: its node is gone"
            );
            self.metrics.reclaimed.inc();
            memory.suspicions.forget(&loss(task, holding));
            let members = settled.members.iter().map(|wish| wish.definition.clone());
            outcome.news.push(News::taken_back(
                task.name,
                holding,
                task.view.gone_uid(&holding.node),
                members.collect(),
            ));
        }
        if stored.is_none() {
            memory.made = Some(task.now);
        }
        memory.known = Some(Some(written));
        Ok(outcome)
    }

    /// Between looks at something that is not gone as it seemed.
    pub fn pause(&self) -> Duration {
        (self.grace / 2).clamp(Duration::from_millis(200), Duration::from_secs(10))
    }
}

impl Outcome {
    fn look_at(&mut self, moment: Moment) {
        self.again = Some(self.again.map_or(moment, |known| known.min(moment)));
    }
}
