//! Known faults of the crates that Berth is built from (RustSec), where their database can be had.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use crate::steps;

/// Fails on an advisory that deny.toml does not excuse. Without the database it says so and goes on: a machine without a
/// way to it must be able to run the tests.
#[allow(clippy::print_stderr)]
pub fn check(deny: &Path) -> Result<()> {
    let fetched = Command::new(deny)
        .args(["--workspace", "fetch", "db"])
        .stdin(Stdio::null())
        .output()
        .context("start cargo-deny")?;
    if !fetched.status.success() {
        eprintln!("    the advisory database can't be had here: advisories were NOT checked");
        return Ok(());
    }
    steps::run(Command::new(deny).args(["--workspace", "--offline", "check", "advisories"]))
}
