//! Debian packages, unpacked and not installed: none of their services is ever started on the machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// Downloads packages into the directory and unpacks them into one tree below it.
pub(crate) fn unpack(packages: &[&str], shop: &Path) -> Result<PathBuf> {
    download(packages, shop)
        .with_context(|| format!("download Debian's packages {}", packages.join(" ")))?;
    let tree = shop.join("tree");
    for entry in fs::read_dir(shop)? {
        let path = entry?.path();
        if path.extension().is_some_and(|end| end == "deb") {
            let mut extract = Command::new("dpkg-deb");
            run(extract.arg("--extract").arg(&path).arg(&tree))?;
        }
    }
    Ok(tree)
}

fn download(packages: &[&str], shop: &Path) -> Result<()> {
    let download = || {
        let mut apt = Command::new("apt-get");
        let apt = apt.args(["--quiet", "download"]).args(packages);
        // apt's own user may have to write here.
        run(apt.current_dir(shop))
    };
    if download().is_err() {
        run(Command::new("apt-get").args(["--quiet", "update"]))?;
        download()?;
    }
    Ok(())
}

fn run(command: &mut Command) -> Result<()> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("start {command:?}"))?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        bail!("{command:?} failed ({}):\n{text}", output.status);
    }
    Ok(())
}
