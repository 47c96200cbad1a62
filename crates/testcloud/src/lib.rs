//! A local Google Cloud for tests: the parts of the Compute, Network Connectivity and metadata APIs that the gcp front
//! calls, over HTTP on loopback.
//!
//! It keeps what the real service is known to enforce: fingerprints, asynchronous operations of a set length, one
//! update of an instance at a time, additions and removals never in one request, sorted alias ranges, the limits of a
//! NIC and of a network, addresses that are in use elsewhere, rates per minute, repeats by requestId. Any call can be
//! made to fail by a [`Fault`]. Every request is recorded, so that a test can count and check them.
//!
//! It shares no code with the client: an error in shared code would look right. `cargo xtask compute` runs it as a
//! program.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod addresses;
mod aliases;
mod discovery;
mod error;
mod fault;
mod instances;
mod limits;
mod metadata;
mod operations;
mod permissions;
mod project;
mod ranges;
mod requests;
mod routes;
mod server;
mod subnetworks;
mod token;

pub use discovery::Discovery;
pub use error::ApiError;
pub use fault::Fault;
pub use instances::{AliasRange, Instance};
pub use limits::Limits;
pub use permissions::{assert_described, documented, permissions_of};
pub use project::{Project, Stale};
pub use requests::{Group, Recorded};
pub use server::Cloud;
pub use subnetworks::SecondaryRange;
