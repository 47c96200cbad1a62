//! promtool, which judges what `/metrics` serves: taken out of Debian's package, so that no Prometheus is installed or
//! started.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::cache::Cache;

const PACKAGE: &str = "prometheus";

fn place(cache: &Cache) -> PathBuf {
    cache.root().join("promtool-debian")
}

/// Where promtool is, if an earlier [`ensure`] has put it there.
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
    // apt's own user may have to write here.
    let download = || {
        run(Command::new("apt-get")
            .args(["--quiet", "download", PACKAGE])
            .current_dir(&shop))
    };
    if download().is_err() {
        run(Command::new("apt-get").args(["--quiet", "update"]))?;
        download().context("download Debian's package prometheus (for promtool)")?;
    }
    let package = fs::read_dir(&shop)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.extension().is_some_and(|end| end == "deb"))
        .context("apt-get download left no package")?;
    let (tree, out) = (shop.join("tree"), shop.join("out"));
    run(Command::new("dpkg-deb")
        .arg("--extract")
        .arg(&package)
        .arg(&tree))?;
    fs::create_dir(&out)?;
    fs::copy(tree.join("usr/bin/promtool"), out.join("promtool"))
        .context("the package has no promtool")?;
    fs::rename(&out, place(cache)).context("move promtool into place")?;
    let _ = fs::remove_dir_all(&shop);
    find(cache)
}

fn run(command: &mut Command) -> Result<()> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("start {command:?}"))?;
    if !output.status.success() {
        let told = String::from_utf8_lossy(&output.stderr);
        bail!("{command:?} failed ({}):\n{told}", output.status);
    }
    Ok(())
}
