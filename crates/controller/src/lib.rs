//! The controller: one process leads a cluster, another is ready to.
//!
//! What the leader does is a list of tasks. The first assigns slices: it cuts the ranges of networks with `node_slice_size` into slices, gives each node one, and takes it back
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
//! | [`SliceTask`], `work` | slices as a task, and its loop while leading |
//! | [`LeaderDeskTask`] | the desk that the requests of all nodes meet in |
//! | `faults` | what is wrong with definitions, slices apart |
//! | `events`, `published` | what users and agents are told |
//! | [`Controller`] | the process: a list of tasks ([`berth_front::LeaderTask`]) |
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
mod leader_desk;
pub mod look;
mod lost;
mod metrics;
pub mod networks;
pub mod plan;
mod published;
pub mod seen;
mod serve;
mod slice_task;
pub mod tend;
mod vanished;
mod work;

pub use election::{Leader, Leadership};
pub use leader_desk::{DeskArgs, LeaderDesk, LeaderDeskTask};
pub use serve::{Controller, ControllerConfig, ControllerError, Tasks};
pub use slice_task::{SliceTask, SliceTaskSettings};
