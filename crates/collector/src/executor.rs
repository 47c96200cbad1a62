//! Carries steps out: one more quorum read, then the release, through desks and ledger.
//!
//! ```text
//!   Free:    read the owner (quorum) -> still gone? -> release, naming the holder -> what ends with it
//!   Repair:  the front's own ([`Repair`])
//! ```
//! The entry is released first: the release shows whether the judged holder is still the holder. A crash before the rest has
//! ended leaves something that the next sweep finds.
//!
//! Continues past every failure: the failure of one pool does not keep the addresses of another.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use berth_core::plan::Selector;
use berth_core::{Answer, Release, Request};
use berth_desk::{DeskError, DeskMetrics, DeskSettings, Desks};
use berth_ledger::{LedgerError, SharedLedger};
use futures::StreamExt;

use super::liveness::{Verdict, may_run};
use super::metrics::CollectorMetrics;
use super::observed::{Held, NodeState, Owners, PodRef, PodState, Sandbox};
use super::plan::Step;
use super::policy::{Policy, Released, Repair, StepOf};
use super::quorum_reader::{QuorumReader, ReadError};

/// Steps under way together: enough to fill a desk's commit, too few to load an API server.
const AT_ONCE: usize = 16;

/// Between the tries of a step that fails.
const PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(5)];

/// The longest pause that the API server's Retry-After makes of one of these.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// The prefix of the admission policies that limit agents; the API server names the one that denies a write.
const AGENT_POLICIES: &str = "berth-agents-";

/// What became of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Done,
    /// The last read found the owner alive, or could not tell.
    Spared,
    /// Another holder has the address by now, or it is free.
    Superseded,
    /// To be tried again, and not before the time that the API server asks its clients to wait.
    Failed {
        retry_after: Option<Duration>,
    },
}

impl Outcome {
    fn retry_after(self) -> Option<Duration> {
        match self {
            Outcome::Failed { retry_after } => retry_after,
            _ => None,
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum StepError {
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Desk(#[from] DeskError),
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// What must end before the address is free did not.
    #[error("{0}")]
    Front(String),
}

impl StepError {
    fn retry_after(&self) -> Option<Duration> {
        match self {
            StepError::Read(error) => error.retry_after,
            StepError::Desk(error) => error.ledger().and_then(asked_pause),
            StepError::Ledger(error) => asked_pause(error),
            StepError::Front(_) => None,
        }
    }

    /// Whether the entry belongs to another node and this account may not free it: the controller does
    /// (docs/security.md).
    fn is_denied_to_agents(&self) -> bool {
        let error = match self {
            StepError::Desk(error) => error.ledger(),
            StepError::Ledger(error) => Some(error),
            StepError::Read(_) | StepError::Front(_) => None,
        };
        let Some(LedgerError::Rejected { rejection, .. }) = error else {
            return false;
        };
        rejection.to_string().contains(AGENT_POLICIES)
    }
}

/// Carries out the steps of one collector.
pub struct Executor<P: Policy> {
    policy: Arc<P>,
    reader: QuorumReader,
    ledger: SharedLedger,
    /// Desks of the collector's own: it keeps no copies of pools that this node does not use.
    desks: Desks,
    metrics: CollectorMetrics,
    /// The node that this is.
    node: String,
}

impl<P: Policy> fmt::Debug for Executor<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Executor")
            .field("policy", &self.policy)
            .field("node", &self.node)
            .finish_non_exhaustive()
    }
}

/// An owner that was read once more.
#[derive(Debug)]
pub struct LastRead {
    pub verdict: Verdict,
    /// The pod's UID, where a note or the pod itself has it.
    pub pod_uid: Option<String>,
}

impl<P: Policy> Executor<P> {
    /// A desk is closed when its pool had no release for `idle`.
    pub(crate) fn new(
        policy: Arc<P>,
        reader: QuorumReader,
        ledger: SharedLedger,
        metrics: CollectorMetrics,
        node: String,
        idle: Duration,
    ) -> Executor<P> {
        let desks = Desks::new(
            SharedLedger::clone(&ledger),
            DeskSettings::default(),
            DeskMetrics::default(),
        );
        Executor {
            policy,
            reader,
            ledger,
            desks: desks.with_idle(idle),
            metrics,
            node,
        }
    }

    pub fn ledger(&self) -> &SharedLedger {
        &self.ledger
    }

    pub fn policy(&self) -> &P {
        &self.policy
    }

    /// Carries out all steps, with a few tries; returns what became of each. A release that still fails is reported to the
    /// front, and stays suspected.
    pub(crate) async fn execute(
        &self,
        steps: Vec<StepOf<P>>,
        policies: &P::PoolPolicies,
    ) -> Vec<(StepOf<P>, Outcome)> {
        let mut done = Vec::with_capacity(steps.len());
        let mut left = steps;
        for pause in PAUSES {
            let (failed, settled): (Vec<_>, Vec<_>) = self
                .try_all(left, policies)
                .await
                .into_iter()
                .partition(|(_, outcome)| matches!(outcome, Outcome::Failed { .. }));
            done.extend(settled);
            let asked = failed
                .iter()
                .filter_map(|(_, outcome)| outcome.retry_after());
            let pause = asked.fold(pause, Duration::max).min(LONGEST_PAUSE);
            left = failed.into_iter().map(|(step, _)| step).collect();
            if left.is_empty() {
                return done;
            }
            tokio::time::sleep(pause).await;
        }
        for (step, outcome) in self.try_all(left, policies).await {
            if matches!(outcome, Outcome::Failed { .. })
                && let Step::Free { held, .. } = &step
            {
                self.policy.failed(held).await;
            }
            done.push((step, outcome));
        }
        done
    }

    /// Closes idle desks, forever: each keeps a copy of its pool.
    pub(crate) async fn close_desks(&self, every: Duration) {
        loop {
            tokio::time::sleep(every).await;
            self.close_idle_desks();
        }
    }

    fn close_idle_desks(&self) {
        let open = self.desks.close_idle();
        self.metrics
            .desks
            .set(i64::try_from(open).unwrap_or(i64::MAX));
    }

    async fn try_all(
        &self,
        steps: Vec<StepOf<P>>,
        policies: &P::PoolPolicies,
    ) -> Vec<(StepOf<P>, Outcome)> {
        let tries = steps.into_iter().map(|step| async {
            let outcome = match &step {
                Step::Free { held, ends, .. } => self.free(held, ends, policies).await,
                Step::Repair(repair) => repair.execute(&self.policy, self).await,
            };
            let outcome = outcome.unwrap_or_else(|error| {
                let subject = subject::<P>(&step);
                if error.is_denied_to_agents() {
                    tracing::debug!(subject, %error, "left to the controller");
                    return Outcome::Spared;
                }
                tracing::warn!(subject, %error, "not collected; tried again");
                Outcome::Failed {
                    retry_after: error.retry_after(),
                }
            });
            self.metrics.count(outcome);
            (step, outcome)
        });
        let done = futures::stream::iter(tries).buffered(AT_ONCE).collect();
        let done = done.await;
        self.close_idle_desks();
        done
    }

    async fn free(
        &self,
        held: &Held,
        ends: &P::Ends,
        policies: &P::PoolPolicies,
    ) -> Result<Outcome, StepError> {
        let last = self.read_again(held).await?;
        let Verdict::Gone(reason) = last.verdict else {
            return Ok(Outcome::Spared);
        };
        if reason.is_of_the_object() && self.may_run(held).await? {
            return Ok(Outcome::Spared);
        }
        if self.policy.keeps(policies, held).await? {
            return Ok(Outcome::Spared);
        }
        let cooldown = self.policy.cooldown(policies, held);
        if !self.policy.release(self, held, cooldown).await? {
            return Ok(Outcome::Superseded);
        }
        self.metrics.count_freed(&reason);
        let record = &held.record;
        tracing::info!(
            address = %held.address, pool = %held.pool, owner = %record.owner, handle = %record.handle, %reason,
            "an address was collected"
        );
        let released = Released {
            policies,
            held,
            reason: &reason,
            pod_uid: last.pod_uid.as_deref(),
            ends,
        };
        self.policy.released(self, released).await;
        Ok(Outcome::Done)
    }

    /// Releases the entry in its pool, naming the holder; false if another holder has it by now (I6).
    pub async fn release(&self, held: &Held, cooldown: Duration) -> Result<bool, StepError> {
        let release = Release {
            selector: Selector::Address {
                address: held.address,
                holder: held.record.clone(),
            },
            cooldown,
        };
        let desk = self.desks.of(&held.pool);
        Ok(match desk.submit(Request::Release(release)).await? {
            Answer::Released(freed) => !freed.is_empty(),
            _ => false,
        })
    }

    /// Whether the container may run although its pod object is gone, as its node and its sandbox are now.
    async fn may_run(&self, held: &Held) -> Result<bool, ReadError> {
        let mut now = held.clone();
        if held.note.sandbox != Sandbox::Unknown {
            now.note.sandbox = self.policy.sandbox(&held.record);
        }
        let owners = Owners {
            lost: self.read_lost(held.node()).await?,
            here: self.node.clone(),
            ..Owners::default()
        };
        Ok(may_run(&now, &owners))
    }

    /// Whether another node than this one may run containers, by a quorum read.
    pub async fn is_up(&self, node: Option<&str>) -> Result<bool, ReadError> {
        let owners = Owners {
            lost: self.read_lost(node).await?,
            here: self.node.clone(),
            ..Owners::default()
        };
        Ok(node.is_some_and(|node| owners.is_up(node)))
    }

    /// That node, if it is another one and lost.
    async fn read_lost(&self, node: Option<&str>) -> Result<HashSet<String>, ReadError> {
        let mut lost = HashSet::new();
        if let Some(node) = node.filter(|node| *node != self.node)
            && self.reader.node(node).await?.is_lost()
        {
            lost.insert(node.to_owned());
        }
        Ok(lost)
    }

    /// Reads the owner of an entry once more, with quorum, and judges it.
    pub async fn read_again(&self, held: &Held) -> Result<LastRead, ReadError> {
        let Some(pod) = self.policy.owner(&held.record) else {
            return Ok(LastRead {
                verdict: Verdict::Unjudged,
                pod_uid: None,
            });
        };
        let owners = self.read_pod(&pod).await?;
        let found = owners.pods.get(&pod).and_then(PodState::present);
        let found = found.and_then(|pod| pod.uids.first());
        Ok(LastRead {
            verdict: self.policy.judge(held, &owners),
            pod_uid: held.note.pod_uid.as_ref().or(found).cloned(),
        })
    }

    /// A pod and its node, by quorum reads.
    pub async fn read_pod(&self, pod: &PodRef) -> Result<Owners, ReadError> {
        let state = self.reader.pod(pod).await?;
        let mut nodes = HashMap::new();
        if let Some(node) = state.present().and_then(|pod| pod.node.as_ref()) {
            let exists = self.reader.node(node).await? != NodeState::Absent;
            nodes.insert(node.clone(), exists);
        }
        Ok(Owners {
            pods: HashMap::from([(pod.clone(), state)]),
            nodes,
            here: self.node.clone(),
            ..Owners::default()
        })
    }
}

/// How long the API server asks its clients to wait.
pub(crate) fn asked_pause(error: &LedgerError) -> Option<Duration> {
    match error {
        LedgerError::Unavailable { retry_after, .. } => *retry_after,
        _ => None,
    }
}

fn subject<P: Policy>(step: &StepOf<P>) -> String {
    match step {
        Step::Free { held, .. } => format!("{} of {}", held.address, held.record.owner),
        Step::Repair(repair) => repair.subject(),
    }
}
