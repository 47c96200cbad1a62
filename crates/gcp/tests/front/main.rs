//! gcp-ipam on a real API server and the local cloud: every flow of the specification, and what interrupts it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod agentless;
mod bad_input;
mod crashes;
mod life;
mod limits;
mod migration;
mod pages;
mod permissions;
mod rights;
mod scale;
mod scene;
mod statics;
