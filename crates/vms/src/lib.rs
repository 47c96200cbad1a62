//! The pool of pre-created VMs: which VM a pod gets, and what must happen to a VM before another
//! pod may have it. Promises: a VM has one owner (I1), is free again only after it was seen to
//! reboot (I4), and whatever is done to it is recorded before it is begun (I9). Does not create
//! or destroy VMs.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod audit;
mod boot;
mod flags;
mod fleet;
mod front;
pub mod http;
mod metrics;
mod pool;
mod scaling;
pub mod settings;
mod shards;
mod sizing;
mod start;
pub mod vm;

pub use boot::BootNote;
pub use flags::VmFlags;
pub use fleet::Fleet;
pub use http::router;
pub use metrics::VmMetrics;
pub use pool::{
    Allocation, Applicant, Checking, Fault, PoolError, Quarantine, Recovered, Recovery, Returned,
    Rules, Status, Store,
};
pub use scaling::{Report, Signal};
pub use sizing::Reload;
pub use start::{Setup, StartError, start};
