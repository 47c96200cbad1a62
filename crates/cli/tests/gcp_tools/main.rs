//! `berth gcp` as built, against the local Google Cloud and a real API server.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod check;
mod install;
mod provision;
mod refusals;
mod scene;
