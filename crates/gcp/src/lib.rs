//! The gcp front: pods whose address is an alias of their VM's NIC on Google Cloud, and moves with them.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

pub mod check;
pub mod cloud;
pub mod front;
pub mod install;
pub mod migrate;
pub mod nic;
pub mod pool;
pub mod provision;
