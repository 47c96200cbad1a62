//! The workflows of the proposal "Host IP pooling with NNCPs", each by its name, with handlers and a leader on a real API server that has the
//! definitions and the admission policy of kubernetes-nmstate v0.86.0, under Berth's own roles.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod bed;
mod beside;
mod cleanup;
mod inputs;
mod kills;
mod large;
mod nodes;
mod proposal;
mod real_host;
