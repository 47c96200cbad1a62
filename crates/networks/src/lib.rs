//! How the networks of a cluster are configured: whereabouts' `ipam` object, the NetworkAttachmentDefinitions that
//! contain it, and the administrator's RangePolicy.
//!
//! The pods front serves these networks, and the controller assigns slices of their ranges: both read them here, so
//! that neither depends on the other. No pool is read or written here.
//!
//! | file | part |
//! |---|---|
//! | [`config`] | the `ipam` object |
//! | [`definitions`] | the networks that NetworkAttachmentDefinitions describe |
//! | [`range_policy`] | which namespaces may use which ranges |
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
pub mod definitions;
pub mod range_policy;

pub use config::{ConfigError, PodNetwork, RangeConfig, StaticAddress};

/// The `ipam.type`s of these networks: Berth's own, and whereabouts'.
pub const PLUGINS: &[&str] = &["berth", "whereabouts"];
