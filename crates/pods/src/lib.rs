//! The pods front: CNI IPAM for secondary networks, with the configuration and the objects that a
//! cluster which runs whereabouts already has.
//!
//! Thin on purpose: it reads a call, names the owner, asks the desk, and renders the answer. Which address is
//! given is decided by `berth_core`, what is durable by `berth_ledger`.
#![cfg_attr(
    test,
    allow(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing
    )
)]

pub mod config;
pub mod names;

pub use config::{ConfigError, PodNetwork, RangeConfig, StaticAddress};
