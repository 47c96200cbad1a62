//! The pods front: CNI IPAM for secondary networks, with the configuration and the objects that a
//! cluster which runs whereabouts already has.
//!
//! Thin on purpose: it reads a call, names the owner, asks the desk, and renders the answer. Which address is
//! given is decided by `berth_core`, what is durable by `berth_ledger`.
//!
//! | file | verb or part |
//! |---|---|
//! | [`front`] | a call comes in, an answer goes out |
//! | [`config`] | the `ipam` object |
//! | [`definitions`] | the networks that NetworkAttachmentDefinitions describe |
//! | [`attachment`] | who asks |
//! | [`layout`] | which pools are asked for what |
//! | [`add`], [`del`], [`check`], [`gc`], [`status`] | the verbs |
//! | `cut` | what a claim may take of this node's slices |
//! | [`reserve`] | one address across pools whose ranges overlap |
//! | [`store`] | where pools are kept |
//! | [`node`] | the front in a node's agent: its stores, collectors, flags |
//! | [`journal`] | what this node was given |
//! | [`by_hand`] | addresses that a person allocates and releases |
//! | [`boot`] | which boot the node is in |
//! | [`probe`] | does somebody on the link use an address |
//! | [`policy`] | which namespaces may use which ranges |
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
pub mod boot;
pub mod by_hand;
pub mod check;
pub mod config;
mod cut;
pub mod definitions;
pub mod del;
mod error;
mod foreign;
pub mod front;
pub mod garbage;
pub mod gc;
pub mod journal;
pub mod layout;
mod named_reads;
pub mod node;
mod own;
pub mod policy;
pub mod probe;
mod release;
pub mod reserve;
pub mod status;
pub mod sticky;
pub mod store;
mod turns;

pub use config::{ConfigError, PodNetwork, RangeConfig, StaticAddress};
pub use error::PodError;
pub use front::Front;
pub use store::{Store, Stores};
