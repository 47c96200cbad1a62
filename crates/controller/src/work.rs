//! The leader's loop: something changed, or is due; look at all networks; tend their pools.
//!
//! What changes together is written together: after the first sign of a change the loop waits a moment for
//! the others. Every pass plans all pools anew from what is seen, so nothing is lost when an event is.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use berth_core::Moment;
use berth_core::slice::NodeName;
use berth_ledger::LedgerError;
use berth_pods::garbage::witness::NodeSight;
use futures::{FutureExt, StreamExt};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::disjoint::Apart;
use crate::events::Recorder;
use crate::faults;
use crate::look::LookError;
use crate::lost::LostClaims;
use crate::networks::{Defined, Trouble, Wish, Wishes, reason};
use crate::published::NetworksMap;
use crate::seen::{Seen, View};
use crate::tend::{Memory, Outcome, Task, TendError, Tender};

/// Pools tended at a time: each costs the API server a fraction of a second of work.
const AT_ONCE: usize = 4;

/// After a pool that another controller wrote, or an API server that is busy.
const SOON: Duration = Duration::from_millis(250);
/// After what will not pass by itself.
const LATER: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(crate) struct Work {
    pub seen: Arc<Seen>,
    pub tender: Tender,
    pub recorder: Recorder,
    pub networks: NetworksMap,
    /// How long after a change the others that come with it are waited for.
    pub gather: Duration,
    /// How often everything is read anew.
    pub resync: Duration,
    pub unseen_is_apart: bool,
    pub memories: BTreeMap<String, Memory>,
    pub claims: LostClaims,
    /// Whether pools of slices that were given back are due to be deleted.
    pub sweep: bool,
    pub begun: Instant,
}

impl Work {
    /// One term, until it is cancelled.
    pub async fn lead(&mut self, term: &CancellationToken) {
        // What was known in an earlier term may be anything by now; what was suspected proves nothing.
        self.memories.clear();
        self.claims = LostClaims::default();
        self.networks.forget();
        self.sweep = true;
        let seen = Arc::clone(&self.seen);
        let mut again = Some(Instant::now());
        let mut resync = Instant::now() + self.resync;
        loop {
            let due = again.map_or(resync, |again| again.min(resync));
            tokio::select! {
                () = term.cancelled() => return,
                () = seen.changed.notified() => tokio::time::sleep(self.gather).await,
                () = tokio::time::sleep_until(due) => {}
            }
            if Instant::now() >= resync {
                resync = Instant::now() + self.resync;
                self.memories.values_mut().for_each(Memory::forget);
                self.claims.forget();
                self.networks.forget();
                self.sweep = true;
            }
            // A pass is dropped where it stands when leadership ends: whatever it was about to write is guarded.
            again = tokio::select! {
                () = term.cancelled() => return,
                again = self.pass() => again,
            };
        }
    }

    fn now(&self) -> Moment {
        Moment(0).plus(self.begun.elapsed())
    }

    /// One look at everything; when the next is due.
    async fn pass(&mut self) -> Option<Instant> {
        let view = self.seen.view()?;
        self.tender.metrics.passes.inc();
        let mut troubles: BTreeSet<Trouble> = BTreeSet::new();
        // What the administrator does not allow is as if it were not there: no agent serves it.
        let policy = &view.policy;
        let refused: BTreeSet<&str> = view
            .definitions
            .iter()
            .filter_map(|defined| {
                let refusal = faults::refusal(policy, defined)?;
                troubles.insert(refusal);
                Some(defined.key.as_str())
            })
            .collect();
        let all = || view.definitions.iter().map(AsRef::as_ref);
        let definitions =
            || all().filter(|defined: &&Defined| !refused.contains(defined.key.as_str()));
        let wishes = Wishes::of(definitions());
        let apart = Apart::of(definitions(), self.unseen_is_apart);
        troubles.extend(wishes.troubles.iter().cloned());
        troubles.extend(all().flat_map(faults::troubles));
        troubles.extend(faults::overlaps(definitions()));
        let names = self.names(&view, &wishes);
        self.tender.metrics.nodes.set(view.nodes.len() as i64);
        self.tender.metrics.pools.set(names.len() as i64);
        let now = self.now();
        let none: &[Wish] = &[];
        let mut tasks = Vec::new();
        for name in &names {
            let task = Task {
                name,
                wishes: wishes.by_pool.get(name).map_or(none, Vec::as_slice),
                view: &view,
                apart: &apart,
                now,
            };
            let memory = self.memories.remove(name).unwrap_or_default();
            tasks.push(one(&self.tender, task, memory).boxed());
        }
        let tended: Vec<_> = futures::stream::iter(tasks)
            .buffer_unordered(AT_ONCE)
            .collect()
            .await;
        let mut again: Option<Duration> = None;
        let mut look_in = |pause: Duration| {
            again = Some(again.map_or(pause, |known| known.min(pause)));
        };
        let begun = self.now();
        let mut news = Vec::new();
        for (task, memory, outcome) in tended {
            let Outcome {
                troubles: found,
                news: happened,
                again,
                forgotten,
            } = match outcome {
                Ok(outcome) => outcome,
                Err(error) => {
                    let (pause, found) = failed(&task, &error);
                    look_in(pause);
                    Outcome {
                        troubles: found,
                        ..Outcome::default()
                    }
                }
            };
            troubles.extend(found);
            news.extend(happened);
            if let Some(moment) = again {
                look_in(Duration::from_millis(moment.0.saturating_sub(begun.0) + 1));
            }
            if !forgotten {
                self.memories.insert(task.name.to_owned(), memory);
            }
        }
        match self.claims.tend(&self.tender, &view, now).await {
            Ok(Some(moment)) => {
                look_in(Duration::from_millis(moment.0.saturating_sub(begun.0) + 1));
            }
            Ok(None) => {}
            Err(error) => {
                tracing::warn!(%error, "claimed slices of nodes that are gone can't be looked at; tried again");
                look_in(LATER);
            }
        }
        let sweep = std::mem::take(&mut self.sweep);
        if sweep {
            match self.tender.looker.ledger.delete_given_back().await {
                Ok(0) => {}
                Ok(pools) => tracing::info!(
                    pools,
                    "empty pools of slices that were given back are deleted"
                ),
                Err(error) => {
                    tracing::warn!(%error, "empty pools of slices stay until the next time")
                }
            }
        }
        if sweep && let Err(error) = self.end_calls(&view).await {
            tracing::warn!(%error, "calls to nodes that are gone stay until the next time");
        }
        if let Err(error) = self.networks.tell(&apart.elastic).await {
            tracing::warn!(%error, "what is known of networks was not told; it is tried again");
            look_in(SOON);
        }
        self.tender.metrics.troubles.set(troubles.len() as i64);
        let uids: BTreeMap<&str, &str> = all()
            .map(|defined| (defined.key.as_str(), defined.uid.as_str()))
            .collect();
        news.append(&mut self.claims.news);
        self.recorder.report(&news, &uids).await;
        self.recorder.tell(troubles, &uids).await;
        again.map(|pause| Instant::now() + pause)
    }

    /// Deletes the calls to nodes that are gone: by the watch, and by a quorum read of each.
    async fn end_calls(&self, view: &View) -> Result<(), TendError> {
        let looker = &self.tender.looker;
        let called = looker.ledger.called_nodes().await?;
        let missing =
            |node: &&NodeName| !view.nodes.contains(*node) && !view.out_of_service.contains(*node);
        for node in called.iter().filter(missing) {
            let sight = looker.witness.node_sight(node.as_str()).await;
            if sight.map_err(LookError::from)? == NodeSight::Absent {
                looker.ledger.end_calls(node).await?;
                tracing::info!(%node, "the SliceCall of a node that is gone is deleted");
            }
        }
        Ok(())
    }

    /// Pools that definitions want, and those that a controller made and nothing wants any more.
    fn names(&self, view: &View, wishes: &Wishes) -> BTreeSet<String> {
        let mut names: BTreeSet<String> = wishes.by_pool.keys().cloned().collect();
        for head in view.heads.values() {
            if head.made && head.page_of.is_none() && !may_be_wanted(view, head) {
                names.insert(head.name.clone());
            }
        }
        names
    }
}

async fn one<'a>(
    tender: &Tender,
    task: Task<'a>,
    mut memory: Memory,
) -> (Task<'a>, Memory, Result<Outcome, TendError>) {
    let outcome = tender.tend(&task, &mut memory).await;
    (task, memory, outcome)
}

/// Whether one of its definitions is there and can't be read: a slip of the pen is no farewell.
fn may_be_wanted(view: &View, head: &berth_ledger::kube::slicepools::Head) -> bool {
    view.definitions.iter().any(|defined| {
        let its = head.networks.contains(&defined.key) || head.owners.contains(&defined.uid);
        let read = &defined.definition;
        let broken = read.networks.iter().any(|network| network.network.is_err());
        its && (read.unknown.is_some() || broken)
    })
}

/// When to try again, and what to tell of it.
fn failed(task: &Task<'_>, error: &TendError) -> (Duration, Vec<Trouble>) {
    let kind = match error {
        TendError::Ledger(error) | TendError::Look(crate::look::LookError::Ledger(error)) => {
            Some(error)
        }
        TendError::Look(_) => None,
    };
    let told = |reason: &'static str| {
        let wishes = task.wishes.iter();
        wishes
            .map(|wish| Trouble {
                definition: wish.definition.clone(),
                reason,
                message: format!("NodeSlicePool {}: {error}", task.name),
            })
            .collect()
    };
    match kind {
        Some(LedgerError::Conflict { .. } | LedgerError::Uncertain { .. }) => {
            tracing::debug!(pool = task.name, %error, "somebody else wrote; planned again");
            (jittered(SOON), Vec::new())
        }
        Some(LedgerError::Unreadable { .. }) => (LATER, told(reason::UNREADABLE)),
        Some(LedgerError::Full { .. } | LedgerError::Rejected { .. }) => {
            (LATER, told(reason::NOT_WRITTEN))
        }
        _ => {
            tracing::warn!(pool = task.name, %error, "tried again");
            (jittered(SOON * 4), Vec::new())
        }
    }
}

fn jittered(pause: Duration) -> Duration {
    use rand::RngExt;
    pause.mul_f64(rand::rng().random_range(0.5..1.0))
}
