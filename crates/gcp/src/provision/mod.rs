//! The provisioner: the internal range, the secondary range and the IPPool of a cluster.

pub mod executor;
pub mod plan;
mod step;
mod subnet;

pub use step::{Block, Refusal, Step};
pub use subnet::{InvalidSubnet, SubnetPath};
