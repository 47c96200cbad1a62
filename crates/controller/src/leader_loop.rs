//! The leader's loop: on a change, or when something is due, it reads all networks and reconciles their pools.
//!
//! Changes that arrive together are written together: after the first one the loop waits a moment for others. Every
//! pass plans all pools from scratch, so a lost event does no harm.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use berth_collector::observed::NodeState;
use berth_core::Moment;
use berth_core::slice::NodeName;
use berth_ledger::LedgerError;
use futures::{FutureExt, StreamExt};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::disjoint::Disjointness;
use crate::events::Recorder;
use crate::faults;
use crate::lost_nodes::LostClaims;
use crate::networks::{Defined, Problem, SliceRequest, SliceRequests, reason};
use crate::networks_configmap::NetworksConfigMap;
use crate::reconcile::{Memory, Outcome, ReconcileError, Reconciler, Task};
use crate::usage::UsageError;
use crate::watch_cache::{View, WatchCache};

/// Pools reconciled at a time: each costs the API server a fraction of a second of work.
const AT_ONCE: usize = 4;

/// After a pool that another controller wrote, or with a busy API server.
const SOON: Duration = Duration::from_millis(250);
/// After a failure that will not end by itself.
const LATER: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(crate) struct LeaderLoop {
    pub seen: Arc<WatchCache>,
    pub reconciler: Reconciler,
    pub recorder: Recorder,
    pub networks: NetworksConfigMap,
    /// How long to wait for further changes before a write.
    pub gather: Duration,
    /// How often everything is read again.
    pub resync: Duration,
    pub unseen_is_apart: bool,
    pub memories: BTreeMap<String, Memory>,
    pub claims: LostClaims,
    /// Whether pools of returned slices are due to be deleted.
    pub sweep: bool,
    pub started: Instant,
}

impl LeaderLoop {
    /// One term, until it is cancelled.
    pub async fn lead(&mut self, term: &CancellationToken) {
        // What an earlier term remembered may be outdated; what it suspected proves nothing.
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
            // A pass is dropped when leadership ends: whatever it was about to write is conditional.
            again = tokio::select! {
                () = term.cancelled() => return,
                again = self.pass() => again,
            };
        }
    }

    fn now(&self) -> Moment {
        Moment(0).plus(self.started.elapsed())
    }

    /// Reconciles everything; returns when the next pass is due.
    async fn pass(&mut self) -> Option<Instant> {
        let view = self.seen.view()?;
        self.reconciler.metrics.passes.inc();
        let mut problems: BTreeSet<Problem> = BTreeSet::new();
        // What the administrator does not allow is ignored: no agent serves it.
        let policy = &view.policy;
        let refused: BTreeSet<&str> = view
            .definitions
            .iter()
            .filter_map(|defined| {
                let refusal = faults::refusal(policy, defined)?;
                problems.insert(refusal);
                Some(defined.key.as_str())
            })
            .collect();
        let all = || view.definitions.iter().map(AsRef::as_ref);
        let definitions =
            || all().filter(|defined: &&Defined| !refused.contains(defined.key.as_str()));
        let slice_requests = SliceRequests::of(definitions());
        let apart = Disjointness::of(definitions(), self.unseen_is_apart);
        problems.extend(slice_requests.problems.iter().cloned());
        problems.extend(all().flat_map(faults::problems));
        problems.extend(faults::overlaps(definitions()));
        let names = self.names(&view, &slice_requests);
        self.reconciler.metrics.nodes.set(view.nodes.len() as i64);
        self.reconciler.metrics.pools.set(names.len() as i64);
        let now = self.now();
        let none: &[SliceRequest] = &[];
        let mut tasks = Vec::new();
        for name in &names {
            let task = Task {
                name,
                slice_requests: slice_requests.by_pool.get(name).map_or(none, Vec::as_slice),
                view: &view,
                apart: &apart,
                now,
            };
            let memory = self.memories.remove(name).unwrap_or_default();
            tasks.push(one(&self.reconciler, task, memory).boxed());
        }
        let tended: Vec<_> = futures::stream::iter(tasks)
            .buffer_unordered(AT_ONCE)
            .collect()
            .await;
        let mut again: Option<Duration> = None;
        let mut recheck_in = |pause: Duration| {
            again = Some(again.map_or(pause, |known| known.min(pause)));
        };
        let started = self.now();
        let mut news = Vec::new();
        for (task, memory, outcome) in tended {
            let Outcome {
                problems: found,
                news: happened,
                again,
                forgotten,
            } = match outcome {
                Ok(outcome) => outcome,
                Err(error) => {
                    let (pause, found) = failed(&task, &error);
                    recheck_in(pause.max(error.retry_after().unwrap_or_default()));
                    Outcome {
                        problems: found,
                        ..Outcome::default()
                    }
                }
            };
            problems.extend(found);
            news.extend(happened);
            if let Some(moment) = again {
                recheck_in(Duration::from_millis(
                    moment.0.saturating_sub(started.0) + 1,
                ));
            }
            if !forgotten {
                self.memories.insert(task.name.to_owned(), memory);
            }
        }
        match self.claims.reconcile(&self.reconciler, &view, now).await {
            Ok(Some(moment)) => {
                recheck_in(Duration::from_millis(
                    moment.0.saturating_sub(started.0) + 1,
                ));
            }
            Ok(None) => {}
            Err(error) => {
                tracing::warn!(%error, "can't check claimed slices of lost nodes; retrying");
                recheck_in(LATER.max(error.retry_after().unwrap_or_default()));
            }
        }
        let sweep = std::mem::take(&mut self.sweep);
        if sweep {
            match self
                .reconciler
                .usage_reader
                .ledger
                .delete_given_back()
                .await
            {
                Ok(0) => {}
                Ok(pools) => tracing::info!(pools, "deleted empty pools of returned slices"),
                Err(error) => {
                    tracing::warn!(%error, "empty pools of slices are removed at the next pass")
                }
            }
        }
        if sweep && let Err(error) = self.end_calls(&view).await {
            tracing::warn!(%error, "notifications to deleted nodes are removed at the next pass");
        }
        if let Err(error) = self.networks.publish(&apart.elastic).await {
            tracing::warn!(%error, "can't write the ConfigMap of networks; retrying");
            recheck_in(SOON.max(error.retry_after().unwrap_or_default()));
        }
        self.reconciler.metrics.problems.set(problems.len() as i64);
        let uids: BTreeMap<&str, &str> = all()
            .map(|defined| (defined.key.as_str(), defined.uid.as_str()))
            .collect();
        news.append(&mut self.claims.news);
        self.recorder.report(&news, &uids).await;
        self.recorder.report_problems(problems, &uids).await;
        again.map(|pause| Instant::now() + pause)
    }

    /// Deletes the notifications of nodes that are gone: by the watch, and by a quorum read of each.
    async fn end_calls(&self, view: &View) -> Result<(), ReconcileError> {
        let usage_reader = &self.reconciler.usage_reader;
        let called = usage_reader.ledger.called_nodes().await?;
        let missing =
            |node: &&NodeName| !view.nodes.contains(*node) && !view.out_of_service.contains(*node);
        for node in called.iter().filter(missing) {
            let state = usage_reader.reader.node(node.as_str()).await;
            if state.map_err(UsageError::from)? == NodeState::Absent {
                usage_reader.ledger.end_calls(node).await?;
                tracing::info!(%node, "the SliceCall of a node that is gone is deleted");
            }
        }
        Ok(())
    }

    /// Pools that definitions want, and those that a controller created and no definition wants any more.
    fn names(&self, view: &View, slice_requests: &SliceRequests) -> BTreeSet<String> {
        let mut names: BTreeSet<String> = slice_requests.by_pool.keys().cloned().collect();
        for head in view.heads.values() {
            if head.made && head.page_of.is_none() && !may_be_wanted(view, head) {
                names.insert(head.name.clone());
            }
        }
        names
    }
}

async fn one<'a>(
    reconciler: &Reconciler,
    task: Task<'a>,
    mut memory: Memory,
) -> (Task<'a>, Memory, Result<Outcome, ReconcileError>) {
    let outcome = reconciler.reconcile(&task, &mut memory).await;
    (task, memory, outcome)
}

/// Whether one of its definitions exists and can't be read: a typing error must not delete the pool.
fn may_be_wanted(view: &View, head: &berth_whereabouts::slicepools::Head) -> bool {
    view.definitions.iter().any(|defined| {
        let its = head.networks.contains(&defined.key) || head.owners.contains(&defined.uid);
        let read = &defined.definition;
        let broken = read.networks.iter().any(|network| network.network.is_err());
        its && (read.unknown.is_some() || broken)
    })
}

/// When to retry, and what to report.
fn failed(task: &Task<'_>, error: &ReconcileError) -> (Duration, Vec<Problem>) {
    let kind = match error {
        ReconcileError::Ledger(error)
        | ReconcileError::Usage(crate::usage::UsageError::Ledger(error)) => Some(error),
        ReconcileError::Usage(_) => None,
    };
    let problem = |reason: &'static str| {
        let slice_requests = task.slice_requests.iter();
        slice_requests
            .map(|slice_request| Problem {
                definition: slice_request.definition.clone(),
                reason,
                message: format!("NodeSlicePool {}: {error}", task.name),
            })
            .collect()
    };
    match kind {
        Some(LedgerError::Conflict { .. } | LedgerError::Uncertain { .. }) => {
            tracing::debug!(pool = task.name, %error, "another process wrote it; planning again");
            (jittered(SOON), Vec::new())
        }
        Some(LedgerError::Unreadable { .. }) => (LATER, problem(reason::UNREADABLE)),
        Some(LedgerError::Full { .. } | LedgerError::Rejected { .. }) => {
            (LATER, problem(reason::NOT_WRITTEN))
        }
        _ => {
            tracing::warn!(pool = task.name, %error, "the pool can't be reconciled; retrying");
            (jittered(SOON * 4), Vec::new())
        }
    }
}

fn jittered(pause: Duration) -> Duration {
    use rand::RngExt;
    pause.mul_f64(rand::rng().random_range(0.5..1.0))
}
