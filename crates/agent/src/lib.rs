//! The node's agent: takes CNI calls on a unix socket and hands each to the front that answers to its plugin name. One process
//! for all calls: requests of pods that start together share commits, and a pod's start costs no connection set-up.
//!
//! [`serve`] runs a list of fronts ([`berth_front::Front`]); [`once`] serves one call from the same list, where no agent runs. An agent stops when told, after finishing what is under way; killed, it loses
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

mod fronts;
mod metrics;
mod once;
mod routes;
mod serve;
mod socket;

pub use once::once;
pub use serve::{AgentConfig, AgentError, serve};
