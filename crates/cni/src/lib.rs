//! The Container Network Interface, 0.1.0 to 1.1.0, as far as an address manager meets it: a call's
//! environment, its network configuration, results and errors in every version's form, and the
//! protocol by which the plugin hands a call to the agent.
//!
//! No runtime, no TLS, no Kubernetes: the plugin is linked from this crate and must start in the
//! time of `/bin/true`.

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
