//! The Kubernetes objects that Berth reads and writes, and their names.
//!
//! Guarantees: the objects of other projects look exactly as those projects define them, so that Berth can take over a
//! live cluster and hand it back. Names are those of live clusters.
//!
//! Use these types to read, and to create new objects. A live object may have fields that are not here, and writing a
//! typed value back would drop them (I7): change objects by patches.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

pub mod berth;
pub mod claim;
pub mod cncf;
mod crds;
pub mod names;
pub mod nmstate;
pub mod slices;
pub mod whereabouts;

pub use crds::{crds, file_name};
