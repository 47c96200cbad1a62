//! Cargo's own tools: built from the crate registry into the same cache, each of a pinned version.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use crate::build;
use crate::cache::Cache;

/// A cargo tool: `cargo-deny` is run as `cargo deny`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tool {
    /// Licences, banned crates, advisories.
    Deny,
    /// The bill of materials of a release.
    Cyclonedx,
    /// libFuzzer, with the nightly toolchain.
    Fuzz,
    /// Not a cargo tool, but built like one: nmstate's own command, whose arguments `berth-host` has.
    Nmstatectl,
}

impl Tool {
    const fn name(self) -> &'static str {
        match self {
            Tool::Deny => "cargo-deny",
            Tool::Cyclonedx => "cargo-cyclonedx",
            Tool::Fuzz => "cargo-fuzz",
            Tool::Nmstatectl => "nmstatectl",
        }
    }

    const fn version(self) -> &'static str {
        match self {
            Tool::Deny => "0.20.2",
            Tool::Cyclonedx => "0.5.9",
            Tool::Fuzz => "0.13.2",
            Tool::Nmstatectl => "2.2.62",
        }
    }
}

/// The path of the tool; builds it when it is missing.
pub fn cargo_tool(tool: Tool, mut progress: impl FnMut(&str)) -> Result<PathBuf> {
    let (name, version) = (tool.name(), tool.version());
    let cache = Cache::locate()?;
    let place = cache.root().join(format!("{name}-{version}"));
    let binary = place.join("bin").join(name);
    if place.is_dir() {
        return Ok(binary);
    }
    let _lock = cache.lock(&mut progress)?;
    if place.is_dir() {
        return Ok(binary);
    }
    let shop = cache.workshop(name)?;
    let out = shop.join("out");
    let mut cargo = Command::new("cargo");
    cargo
        .args(["install", "--locked", name, "--version", version])
        .arg("--root")
        .arg(&out)
        .env("CARGO_TARGET_DIR", shop.join("target"))
        // It runs only for seconds, so a short build matters more than a fast program.
        .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1")
        .env("CARGO_PROFILE_RELEASE_LTO", "off")
        .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16");
    let what = format!("{name} {version}");
    build::run(&mut cargo, &what, &shop.join("log"), &mut progress)
        .with_context(|| format!("build {name} (the crate registry is needed)"))?;
    fs::rename(&out, &place).with_context(|| format!("move {} into place", place.display()))?;
    let _ = fs::remove_dir_all(&shop);
    progress(&format!("{what}: built"));
    Ok(binary)
}
