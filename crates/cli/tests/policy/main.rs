//! `berth policy gen` as built, with `berth-host`: what it makes of policies, against nmpolicyctl.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod bad_input;
mod generated;
mod proposal;
mod tools;
