//! Berth on a whole node: kubelet, containerd, Multus, controller manager and scheduler are real, Berth is installed
//! by `berth install` and has no more rights than its own service account.
//!
//! One node serves all scenarios (`site.rs`). Each has a namespace and ranges of its own, so most of them
//! run side by side; those that hurt the node have it to themselves.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod mishaps;
mod networks;
mod scene;
mod set;
mod sets;
mod site;
mod slices;
