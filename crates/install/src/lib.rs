//! Berth put on a node: the CNI plugin and the engine beside it, and the kubeconfig, flat file and node
//! name that go with them, where and as whereabouts has them.
//!
//! Promises: every file appears whole or not at all (a reader or a container runtime sees the old one or the
//! new one); what was there before Berth is kept aside once and comes back on removal; removal takes away only
//! what Berth wrote and nobody changed since; a token never appears in a message. Does not promise to
//! make the CNI directories: where they are missing, something else is wrong with the node.
//!
//! ```text
//! CNI_BIN_DIR/whereabouts           the plugin           CNI_CONF_DIR/whereabouts.d/whereabouts.kubeconfig
//! CNI_BIN_DIR/berth                 the plugin                        ""          /whereabouts.conf
//! CNI_BIN_DIR/berth-full            `berth` itself                    ""          /nodename
//! CNI_BIN_DIR/berth-full.json       where those are      ->           ""          /berth-install.json
//! CNI_BIN_DIR/*.before-berth        what was there                    ""          /*.before-berth
//! ```
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod cluster;
mod containerd;
mod content;
mod elf;
mod error;
mod install;
mod layout;
mod lock;
mod manifest;
mod place;
mod pointer;
mod remove;
mod stay;

pub use cluster::ClusterSource;
pub use error::InstallError;
pub use install::{Action, Placed, Report, Settings, install};
pub use layout::{Dir, Layout, Wanted};
pub use pointer::Pointer;
pub use remove::{Fate, Removed, remove};
pub use stay::stay;
