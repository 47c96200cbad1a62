//! The controller: one process leads a cluster, another is ready to.
//!
//! It cuts the ranges of networks with `node_slice_size` into slices, gives each node one, and takes it back
//! when the node is provably gone. Everything it decides is in objects of the API server, each written on
//! exactly the version that was read; leadership only spares the replicas from meeting.
//!
//! | file | part |
//! |---|---|
//! | [`election`] | who leads; the handle that tells |
//! | [`seen`] | what the watches show |
//! | [`networks`], [`disjoint`] | what the definitions ask for, and whose ranges are apart: pure |
//! | [`look`] | who uses a slice, by quorum reads |
//! | [`plan`] | what a NodeSlicePool should be: pure |
//! | [`tend`] | one NodeSlicePool looked at, planned, written |
//! | `lost` | slices that nodes claimed by themselves, and whose nodes are gone |
//! | `work` | the leader's loop |
//! | `faults` | what is wrong with definitions, slices apart |
//! | `events`, `published` | what users and agents are told |
//! | [`serve`] | the process |
#![cfg_attr(
    test,
    allow(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing
    )
)]

pub mod disjoint;
pub mod election;
mod events;
pub mod faults;
pub mod look;
mod lost;
mod metrics;
pub mod networks;
pub mod plan;
mod published;
pub mod seen;
mod serve;
pub mod tend;
mod vanished;
mod work;

pub use election::{Leader, Leadership};
pub use serve::{Controller, ControllerConfig, ControllerError, serve};
