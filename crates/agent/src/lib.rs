//! The node's agent: takes CNI calls on a unix socket and serves them from one process, so that claims of pods
//! that start together share commits, and a pod's start costs no connection set-up.
//!
//! [`serve`] runs it; [`once`] is the same engine for one call, where no agent runs. An agent stops when told, after finishing what is under way; killed, it loses
//! nothing: every answer was durable before it was given (I2).
#![cfg_attr(
    test,
    allow(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing
    )
)]

mod boot;
mod collectors;
mod mark;
mod metrics;
mod once;
mod release;
mod routes;
mod serve;
mod socket;
mod stores;

pub use berth_gather::GatherSettings;
pub use berth_pods::garbage::{GarbageSettings, Patience};
pub use berth_slices::SliceSettings;
pub use once::{OnceConfig, once};
pub use release::{RELEASE_PATH, ReleaseAnswer, ReleaseFailure, ReleaseReason, ReleaseRequest};
pub use serve::{AgentConfig, AgentError, serve};
