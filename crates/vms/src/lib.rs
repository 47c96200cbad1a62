//! The VM front: pools of pre-created VMs, the allocation of VMs to pods, and the cleanup of a VM before another pod
//! gets it.
//!
//! Guarantees: a VM has one owner (I1), is free again only after proof that it rebooted (I4), and every action on it
//! is recorded before it starts (I9). Does not create or destroy VMs.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod audit;
mod flags;
mod fleet;
mod front;
pub mod http;
mod metrics;
mod pool;
mod reload;
mod scaling;
pub mod settings;
mod shards;
mod start;
pub mod vm;

pub use flags::VmFlags;
pub use fleet::Fleet;
pub use http::router;
pub use metrics::VmMetrics;
pub use pool::{
    Allocation, Applicant, Checking, Fault, PoolError, Quarantine, Recovered, Recovery, Returned,
    Rules, Status, Store,
};
pub use reload::Reload;
pub use scaling::{Report, Signal};
pub use start::{Setup, StartError, start};
