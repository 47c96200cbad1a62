//! cargo-deny, which checks licences and advisories: built from the crate registry into the same cache.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use crate::build;
use crate::cache::Cache;

const VERSION: &str = "0.20.2";

/// The path of cargo-deny; builds it when it is missing.
pub fn cargo_deny(mut progress: impl FnMut(&str)) -> Result<PathBuf> {
    let cache = Cache::locate()?;
    let place = cache.root().join(format!("cargo-deny-{VERSION}"));
    let binary = place.join("bin/cargo-deny");
    if place.is_dir() {
        return Ok(binary);
    }
    let _lock = cache.lock(&mut progress)?;
    if place.is_dir() {
        return Ok(binary);
    }
    let shop = cache.workshop("cargo-deny")?;
    let out = shop.join("out");
    let mut cargo = Command::new("cargo");
    cargo
        .args(["install", "--locked", "cargo-deny", "--version", VERSION])
        .arg("--root")
        .arg(&out)
        .env("CARGO_TARGET_DIR", shop.join("target"))
        // It runs for seconds in its life: the time goes into its build, so that is what is made short.
        .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1")
        .env("CARGO_PROFILE_RELEASE_LTO", "off")
        .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16");
    let what = format!("cargo-deny {VERSION}");
    build::run(&mut cargo, &what, &shop.join("log"), &mut progress)
        .context("build cargo-deny (the crate registry is needed)")?;
    fs::rename(&out, &place).with_context(|| format!("move {} into place", place.display()))?;
    let _ = fs::remove_dir_all(&shop);
    progress(&format!("{what}: built"));
    Ok(binary)
}
