//! Steps of a long command: each prints its name, its duration, and what to do if it fails.

use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail};

/// Runs a step and prints its duration.
#[allow(clippy::print_stderr)]
pub fn step<T>(name: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    eprintln!("==> {name}");
    let started = Instant::now();
    let done = work().with_context(|| format!("step failed: {name}"))?;
    eprintln!("    {name}: {} s", started.elapsed().as_secs());
    Ok(done)
}

/// Runs cargo with the current toolchain.
pub fn cargo(arguments: &[&str]) -> Result<()> {
    run(bare_cargo().args(arguments))
}

/// Cargo as a person would start it. The variables about the running package, this one, are removed: build scripts that
/// read them (ring's) would run again at every change, and everything that depends on them would be recompiled.
pub fn bare_cargo() -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&name);
        }
    }
    command
}

pub fn run(command: &mut Command) -> Result<()> {
    let status = command
        .status()
        .with_context(|| format!("can't start {command:?}"))?;
    if !status.success() {
        bail!("{command:?} ended with {status}");
    }
    Ok(())
}
