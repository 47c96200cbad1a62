//! Nodes that give from slices of their own, on a real API server.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stderr
)]

mod allocated;
mod api_load;
mod assigned;
mod back_to_plain;
mod brown_out;
mod changed_mode;
mod cni_call;
mod cooldown;
mod deleted_leases;
mod elastic;
mod errors;
mod exhausted;
mod files;
mod garbage;
mod grown_range;
mod late_reservations;
mod leftover_claims;
mod loss_race;
mod lost_answers;
mod lost_file;
mod lost_slices;
mod overlap_checks;
mod precautions;
mod processes;
mod range_limits;
mod reassigned;
mod recalled_slices;
mod regressions;
mod request_count;
mod resized_range;
mod restored_file;
mod restored_server;
mod returned_parts;
mod status;
mod teardown;
mod test_cluster;
#[path = "../../../controller/tests/test_controller/mod.rs"]
mod test_controller;
mod test_node;
mod to_slices_and_back;
mod unreadable;
mod unreserved;
mod unslice;
mod whereabouts;
mod without_agent;
