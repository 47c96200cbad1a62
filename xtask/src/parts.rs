//! The parts that tests run against, made ready: Debian's packages, the Go parts, cargo-deny.

use std::path::PathBuf;
use std::time::Instant;

use berth_parts::Parts;

/// Installs and builds what the tests start; quick when all is there.
pub fn ensure() -> anyhow::Result<Parts> {
    let mut progress = progress();
    berth_parts::debian(&mut progress)?;
    berth_parts::ensure(&mut progress)
}

/// The licence checker.
pub fn cargo_deny() -> anyhow::Result<PathBuf> {
    berth_parts::cargo_deny(progress())
}

#[allow(clippy::print_stderr)]
fn progress() -> impl FnMut(&str) {
    let started = Instant::now();
    move |line| eprintln!("[{:>4} s] parts: {line}", started.elapsed().as_secs())
}
