//! What a front brings to the collector: what an owner is, what proves it gone, what else ends with it.
//!
//! Every method has a default that suits a front whose owners are pods, named `namespace/name`, and which keeps nothing
//! but pools:
//!
//! ```
//! # use berth_collector::{NoRepair, Policy, PoolsOnly};
//! #[derive(Debug)]
//! struct MyPools;
//!
//! impl Policy for MyPools {
//!     type PoolPolicies = ();
//!     type Ends = ();
//!     type Repair = NoRepair;
//!     type Survey = PoolsOnly;
//! }
//! ```

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use berth_core::Record;
use berth_ledger::{PoolKey, Snapshot};
use prometheus_client::registry::Registry;

use super::executor::{Executor, Outcome, StepError};
use super::liveness::{Reason, Verdict, judge_pod};
use super::observed::{Held, Note, Observed, Owners, PodRef, Sandbox};
use super::plan::{Step, plan};
use super::quorum_reader::ReadError;
use super::suspicions::Round;
use super::sweep::SweepError;

/// A front's policy.
#[async_trait]
pub trait Policy: fmt::Debug + Send + Sync + Sized + 'static {
    /// What the front's networks want of their pools; read before anything is released.
    type PoolPolicies: Default + Send + Sync;
    /// What ends with an entry, decided when its release is planned: its reservations.
    type Ends: Default + fmt::Debug + Send + Sync;
    /// What else a sweep puts right.
    type Repair: Repair<Self>;
    /// What the front keeps of one read of all pools.
    type Survey: Survey<Self>;

    /// The pod that holds an entry; none if the owner is no pod: such an entry is never freed.
    fn owner(&self, record: &Record) -> Option<PodRef> {
        PodRef::parse(&record.owner.subject)
    }

    /// What a record says about its owner beyond the name.
    fn note(&self, _record: &Record) -> Note {
        Note::default()
    }

    /// Whether the owner of an entry is gone. May only be more careful than the default: a sweep asks for entries
    /// alone whose pod is not plainly alive. Pure.
    fn judge(&self, held: &Held, owners: &Owners) -> Verdict {
        match self.owner(&held.record) {
            Some(pod) => judge_pod(&pod, &held.note, owners),
            None => Verdict::Unjudged,
        }
    }

    /// What this node knows now about the sandbox of a record that is its own.
    fn sandbox(&self, _record: &Record) -> Sandbox {
        Sandbox::Unknown
    }

    /// Reads what the front needs beside the pools. Called before the pools are read.
    async fn survey(&self) -> Result<Self::Survey, SweepError> {
        Ok(Self::Survey::default())
    }

    /// Reads what the networks want of their pools.
    async fn pool_policies(&self) -> Result<Self::PoolPolicies, ReadError> {
        Ok(Self::PoolPolicies::default())
    }

    /// Whether the address stays allocated although its owner is gone. Decided by quorum reads.
    async fn keeps(&self, _policies: &Self::PoolPolicies, _held: &Held) -> Result<bool, ReadError> {
        Ok(false)
    }

    /// How long the address cools down after its release (I10).
    fn cooldown(&self, _policies: &Self::PoolPolicies, _held: &Held) -> Duration {
        Duration::ZERO
    }

    /// What ends with an entry, where only the entry was read.
    fn ends(&self, _held: &Held) -> Self::Ends {
        Self::Ends::default()
    }

    /// Releases an entry whose owner is gone; false if another holder has the address by now (I6). What must end before
    /// the address is free ends here.
    async fn release(
        &self,
        executor: &Executor<Self>,
        held: &Held,
        cooldown: Duration,
    ) -> Result<bool, StepError> {
        executor.release(held, cooldown).await
    }

    /// The entry is released: what ends with it ends now.
    async fn released(&self, _executor: &Executor<Self>, _released: Released<'_, Self>) {}

    /// An entry could not be released, in several tries. The next sweep tries again.
    async fn failed(&self, _held: &Held) {}

    /// Registers the front's own metrics of its collector.
    fn register(&self, _registry: &mut Registry, _prefix: &str) {}

    /// Another process sweeps: what this one reported is no longer current.
    fn stand_by(&self) {}
}

/// An entry that was released.
#[derive(Debug)]
pub struct Released<'a, P: Policy> {
    pub policies: &'a P::PoolPolicies,
    pub held: &'a Held,
    pub reason: &'a Reason,
    /// The UID of the pod, where a pod or a note has it.
    pub pod_uid: Option<&'a str>,
    pub ends: &'a P::Ends,
}

/// A step of a front with that policy.
pub type StepOf<P> = Step<<P as Policy>::Ends, <P as Policy>::Repair>;

/// What a front keeps of one read of all pools.
#[async_trait]
pub trait Survey<P: Policy>: Default + Send + Sync {
    fn pool_policies(&self) -> &P::PoolPolicies;

    /// Called with every pool that can be read.
    fn add_pool(&mut self, _pool: &ReadPool<'_>) {}

    fn add_unreadable(&mut self, _pool: &PoolKey) {}

    /// All pools were read: adds the owners that are named elsewhere.
    fn add_names(&mut self, _names: &mut Names) {}

    /// Owners were read too. `first` is true for the first read of a sweep.
    async fn check(
        &mut self,
        _policy: &P,
        _owners: &Owners,
        _first: bool,
    ) -> Result<(), SweepError> {
        Ok(())
    }

    /// Whether the entries of a pool have to be planned although all of its owners live.
    fn wants(&self, _pool: &PoolKey) -> bool {
        false
    }

    /// Adds what the front knows about the entries of one pool.
    fn add_notes(&self, _held: &mut [Held]) {}

    /// Plans the entries of one pool. Pure.
    fn plan(&mut self, policy: &P, observed: &Observed, round: &mut Round<'_>) -> Vec<StepOf<P>> {
        let judge = |held: &Held, owners: &Owners| policy.judge(held, owners);
        let free = plan(observed, judge, round).into_iter();
        let step = |(place, reason): (usize, Reason)| Step::Free {
            ends: policy.ends(&observed.held[place]),
            held: observed.held[place].clone(),
            reason,
        };
        free.map(step).collect()
    }

    /// Plans some of what is in no pool, at most `batch` at a time; called until there is no more. Pure.
    fn plan_rest(
        &mut self,
        _owners: &Owners,
        _round: &mut Round<'_>,
        _batch: usize,
    ) -> Option<Vec<StepOf<P>>> {
        None
    }

    /// All steps were carried out.
    async fn finish(&mut self, _policy: &P, _first: bool) -> Result<(), SweepError> {
        Ok(())
    }
}

/// A pool as a sweep reads it.
#[derive(Clone, Copy, Debug)]
pub struct ReadPool<'a> {
    pub key: &'a PoolKey,
    /// The node that publishes it, if it shows that node's slice.
    pub publisher: Option<&'a str>,
    pub snapshot: &'a Snapshot,
    pub held: &'a [Held],
}

/// Pods and nodes that have to be read.
#[derive(Debug, Default)]
pub struct Names {
    pub pods: BTreeSet<PodRef>,
    pub nodes: BTreeSet<String>,
}

impl Names {
    pub fn add(&mut self, pod: Option<PodRef>, node: Option<&str>) {
        self.pods.extend(pod);
        if let Some(node) = node.filter(|node| !self.nodes.contains(*node)) {
            self.nodes.insert(node.to_owned());
        }
    }
}

/// Something that a front puts right, beside releasing entries.
#[async_trait]
pub trait Repair<P: Policy>: fmt::Debug + Send + Sync {
    /// What it is about, for logs.
    fn subject(&self) -> String;

    /// Reads again what the step was planned on, by quorum reads, and does it if that still holds.
    async fn execute(&self, policy: &P, executor: &Executor<P>) -> Result<Outcome, StepError>;
}

/// The repairs of a front that has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoRepair {}

#[async_trait]
impl<P: Policy> Repair<P> for NoRepair {
    fn subject(&self) -> String {
        match *self {}
    }

    async fn execute(&self, _: &P, _: &Executor<P>) -> Result<Outcome, StepError> {
        match *self {}
    }
}

/// The survey of a front that keeps nothing but pools.
#[derive(Clone, Copy, Debug, Default)]
pub struct PoolsOnly;

impl<P: Policy<PoolPolicies = ()>> Survey<P> for PoolsOnly {
    fn pool_policies(&self) -> &() {
        &()
    }
}
