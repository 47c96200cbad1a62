//! Berth put on a node: the CNI plugin and the engine beside it, and the kubeconfig, flat file and node
//! name that go with them, where and as whereabouts has them.
//!
//! Guarantees: every file appears whole or not at all (a reader or a container runtime sees the old one or the
//! new one); what was there before Berth is kept aside once and comes back on removal; removal takes away only
//! what Berth wrote and was not changed since; a token never appears in a message. It does not make the CNI
//! directories: where they are missing, something else is wrong with the node.
//!
//! ```text
//! CNI_BIN_DIR/whereabouts           the plugin           CNI_CONF_DIR/whereabouts.d/whereabouts.kubeconfig
//! CNI_BIN_DIR/berth                 the plugin                        ""          /whereabouts.conf
//! CNI_BIN_DIR/berth-full            `berth` itself                    ""          /nodename
//! CNI_BIN_DIR/berth-full.json       where those are      ->           ""          /berth-install.json
//! CNI_BIN_DIR/*.before-berth        what was there                    ""          /*.before-berth
//! ```
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod atomic_write;
mod cluster;
mod containerd;
mod elf;
mod engine_config;
mod error;
mod install;
mod layout;
mod lock;
mod manifest;
mod reconcile;
mod remove;
pub mod templates;

pub use cluster::ClusterSource;
pub use engine_config::EngineConfig;
pub use error::InstallError;
pub use install::{Action, Placed, Report, Settings, TextFile, install};
pub use layout::{Dir, Layout, Wanted};
pub use reconcile::reconcile;
pub use remove::{Fate, Removed, remove};
