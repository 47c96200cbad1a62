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

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use berth_api::names;
use berth_core::slice::assigned::LiveClaim;
use berth_core::slice::proof::{Suspicions, Verdict};
use berth_core::slice::{Cut, Holding};
use berth_core::{Moment, Prefix};
use berth_ledger::LedgerError;
use berth_ledger::kube::slicepools::{SlicePools, StoredSlicePool};
use k8s_openapi::jiff::Timestamp;

use crate::events::News;
use crate::look::{LookError, Looker};
use crate::metrics::Metrics;
use crate::networks::{Settled, Trouble, Wish, reason, settle};
use crate::plan::{Change, Known, Returns, conditions, list, plan, told};
use crate::seen::View;

/// How long a watch may lag behind a write.
const UNSEEN: Duration = Duration::from_secs(5);

/// What is suspected to be no longer used.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Suspect {
    /// A slice whose node, of that UID, is gone.
    Loss(Prefix, String, String),
    /// What a change to that cut would drop.
    Change(Prefix, u8),
    /// The pool: no definition wants it.
    Deletion,
}

/// What is remembered of a pool between two looks.
#[derive(Debug, Default)]
pub struct Memory {
    /// As it was last read or written; the inner none: it did not exist.
    known: Option<Option<StoredSlicePool>>,
    /// When it was made here, until a watch has shown it.
    made: Option<Moment>,
    suspicions: Suspicions<Suspect>,
    /// Since when slices are known to be recalled.
    recalled: BTreeMap<Prefix, Moment>,
}

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

/// What tending needs.
#[derive(Debug)]
pub struct Tender {
    pub pools: SlicePools,
    pub looker: Looker,
    pub grace: Duration,
    pub metrics: Metrics,
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

impl Memory {
    /// Somebody else has written it: what is known is not what is there.
    fn check(&mut self, view: &View, name: &str, now: Moment) {
        let Some(known) = &self.known else {
            return;
        };
        let head = view.heads.get(name);
        if head.is_some() {
            self.made = None;
        }
        let current = match (known, head) {
            (Some(stored), Some(_)) => stored.is_current(|object| {
                let head = view.heads.get(object)?;
                Some(head.version.clone())
            }),
            // What was made here is known before the watch shows it; else somebody has deleted it.
            (Some(_), None) => self.made.is_some_and(|made| now < made.plus(UNSEEN)),
            (None, Some(_)) => false,
            (None, None) => true,
        };
        if !current {
            self.known = None;
        }
    }

    /// The next look begins with a read.
    pub fn forget(&mut self) {
        self.known = None;
    }

    /// Counts from the first sight of a recall: who made it, and when, is nowhere told.
    fn note_recalled(&mut self, stored: &StoredSlicePool, now: Moment) {
        let table = &stored.pool.table;
        self.recalled.retain(|slice, _| table.is_recalled(*slice));
        for slice in table.recalled() {
            self.recalled.entry(slice).or_insert(now);
        }
    }
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
        let definitions: Vec<String> = settled
            .members
            .iter()
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
        let known = Known {
            name: task.name,
            stored: stored.as_ref(),
            settled,
            change: &change,
            returns: &returns,
            nodes: &task.view.nodes,
            disjoint: apart,
        };
        let draft = plan(&known, &now);
        outcome.troubles = draft.troubles;
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
        memory.note_recalled(&written, task.now);
        memory.known = Some(Some(written));
        Ok(outcome)
    }

    /// Holdings whose nodes are provably gone: recalled, and at the look after that, taken back.
    async fn losses(
        &self,
        task: &Task<'_>,
        stored: &StoredSlicePool,
        networks: &[String],
        definitions: &[String],
        memory: &mut Memory,
        outcome: &mut Outcome,
    ) -> Result<Returns, TendError> {
        let missing: Vec<Holding> = stored
            .pool
            .table
            .holdings()
            .filter(|holding| !task.view.nodes.contains(&holding.node))
            .collect();
        let suspects: BTreeSet<Suspect> =
            missing.iter().map(|holding| loss(task, holding)).collect();
        memory
            .suspicions
            .retain(|known| !matches!(known, Suspect::Loss(..)) || suspects.contains(known));
        let mut due = Vec::new();
        for holding in missing {
            let suspected = memory.suspicions.due(&loss(task, &holding), self.grace);
            match suspected.max(self.settled(memory, holding.slice)) {
                Some(until) if until > task.now => outcome.look_at(until),
                _ => due.push(holding),
            }
        }
        let mut returns = Returns::default();
        if due.is_empty() {
            return Ok(returns);
        }
        let nodes = due.iter().map(|holding| &holding.node).collect();
        let gone = self.looker.gone(nodes).await.map_err(LookError::from)?;
        let used = self.looker.uses(&due, networks, definitions).await?;
        for holding in due {
            let gone = gone.contains(&holding.node) && !used.live.contains_key(&holding.slice);
            let suspect = loss(task, &holding);
            match memory.suspicions.look(suspect, gone, self.grace, task.now) {
                Verdict::Kept => outcome.look_at(task.now.plus(self.pause())),
                Verdict::Suspected { until } => outcome.look_at(until),
                Verdict::Proved if is_recalled(stored, &holding) => returns.reclaimed.push(holding),
                Verdict::Proved => {
                    outcome.look_at(task.now.plus(self.pause()));
                    returns.recalled.push(holding);
                }
            }
        }
        let reclaimed = returns.reclaimed.iter();
        let slices: BTreeSet<Prefix> = reclaimed.map(|holding| holding.slice).collect();
        self.looker.retire(&used.of(&slices)).await?;
        Ok(returns)
    }

    /// Until when a recalled slice is left alone: whoever was about to give from it has heard of it then.
    fn settled(&self, memory: &Memory, slice: Prefix) -> Option<Moment> {
        let since = memory.recalled.get(&slice)?;
        Some(since.plus(self.pause()))
    }

    /// Whether the pool may be cut as its definitions want it now.
    async fn change(
        &self,
        task: &Task<'_>,
        stored: &StoredSlicePool,
        (cut, networks, definitions): (Cut, &[String], &[String]),
        memory: &mut Memory,
        returns: &mut Returns,
        outcome: &mut Outcome,
    ) -> Result<Change, TendError> {
        let table = &stored.pool.table;
        let suspect = Suspect::Change(cut.range(), cut.size());
        memory
            .suspicions
            .retain(|known| !matches!(known, Suspect::Change(..)) || *known == suspect);
        let recut = table.recut(cut);
        if table.cut() == cut || recut.dropped.is_empty() {
            memory.suspicions.forget(&suspect);
            return Ok(Change::Free);
        }
        if let Some(until) = memory.suspicions.due(&suspect, self.grace)
            && until > task.now
        {
            outcome.look_at(until);
            return Ok(Change::Pending);
        }
        let used = self
            .looker
            .uses(&recut.dropped, networks, definitions)
            .await?;
        let stranded: Vec<(Holding, LiveClaim)> = recut
            .stranded(&used.live)
            .map(|(holding, claim)| (holding.clone(), claim.clone()))
            .collect();
        let unused = stranded.is_empty();
        match memory
            .suspicions
            .look(suspect, unused, self.grace, task.now)
        {
            Verdict::Kept => {
                outcome.look_at(task.now.plus(self.pause()));
                Ok(Change::Refused(stranded))
            }
            Verdict::Suspected { until } => {
                outcome.look_at(until);
                Ok(Change::Pending)
            }
            Verdict::Proved => {
                if let Some(until) = self.unsettled(task, stored, &recut.dropped, memory) {
                    outcome.look_at(until);
                    returns.recalled.extend(recut.dropped);
                    return Ok(Change::Pending);
                }
                let slices = recut.dropped.iter().map(|holding| holding.slice).collect();
                self.looker.retire(&used.of(&slices)).await?;
                tracing::info!(
                    pool = task.name, from = %table.cut().range(), to = %cut.range(), size = cut.size(), "cut anew"
                );
                Ok(Change::Free)
            }
        }
    }

    /// When to look at slices that are to go: as long as one of them is not recalled, or not for long enough.
    fn unsettled(
        &self,
        task: &Task<'_>,
        stored: &StoredSlicePool,
        going: &[Holding],
        memory: &Memory,
    ) -> Option<Moment> {
        let pause = task.now.plus(self.pause());
        let settled = going.iter().map(|holding| {
            let known = is_recalled(stored, holding);
            let settled = self.settled(memory, holding.slice);
            settled.filter(|_| known).unwrap_or(pause)
        });
        settled.max().filter(|until| *until > task.now)
    }

    /// No definition wants the pool any more.
    async fn end(
        &self,
        task: &Task<'_>,
        stored: Option<StoredSlicePool>,
        memory: &mut Memory,
    ) -> Result<Outcome, TendError> {
        let mut outcome = Outcome::default();
        let Some(stored) = stored else {
            outcome.forgotten = true;
            return Ok(outcome);
        };
        if let Some(until) = memory.suspicions.due(&Suspect::Deletion, self.grace)
            && until > task.now
        {
            outcome.look_at(until);
            memory.known = Some(Some(stored));
            return Ok(outcome);
        }
        let range = stored.pool.table.cut().range();
        let networks = names::slice_networks(task.name, range);
        let definitions: Vec<String> = stored
            .pool
            .marks
            .networks
            .iter()
            .filter_map(|key| Some(key.split_once('/')?.1.to_owned()))
            .collect();
        let holdings: Vec<Holding> = stored.pool.table.holdings().collect();
        let looked = self.looker.last_uses(&holdings, &networks, &definitions);
        let used = looked.await?;
        let unused = used.live.is_empty() && stored.strays.is_empty();
        memory.note_recalled(&stored, task.now);
        match memory
            .suspicions
            .look(Suspect::Deletion, unused, self.grace, task.now)
        {
            Verdict::Proved => {
                if let Some(until) = self.unsettled(task, &stored, &holdings, memory) {
                    outcome.look_at(until);
                    let mut pool = stored.pool.clone();
                    for holding in &holdings {
                        let _ = pool.table.recall(holding.slice, &holding.node);
                    }
                    let written = self.pools.write(task.name, Some(&stored), &pool).await?;
                    memory.note_recalled(&written, task.now);
                    memory.known = Some(Some(written));
                    return Ok(outcome);
                }
                self.looker.retire(&used.pools).await?;
                self.pools.remove(&stored).await?;
                tracing::info!(pool = task.name, "deleted: no definition wants it any more");
                outcome.forgotten = true;
                return Ok(outcome);
            }
            Verdict::Suspected { until } => outcome.look_at(until),
            Verdict::Kept => outcome.look_at(task.now.plus(self.pause())),
        }
        let written = self.tell_of_refusal(task, stored, &used.live).await?;
        memory.known = Some(Some(written));
        Ok(outcome)
    }

    /// The definitions are gone, so the pool itself has to say why it stays.
    async fn tell_of_refusal(
        &self,
        task: &Task<'_>,
        stored: StoredSlicePool,
        live: &BTreeMap<Prefix, Vec<LiveClaim>>,
    ) -> Result<StoredSlicePool, TendError> {
        let holdings = stored.pool.table.holdings();
        let in_use: Vec<String> = holdings
            .flat_map(|holding| {
                let claims = live.get(&holding.slice).cloned().unwrap_or_default();
                claims
                    .into_iter()
                    .map(move |claim| told(&(holding.clone(), claim)))
            })
            .collect();
        let troubles: Vec<Trouble> = (!in_use.is_empty())
            .then(|| Trouble {
                definition: String::new(),
                reason: reason::DELETION_REFUSED,
                message: format!(
                    "NodeSlicePool {}: no definition wants it any more; it stays while addresses of it are in use: {}",
                    task.name,
                    list(&in_use)
                ),
            })
            .into_iter()
            .collect();
        let mut pool = stored.pool.clone();
        for slice in stored.pool.table.recalled() {
            pool.table.keep(slice);
        }
        let now = Timestamp::now().to_string();
        let before = &stored.pool.marks.conditions;
        pool.marks.conditions = conditions(&troubles, &stored.strays, before, &now);
        pool.marks.disjoint = false;
        pool.marks.managed |= !stored.owners.is_empty();
        if pool == stored.pool && stored.owners.is_empty() {
            return Ok(stored);
        }
        for trouble in &troubles {
            tracing::warn!(pool = task.name, "{}", trouble.message);
        }
        Ok(self.pools.write(task.name, Some(&stored), &pool).await?)
    }

    /// Between looks at something that is not gone as it seemed.
    pub fn pause(&self) -> Duration {
        (self.grace / 2).clamp(Duration::from_millis(200), Duration::from_secs(10))
    }
}

fn loss(task: &Task<'_>, holding: &Holding) -> Suspect {
    let uid = task.view.gone_uid(&holding.node);
    Suspect::Loss(holding.slice, holding.node.to_string(), uid)
}

fn is_recalled(stored: &StoredSlicePool, holding: &Holding) -> bool {
    stored.pool.table.is_recalled(holding.slice)
}

impl Outcome {
    fn look_at(&mut self, moment: Moment) {
        self.again = Some(self.again.map_or(moment, |known| known.min(moment)));
    }
}
