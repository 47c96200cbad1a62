//! The parts that tests run against, made ready: Debian's packages, the Go parts, cargo's tools.

use std::path::PathBuf;
use std::time::Instant;

use berth_parts::{Parts, Tool};

/// Installs and builds what the tests start; quick when all is there.
pub fn ensure() -> anyhow::Result<Parts> {
    let mut progress = progress();
    berth_parts::debian(&mut progress)?;
    berth_parts::ensure(&mut progress)
}

/// One of cargo's tools, of the version that is pinned.
pub fn tool(tool: Tool) -> anyhow::Result<PathBuf> {
    berth_parts::cargo_tool(tool, progress())
}

#[allow(clippy::print_stderr)]
fn progress() -> impl FnMut(&str) {
    let started = Instant::now();
    move |line| eprintln!("[{:>4} s] parts: {line}", started.elapsed().as_secs())
}
