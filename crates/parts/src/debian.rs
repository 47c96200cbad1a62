//! Debian packages: installed by apt-get if they are missing.

use std::os::unix::fs::MetadataExt;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// Package, and why tests need it.
const PACKAGES: &[(&str, &str)] = &[
    ("busybox-static", "the image that test pods run"),
    ("dbus-daemon", "a bus for a test's own NetworkManager"),
    ("iproute2", "network namespaces"),
    ("mount", "a node's own /run"),
    ("musl-tools", "the static plugin binary"),
    ("openssh-server", "the SFTP side of a VM"),
    ("runc", "containers"),
    ("strace", "a disk that fails"),
    (
        "util-linux",
        "entering namespaces, stopping parts with their test",
    ),
];

/// Installs missing packages and reports it, or reports what is needed if it can't.
pub fn debian(mut progress: impl FnMut(&str)) -> Result<()> {
    let missing: Vec<_> = PACKAGES
        .iter()
        .filter(|(package, _)| !installed(package))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let names: Vec<_> = missing.iter().map(|(package, _)| *package).collect();
    let needs: Vec<_> = missing
        .iter()
        .map(|(package, reason)| format!("{package} ({reason})"))
        .collect();
    let by_hand = format!("install by hand: apt-get install {}", names.join(" "));
    if !root() {
        bail!(
            "the tests need {} and only root can install packages; {by_hand}",
            needs.join(", ")
        );
    }
    progress(&format!("installing {}", names.join(" ")));
    apt(&["update"]).with_context(|| by_hand.clone())?;
    let mut install = vec!["install", "--yes", "--no-install-recommends"];
    install.extend(&names);
    apt(&install).with_context(|| by_hand.clone())?;
    Ok(())
}

fn installed(package: &str) -> bool {
    Command::new("dpkg-query")
        .args(["--show", "--showformat=${db:Status-Status}", package])
        .stdin(Stdio::null())
        .output()
        .is_ok_and(|output| output.status.success() && output.stdout == b"installed")
}

fn apt(arguments: &[&str]) -> Result<()> {
    let output = Command::new("apt-get")
        .arg("--quiet")
        .args(arguments)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdin(Stdio::null())
        .output()
        .context("start apt-get (the tests expect Debian or a relative of it)")?;
    if !output.status.success() {
        bail!(
            "apt-get {} failed ({}):\n{}",
            arguments.join(" "),
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(())
}

/// The owner of our own entry in /proc is our user; the standard library has no other way to ask.
fn root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|this| this.uid() == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_that_does_not_exist_is_not_installed() {
        assert!(!installed("berth-no-such-package"));
        assert!(installed("dpkg"));
    }
}
