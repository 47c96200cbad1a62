//! The controller: one replica leads the cluster, the other is on standby.
//!
//! The leader runs a list of tasks. The first assigns slices: it cuts the ranges of networks with `node_slice_size`
//! into slices, assigns one to each node, and reclaims it when the node is provably gone. Every decision is an object
//! of the API server, written on exactly the version that was read; leadership only avoids conflicts between replicas.
//!
//! | file | part |
//! |---|---|
//! | [`watch_cache`] | what the watches show |
//! | [`networks`], [`disjoint`] | what the definitions request, and whose ranges are disjoint: pure |
//! | [`usage`] | who uses a slice, by quorum reads |
//! | [`plan`] | the desired NodeSlicePool: pure |
//! | [`reconcile`] | reads, plans and writes one NodeSlicePool |
//! | `lost` | slices that lost nodes had claimed |
//! | [`SliceTask`], `work` | slices as a task, and its loop while leading |
//! | [`LeaderDeskTask`] | the leader desk |
//! | `faults` | problems of definitions that concern no slices |
//! | `events`, `published` | what users and agents can read |
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

mod deleted_leases;
pub mod disjoint;
mod events;
pub mod faults;
mod leader_desk;
mod leader_loop;
mod lost_nodes;
mod metrics;
pub mod networks;
mod networks_configmap;
pub mod plan;
pub mod reconcile;
mod serve;
mod slice_task;
pub mod usage;
pub mod watch_cache;

pub use leader_desk::{DeskArgs, LeaderDesk, LeaderDeskTask};
pub use serve::{Controller, ControllerConfig, ControllerError, Tasks};
pub use slice_task::{SliceTask, SliceTaskSettings};
