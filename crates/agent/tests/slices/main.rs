//! Nodes that give from slices of their own, on a real API server.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod again;
mod assigned;
mod back;
mod bare;
mod busy;
mod call;
mod checked;
mod cooldown;
mod elastic;
mod errors;
mod files;
mod full;
mod garbage;
mod given;
mod grown;
mod hands;
mod kinds;
mod later;
mod leftovers;
mod limits;
mod lost;
mod machine;
mod moves;
mod older;
mod plain;
mod precautions;
mod processes;
mod race;
mod rebuilt;
mod recalled;
mod regressions;
mod requests;
mod returned;
mod status;
mod teardown;
#[path = "../../../controller/tests/test_controller/mod.rs"]
mod test_controller;
mod unreadable;
mod unreserved;
mod vanished;
mod whereabouts;
mod widened;
mod world;
