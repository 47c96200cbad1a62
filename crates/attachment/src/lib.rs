//! Outside effects of an allocation: a cloud alias, a readiness check of a VM, a reservation, a probe on the link.
//!
//! Two parts, each a pure state machine and a thin driver:
//!
//! - [`search`]: allocate, verify, else release, avoid and retry.
//! - [`machine`] and [`reconciler`]: items that should be present on (or absent from) one outside target, with group
//!   commit in front of its slow calls.
//!
//! Guarantees: an intent is in the journal before its call begins, and is resumed after a crash (I9); one call runs at
//! a time per target, and what arrives meanwhile goes into the next; additions and removals are never in one call; an
//! item that the target refuses fails alone; an item is released only when it is known to be absent.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod failure;
mod journal;
pub mod machine;
pub mod reconciler;
pub mod search;

pub use failure::{Failure, JournalFailed, Refusal};
pub use journal::{Entry, Goal, Intent, IntentId, Journal, MemoryJournal, Recorded};
pub use machine::Machine;
pub use reconciler::{Reconciler, Target};
pub use search::Search;
