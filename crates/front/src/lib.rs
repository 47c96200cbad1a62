//! What a front is to the processes that run it: the agent serves a list of [`Front`]s, the controller runs a list of
//! [`LeaderTask`]s, and neither knows any of them by name.
//!
//! A front implements what it needs; every other method has a default. Adding one touches its own crate and the lists in
//! the command (`crates/cli/src/fronts.rs`).
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod clusters;
mod front;
mod kind;
mod leader;
mod node;

pub use clusters::{Cluster, Clusters};
pub use front::{Front, Host, Lifetime, Readiness, Serving, StartError};
pub use kind::Kind;
pub use leader::LeaderTask;
pub use node::Node;
