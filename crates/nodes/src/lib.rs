//! The nodes front: static addresses for interfaces of hosts, out of NodeIPPools, through NodeNetworkConfigurationPolicies.
//!
//! Decisions are pure: [`pool`] reads a NodeIPPool and numbers its addresses, [`capture`] finds what a policy takes from which pool and puts the
//! addresses into its state, `handler::plan` decides what one node does about one policy, `upkeep::plan` what the leader does about one
//! pool. Around them: [`handler`] serves one node, [`upkeep`] is the leader's task, [`store`] the codec of the object ledger, [`host`] the program that
//! applies a state, [`front`] what agent and controller register.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

pub mod capture;
pub mod enactment;
pub mod front;
pub mod handler;
pub mod host;
pub mod metrics;
pub mod objects;
pub mod pool;
pub mod store;
pub mod upkeep;
