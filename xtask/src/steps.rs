//! Steps of a long command: each says that it begins, how long it took, and what to do if it fails.

use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail};

/// Runs a step and tells its time.
#[allow(clippy::print_stderr)]
pub fn step<T>(name: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    eprintln!("==> {name}");
    let started = Instant::now();
    let done = work().with_context(|| format!("step failed: {name}"))?;
    eprintln!("    {name}: {} s", started.elapsed().as_secs());
    Ok(done)
}

/// Runs cargo with the toolchain that runs this.
pub fn cargo(arguments: &[&str]) -> Result<()> {
    run(bare_cargo().args(arguments))
}

/// Cargo as a person would start it. What it tells of the package that it runs, this one, is taken away again: build
/// scripts that look at it (ring's) would be run anew, and all that rests on them compiled, at every change between the two.
pub fn bare_cargo() -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    for (name, _) in std::env::vars_os() {
        let told = name.to_string_lossy();
        if told.starts_with("CARGO_PKG_") || told.starts_with("CARGO_MANIFEST_") {
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
