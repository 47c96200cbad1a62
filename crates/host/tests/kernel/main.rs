//! `berth-host` as built, without NetworkManager, on a veth in a network namespace of its own.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod applies;
mod hangs;
mod host;
mod shows;
