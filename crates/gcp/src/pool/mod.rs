//! The IPPool object `ipam.gcp-cni.cast.ai/v1alpha1` and the pool that it stands for.
//!
//! Upstream's objects are read and written both ways: its fields mean what they mean there, and what Berth keeps besides
//! (container, stage, marker) lies in an annotation, because the API server prunes unknown fields of an entry.

mod codec;
mod space;

pub use codec::{ATTRIBUTES, Finding, IpPool, PoolError, decode, encode};
pub use space::{capacity, gateway, space};

pub const GROUP: &str = "ipam.gcp-cni.cast.ai";
pub const VERSION: &str = "v1alpha1";
/// Of a pool that names none.
pub const DEFAULT_RANGE: &str = "live";

/// The pool of a subnet, where the configuration names none.
pub fn default_name(subnet: &str) -> String {
    format!("ippool-{}", subnet.rsplit('/').next().unwrap_or(subnet))
}
