//! The IPPool object `ipam.gcp-cni.cast.ai/v1alpha1` and the pool that it stands for.
//!
//! Upstream's objects are read and written both ways: its fields mean what they mean there, and what Berth keeps besides
//! lies in a field of the entry that Berth's definition adds; what must not be lost (a move, a marker) lies in an annotation,
//! which upstream's definition and plugin keep.

pub mod attributes;
mod codec;
mod object;
pub mod pages;
mod space;

use berth_core::Prefix;
use berth_ledger::PoolKey;

pub use codec::{ATTRIBUTES, Finding, IpPool, PoolError, decode, encode};
pub use object::{COOLDOWNS, IP_POOLS, IpPools};
pub use space::{capacity, gateway, space};

pub const GROUP: &str = "ipam.gcp-cni.cast.ai";
pub const VERSION: &str = "v1alpha1";
pub const KIND: &str = "IPPool";
pub const PLURAL: &str = "ippools";
/// Of a pool that names none.
pub const DEFAULT_RANGE: &str = "live";

/// The pool of a subnet, where the configuration names none.
pub fn default_name(subnet: &str) -> String {
    format!("ippool-{}", subnet.rsplit('/').next().unwrap_or(subnet))
}

/// The pool's name in its ledger; a commit under another cidr than the object's is refused.
pub fn key(name: &str, cidr: Option<Prefix>) -> PoolKey {
    PoolKey {
        name: name.to_owned(),
        network: cidr,
    }
}
