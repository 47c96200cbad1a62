//! promtool, which checks what `/metrics` serves: extracted from Debian's package, so that no Prometheus is installed
//! or started.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use crate::cache::Cache;
use crate::unpacked::unpack;

const PACKAGE: &str = "prometheus";

fn place(cache: &Cache) -> PathBuf {
    cache.root().join("promtool-debian")
}

/// The path of promtool, if an earlier [`ensure`] created it.
pub(crate) fn find(cache: &Cache) -> Result<PathBuf> {
    let binary = place(cache).join("promtool");
    if !binary.is_file() {
        bail!(
            "{} is missing: run `cargo xtask parts` (or `cargo xtask test`)",
            binary.display()
        );
    }
    Ok(binary)
}

/// The path of promtool; downloads Debian's package when it is missing.
pub(crate) fn ensure(cache: &Cache, mut progress: impl FnMut(&str)) -> Result<PathBuf> {
    if let Ok(binary) = find(cache) {
        return Ok(binary);
    }
    let _lock = cache.lock(&mut progress)?;
    if let Ok(binary) = find(cache) {
        return Ok(binary);
    }
    progress("promtool: out of Debian's package prometheus");
    let shop = cache.workshop("promtool")?;
    let (tree, out) = (unpack(&[PACKAGE], &shop)?, shop.join("out"));
    fs::create_dir(&out)?;
    fs::copy(tree.join("usr/bin/promtool"), out.join("promtool"))
        .context("the package has no promtool")?;
    fs::rename(&out, place(cache)).context("move promtool into place")?;
    let _ = fs::remove_dir_all(&shop);
    find(cache)
}
