//! Compares what there is: the IPPools, the alias ranges of the nodes' NICs, the pods and the host's own routes. Pure.
//!
//! Guarantees: nothing is changed; an allocation that is under way (it moves, or is kept or attached before a pod has it) is
//! not reported; what can't be read is a finding of its own and never counts as absent.

mod compare;
mod problem;
mod routes;

pub use compare::problems;
pub use problem::{Problem, Severity};
pub use routes::local_addresses;

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use crate::cloud::{AliasRange, Subnetwork};
use crate::pool::IpPool;

/// An IPPool as it was read.
#[derive(Clone, Debug)]
pub struct ObservedPool {
    pub name: String,
    /// The secondary range; None: the primary one.
    pub range: Option<String>,
    pub pool: IpPool,
    /// Bytes of the object.
    pub size: usize,
    /// The subnet, or why it can't be read.
    pub subnet: Result<Subnetwork, String>,
}

/// The VM of a node.
#[derive(Clone, Debug)]
pub struct ObservedNode {
    /// The alias ranges of nic0 in their order, or why they can't be read.
    pub aliases: Result<Vec<AliasRange>, String>,
}

/// A pod with an address of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedPod {
    /// `namespace/name`.
    pub name: String,
    pub uid: String,
    pub node: String,
    pub addresses: Vec<Ipv4Addr>,
}

/// Everything that is compared.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    pub pools: Vec<ObservedPool>,
    pub nodes: BTreeMap<String, ObservedNode>,
    /// By UID: those that have not ended.
    pub pods: BTreeMap<String, ObservedPod>,
    /// Addresses that the host this runs on keeps for itself.
    pub local: BTreeSet<Ipv4Addr>,
}

/// Alias ranges that one NIC can have; it can't be raised.
pub const MAX_ALIASES: usize = crate::nic::MAX_ALIASES;
