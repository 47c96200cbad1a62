//! The garbage collector: releases addresses whose owners are gone.
//!
//! A front releases an address when its user says so. This is for the times when that never happens: a node crashed,
//! a pod was deleted by force, the agent or the API server was away, an entry was written by hand.
//!
//! Guarantees: an address is freed only on proof that its owner is gone (I4): read as gone twice with a grace period
//! between, and once more by a quorum read just before. The release names the holder that was judged (I6), so a
//! pod that took the entry over in between keeps it.
//!
//! ```text
//!   sweep:  observe all pools, then their owners -> judge liveness -> plan -> execute after one more quorum read
//!   local:  the same for this node's own entries, when its pods change
//! ```
//!
//! What an owner is, what proves it gone and what else ends with it, a front says in its [`Policy`].
//!
//! | file | part |
//! |---|---|
//! | [`policy`] | what a front brings |
//! | [`observed`] | pods, nodes and entries as they were read |
//! | [`liveness`] | whether an owner is gone: pure |
//! | [`plan`], [`suspicions`] | what follows from a read; two reads across a grace period: pure |
//! | [`executor`] | the last read, then the release |
//! | `sweep`, `owner_digests` | reads of all pools, and which of them need a second one |
//! | [`sweep_lease`] | which process sweeps next |
//! | `local`, `pod_watch` | this node's entries, collected when its pods change |
//! | [`quorum_reader`] | quorum reads of pods, nodes and other objects |
//! | `collector`, `task` | a collector as a background task, and as a task of the leader |
#![cfg_attr(
    test,
    allow(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing
    )
)]

mod clock;
mod collector;
pub mod executor;
pub mod liveness;
mod local;
mod metrics;
pub mod observed;
mod owner_digests;
pub mod plan;
mod pod_watch;
pub mod policy;
pub mod quorum_reader;
pub mod suspicions;
mod sweep;
pub mod sweep_lease;
mod task;

pub use collector::{Collector, CollectorSettings};
pub use executor::{Executor, Outcome, StepError};
pub use local::LocalEntries;
pub use metrics::CollectorMetrics;
pub use plan::Step;
pub use policy::{Names, NoRepair, Policy, PoolsOnly, ReadPool, Repair, StepOf, Survey};
pub use quorum_reader::{QuorumReader, ReadError};
pub use suspicions::GracePeriods;
pub use sweep::SweepError;
pub use task::CollectTask;
