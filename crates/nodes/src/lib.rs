//! The nodes front: static addresses for interfaces of hosts, out of NodeIPPools, through NodeNetworkConfigurationPolicies.
//!
//! What is here is pure: it decides from what was observed, and does no I/O. [`pool`] reads a NodeIPPool and numbers its addresses,
//! [`capture`] finds what a policy takes from which pool and puts the addresses into its state, [`handler`] decides
//! what one node does about one policy, [`upkeep`] what the leader does about one pool.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

pub mod capture;
pub mod enactment;
pub mod handler;
pub mod host;
pub mod objects;
pub mod pool;
pub mod store;
pub mod upkeep;
