//! The pods front: CNI IPAM for secondary networks, with the configuration and the objects that a
//! cluster which runs whereabouts already has.
//!
//! Thin on purpose: it decodes a call, names the owner, submits requests to the desk, and renders the answer. `berth_core`
//! decides which address is allocated, `berth_ledger` what is durable.
//!
//! | file | verb or part |
//! |---|---|
//! | [`front`] | from a CNI call to its answer |
//! | [`attachment`] | the owner and the handle of a call |
//! | [`layout`] | the pools of a network, and what an ADD requests from each |
//! | [`add`], [`del`], [`check`], [`gc`], [`status`] | the verbs |
//! | `slice_claim` | allocates from this node's slices |
//! | [`reserve`], `reservation_hints` | one address across pools whose ranges overlap |
//! | `local_pools` | the pools of a standalone machine |
//! | [`store`] | where pools are kept |
//! | [`node`] | the front in a node's agent: its stores, collectors, flags |
//! | [`journal`] | what this node's pods hold |
//! | [`by_hand`] | addresses that a person allocates and releases |
//! | [`sticky`] | addresses that outlive their pod |
//! | [`garbage`] | pods that are gone lose their addresses |
#![cfg_attr(
    test,
    allow(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing
    )
)]

pub mod add;
pub mod attachment;
pub mod by_hand;
pub mod check;
pub mod del;
mod error;
pub mod front;
pub mod garbage;
pub mod gc;
pub mod journal;
pub mod layout;
mod local_pools;
mod named_reads;
pub mod node;
mod release;
mod reservation_hints;
pub mod reserve;
mod slice_claim;
pub mod status;
pub mod sticky;
pub mod store;
mod teardown;

pub use berth_networks::{ConfigError, PodNetwork, RangeConfig, StaticAddress, config};
pub use error::PodError;
pub use front::Front;
pub use store::{Store, Stores};
