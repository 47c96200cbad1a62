//! The Container Network Interface, 0.1.0 to 1.1.0, as far as an IPAM plugin needs it: a call's environment, its
//! network configuration, results and errors in the format of every version, and the protocol between plugin and agent.
//!
//! No async runtime, no TLS, no Kubernetes: the plugin is linked from this crate and must start as fast as `/bin/true`.

#![cfg_attr(
    test,
    allow(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing
    )
)]

pub mod args;
pub mod call;
pub mod conf;
pub mod delegate;
pub mod error;
pub mod fields;
pub mod http;
pub mod ids;
pub mod result;
pub mod version;
pub mod wire;

pub use args::Args;
pub use call::{Call, Environment, Verb};
pub use conf::{Attachment, NetConf};
pub use error::{CniError, Code};
pub use ids::{ContainerId, IfName};
pub use result::{Dns, IpConfig, IpamResult, Route};
pub use version::Version;
