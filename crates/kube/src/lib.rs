//! Kubernetes plumbing for everyone: the client, object paths, reads, writes, lists, watches, events and election.
//!
//! Guarantees: a client uses rotated credentials from the next request on ([`Connect`]); reads are quorum reads unless they
//! say that they are cached; lists are shown object by object, one page at a time, and no function returns a list of whole
//! objects; a write whose outcome is unknown is [`KubeError::OutcomeUnknown`], never a failure and never a success (I2);
//! the server's `Retry-After` reaches the caller ([`KubeError::retry_after`]), and nothing is retried behind its back.
//!
//! Knows no kind of objects: a [`Resource`] is a constant of the code that knows the kind.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod client;
mod connect;
pub mod election;
mod error;
pub mod events;
pub mod files;
mod list;
mod reloading_client;
mod resource;
mod response;
mod retry;
mod watch;

pub use client::{Fetched, ObjectClient};
pub use connect::{Connect, Connection, DEFAULT_NAMESPACE};
pub use error::{KubeError, Rejection, chain};
pub use list::{Pages, Selection};
pub use resource::{Part, Place, Resource};
pub use response::{Ask, Failure, Refusal, Verb};
pub use retry::{Backoff, RetryPolicy};
