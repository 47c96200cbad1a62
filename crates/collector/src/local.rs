//! This node's own entries against the pods that still run here, whenever those change.
//!
//! Costs nothing while all is well: the entries come from a file of this node, the pods from a watch. Only what is suspected
//! and old enough is read from the API server. What the node did not note (written by another program, or without
//! an agent) is left to the sweep.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use berth_ledger::LedgerError;
use tokio::time::{Instant, sleep, sleep_until};

use super::clock::Clock;
use super::executor::{Executor, Outcome};
use super::liveness::{Verdict, verdict};
use super::observed::{Held, Observed, Owners, PodRef};
use super::plan::{Step, plan};
use super::pod_watch::PodWatch;
use super::policy::{Policy, StepOf};
use super::suspicions::{GracePeriods, Round, Suspicions};

/// Pods are deleted in groups: changes within this time are handled together.
const GATHER: Duration = Duration::from_millis(200);

/// What a node notes of its own entries.
#[async_trait]
pub trait LocalEntries: fmt::Debug + Send + Sync {
    /// The entries, with what the node knows about their sandboxes.
    async fn entries(&self) -> Result<Vec<Held>, LedgerError>;

    /// The entry was collected: its note can go.
    async fn forget(&self, held: &Held);
}

#[derive(Debug)]
pub(crate) struct Local<P: Policy> {
    pub entries: Arc<dyn LocalEntries>,
    pub policy: Arc<P>,
    pub pods: Arc<PodWatch>,
    pub executor: Arc<Executor<P>>,
    pub grace: GracePeriods,
    /// How often the entries are read without a change, in case one was missed.
    pub interval: Duration,
    pub node: String,
    pub clock: Clock,
}

impl<P: Policy> Local<P> {
    /// Collects whenever a pod may be gone, forever.
    pub async fn run(self) {
        let mut suspicions = Suspicions::default();
        loop {
            let due = match self.collect(&mut suspicions).await {
                Ok(due) => due,
                Err(error) => {
                    tracing::warn!(%error, "the node's journal can't be read; addresses of its pods are not collected");
                    None
                }
            };
            let idle = Instant::now() + self.interval;
            tokio::select! {
                () = self.pods.changed.notified() => sleep(GATHER).await,
                () = sleep_until(due.map_or(idle, |due| due.min(idle))) => {}
            }
        }
    }

    /// One read; returns when the next is due.
    async fn collect(&self, suspicions: &mut Suspicions) -> Result<Option<Instant>, LedgerError> {
        let held = self.entries.entries().await?;
        let names = held
            .iter()
            .filter_map(|held| self.policy.owner(&held.record));
        let names: BTreeSet<PodRef> = names.collect();
        let Some(pods) = self.pods.states(names.iter()) else {
            return Ok(None);
        };
        let observed = Observed {
            held,
            owners: Owners {
                pods,
                here: self.node.clone(),
                ..Owners::default()
            },
            ..Observed::default()
        };
        let now = self.clock.now();
        let judge = |held: &Held, owners: &Owners| self.policy.judge(held, owners);
        let mut round = Round::new(suspicions, self.grace, now);
        let free = plan(&observed, judge, &mut round).into_iter();
        let step = |(place, reason): (usize, _)| Step::Free {
            ends: self.policy.ends(&observed.held[place]),
            held: observed.held[place].clone(),
            reason,
        };
        let steps = free.map(step).collect();
        let (after, next) = round.done();
        *suspicions = after;
        self.execute(steps).await;
        // No event shows that a sandbox is gone.
        let unreleased = |held: &Held| {
            let judged = judge(held, &observed.owners);
            verdict(held, judged, &observed) == Verdict::Unreleased
        };
        let again = observed.held.iter().any(unreleased);
        let again = again.then(|| now.plus(self.grace.pod));
        let due = next.into_iter().chain(again).min();
        Ok(due.map(|due| self.clock.instant(due)))
    }

    async fn execute(&self, steps: Vec<StepOf<P>>) {
        if steps.is_empty() {
            return;
        }
        let policies = match self.policy.pool_policies().await {
            Ok(policies) => policies,
            Err(error) => {
                tracing::debug!(%error, "nothing is collected before the networks can be read");
                return;
            }
        };
        for (step, outcome) in self.executor.execute(steps, &policies).await {
            if let Step::Free { held, .. } = step
                && matches!(outcome, Outcome::Done | Outcome::Superseded)
            {
                self.entries.forget(&held).await;
            }
        }
    }
}
