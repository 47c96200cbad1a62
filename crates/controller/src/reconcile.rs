//! Reconciles one NodeSlicePool: read, plan, write.
//!
//! ```text
//!   load -> settle what the definitions want -> who is gone? -> may the cut change? -> plan -> conditional write
//!                                                (two quorum reads, a grace period apart: I4, I8)
//!   proved: recalled, at the next epoch  ->  a pause, one more read  ->  its IPPool is deleted  ->  free
//! ```
//! A read and a write are two moments: a node that returns between them would allocate from what the write frees. So no
//! node allocates from a recalled slice, and a node that returned before the recall is found by the read after it. The
//! IPPool of a slice is deleted before the slice is free: a crash in between leaves a slice that still belongs to its
//! node, and the next pass finds it.

mod delete;
mod deleted;
mod memory;
mod unused;

use std::time::Duration;

use berth_collector::ReadError;
use berth_core::Moment;
use berth_ledger::LedgerError;
use berth_whereabouts::slicepools::{SlicePools, StoredSlicePool};
use k8s_openapi::jiff::Timestamp;

use crate::events::Notice;
use crate::metrics::Metrics;
use crate::networks::{Problem, Settled, SliceRequest, reason, settle};
use crate::plan::{Change, Known, Returns, plan};
use crate::usage::{UsageError, UsageReader};
use crate::watch_cache::View;

pub use deleted::Ended;
pub use memory::Memory;

use memory::UNSEEN;
use unused::{is_recalled, loss};

/// The result of reconciling a pool.
#[derive(Debug, Default)]
pub struct Outcome {
    pub problems: Vec<Problem>,
    /// What happened, for the definitions and nodes that it concerns.
    pub news: Vec<Notice>,
    /// When to reconcile again at the latest.
    pub again: Option<Moment>,
    /// The pool is gone, and so is its memory.
    pub forgotten: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum ReconcileError {
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    #[error(transparent)]
    Usage(#[from] UsageError),
}

impl ReconcileError {
    /// How long the API server asks its clients to wait.
    pub(crate) fn retry_after(&self) -> Option<Duration> {
        match self {
            ReconcileError::Ledger(LedgerError::Unavailable { retry_after, .. })
            | ReconcileError::Usage(UsageError::Ledger(LedgerError::Unavailable {
                retry_after,
                ..
            }))
            | ReconcileError::Usage(UsageError::ReadError(ReadError { retry_after, .. })) => {
                *retry_after
            }
            _ => None,
        }
    }

    /// Whether it may concern only this object: a server that can't be reached is down for everything.
    pub(crate) fn is_of_one(&self) -> bool {
        match self {
            ReconcileError::Ledger(error) | ReconcileError::Usage(UsageError::Ledger(error)) => {
                !error.is_passing()
            }
            ReconcileError::Usage(UsageError::ReadError(_)) => false,
        }
    }
}

/// The connection and settings of all reconciliations.
#[derive(Debug)]
pub struct Reconciler {
    pub pools: SlicePools,
    pub usage_reader: UsageReader,
    pub grace: Duration,
    pub metrics: Metrics,
    /// Tables that were just deleted.
    pub ended: Ended,
}

/// One pool, what is requested, and what exists.
#[derive(Debug)]
pub struct Task<'a> {
    pub name: &'a str,
    pub slice_requests: &'a [SliceRequest],
    pub view: &'a View,
    /// Whether the range, as the network of that name cuts it, is proved to be disjoint.
    pub apart: &'a crate::disjoint::Disjointness,
    pub now: Moment,
}

impl Reconciler {
    pub async fn reconcile(
        &self,
        task: &Task<'_>,
        memory: &mut Memory,
    ) -> Result<Outcome, ReconcileError> {
        memory.check(task.view, task.name, task.now);
        let stored = match memory.known.take() {
            Some(known) => known,
            None => self.pools.load(task.name).await?,
        };
        let current = stored.as_ref().map(|stored| stored.pool.table.cut());
        let outcome = match settle(task.slice_requests, current) {
            Some(settled) => self.maintain(task, &settled, stored, memory).await,
            None => self.end(task, stored, memory).await,
        };
        if outcome.is_err() {
            memory.known = None;
        }
        let mut outcome = outcome?;
        // It may have been deleted before a watch could show it.
        if let Some(made) = memory.made {
            outcome.recheck_at(made.plus(UNSEEN));
        }
        Ok(outcome)
    }

    async fn maintain(
        &self,
        task: &Task<'_>,
        settled: &Settled<'_>,
        stored: Option<StoredSlicePool>,
        memory: &mut Memory,
    ) -> Result<Outcome, ReconcileError> {
        let mut outcome = Outcome::default();
        let networks = [settled.network.to_owned()];
        let was = stored.as_ref().map(|stored| stored.pool.table.cut());
        let definitions: Vec<String> = settled
            .sharers(was)
            .filter_map(|slice_request| {
                Some(slice_request.definition.split_once('/')?.1.to_owned())
            })
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
        outcome.problems = draft.problems;
        for why in memory.unread.values() {
            let members = settled.members.iter();
            outcome
                .problems
                .extend(members.map(|slice_request| Problem {
                    definition: slice_request.definition.clone(),
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
                    "slice recalled: it is unused"
                );
            }
        }
        for holding in &returns.reclaimed {
            tracing::info!(
                pool = task.name, slice = %holding.slice, node = %holding.node, epoch = holding.epoch.0,
                "slice reclaimed: its node is gone"
            );
            self.metrics.reclaimed.inc();
            memory.suspicions.forget(&loss(task, holding));
            let members = settled
                .members
                .iter()
                .map(|slice_request| slice_request.definition.clone());
            outcome.news.push(Notice::taken_back(
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

    /// The time between reads of something that is not gone after all.
    pub fn pause(&self) -> Duration {
        (self.grace / 2).clamp(Duration::from_millis(200), Duration::from_secs(10))
    }
}

impl Outcome {
    fn recheck_at(&mut self, moment: Moment) {
        self.again = Some(self.again.map_or(moment, |known| known.min(moment)));
    }
}
