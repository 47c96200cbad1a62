//! NetworkManager, with the libraries that only it needs: unpacked and not installed, because an installed one would
//! take over the machine's own network.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use crate::cache::Cache;
use crate::unpacked::unpack;

const PACKAGES: &[&str] = &[
    "network-manager",
    "libnm0",
    "libndp0",
    "libteamdctl0",
    "libmm-glib0",
    "libbluetooth3",
];

/// The root of its files, if an earlier [`ensure`] created it.
pub(crate) fn find(cache: &Cache) -> Result<PathBuf> {
    let place = cache.root().join("networkmanager-debian");
    let program = place.join("usr/sbin/NetworkManager");
    if !program.is_file() {
        bail!(
            "{} is missing: run `cargo xtask parts` (or `cargo xtask test`)",
            program.display()
        );
    }
    Ok(place)
}

/// Downloads Debian's packages when they are missing.
pub(crate) fn ensure(cache: &Cache, mut progress: impl FnMut(&str)) -> Result<()> {
    if find(cache).is_ok() {
        return Ok(());
    }
    let _lock = cache.lock(&mut progress)?;
    if find(cache).is_ok() {
        return Ok(());
    }
    progress("NetworkManager: out of Debian's packages");
    let shop = cache.workshop("networkmanager")?;
    let tree = unpack(PACKAGES, &shop)?;
    fs::rename(&tree, cache.root().join("networkmanager-debian"))
        .context("move NetworkManager into place")?;
    let _ = fs::remove_dir_all(&shop);
    find(cache).map(drop)
}
