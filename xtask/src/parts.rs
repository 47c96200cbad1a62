//! Prepares what tests run against: Debian packages, the Go programs, cargo tools.

use std::path::PathBuf;
use std::time::Instant;

use berth_parts::{Parts, Tool};

/// Installs and builds what the tests start; quick if everything exists.
pub fn ensure() -> anyhow::Result<Parts> {
    let mut progress = progress();
    berth_parts::debian(&mut progress)?;
    berth_parts::ensure(&mut progress)
}

/// A cargo tool of the pinned version.
pub fn tool(tool: Tool) -> anyhow::Result<PathBuf> {
    berth_parts::cargo_tool(tool, progress())
}

#[allow(clippy::print_stderr)]
fn progress() -> impl FnMut(&str) {
    let started = Instant::now();
    move |line| eprintln!("[{:>4} s] parts: {line}", started.elapsed().as_secs())
}
