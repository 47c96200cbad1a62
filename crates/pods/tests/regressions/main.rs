//! Failures that this field has had, each under the name of the project and the issue that told of it: none of
//! them may be ours.
//!
//! Here are those that a front over a ledger can have. Others have the same names where they need more:
//! `tests/garbage`, and the tests of `berth-controller`, `berth-agent` and `berth`; docs/regressions.md lists all of
//! them.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod bench;
mod crowd;
mod duplicates;
mod faulty;
mod leaks;
mod tight;
