//! The node's agent: takes CNI calls on a unix socket and hands each to the front that answers to its plugin name. One process
//! for all calls: requests of pods that start together share commits, and a pod's start costs no connection set-up.
//!
//! [`serve`] runs a list of fronts ([`berth_front::Front`]); [`oneshot`] serves one call from the same list, where no agent
//! runs. An agent that is stopped finishes what is under way; one that is killed loses nothing: every answer was durable
//! before it was sent (I2).
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
mod oneshot;
mod routes;
mod serve;
mod socket;

pub use oneshot::oneshot;
pub use serve::{AgentConfig, AgentError, serve};
