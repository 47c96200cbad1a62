//! What one machine keeps locally, for all fronts.
//!
//! | module | what it keeps |
//! |---|---|
//! | [`file`] | the node's SQLite file: its ledger, its identity, the lock of the one process that may allocate from slices |
//! | [`journal`] | which addresses this node's pods hold in the cluster's pools, by network |
//! | [`attachments`] | which outside effects of allocations this node has to carry out, such as aliases of its NIC |
//! | [`boot`] | which boot the machine is in, and the one that was recorded last |
//! | [`keyed_lock`] | one call at a time for one container, one owner |
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

pub mod attachments;
pub mod boot;
pub mod file;
pub mod journal;
pub mod keyed_lock;
mod owner_lock;
mod tables;

pub use attachments::{Attachments, TargetJournal};
pub use boot::{BootMarker, Since};
pub use file::{FileId, LazyFile, NodeFile};
pub use journal::Journal;
pub use keyed_lock::KeyedLock;
