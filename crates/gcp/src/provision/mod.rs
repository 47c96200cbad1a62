//! The provisioner: the internal range, the secondary range and the IPPool of a cluster.

pub mod executor;
pub mod plan;
