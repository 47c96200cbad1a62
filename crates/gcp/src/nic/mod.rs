//! The alias ranges of one NIC, reconciled to what its pods hold: a driver of `berth_attachment`.
//!
//! Guarantees: every alias that is not asked for stays, verbatim and in its order, before Berth's own; one update runs at a
//! time, and its intent is recorded first; a request has one id per intent; an operation is waited for, never polled; an
//! address is released only when its alias is gone.

mod error;
mod list;
mod lock;
mod target;
pub mod warm;

pub use error::NicError;
pub use list::{Aliases, Full};
pub use lock::NodeLock;
pub use target::{GATHER, MAX_ALIASES, NicPlace, NicTarget, Release};

use std::net::Ipv4Addr;

/// The reconciler of one NIC.
pub type NicReconciler = berth_attachment::Reconciler<Ipv4Addr, NicError>;
