//! The commands that a person runs, as built, on a real API server.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod allocate;
mod documents;
mod offsets;
mod pools;
mod release;
mod slices;
mod stores;
mod world;
