//! Known vulnerabilities of our dependencies (RustSec), if their database can be reached.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::steps;

/// Fails on an advisory that deny.toml does not excuse. If the database can't be reached, prints why and succeeds: a
/// machine without access must be able to run the tests. Every other failure is one.
#[allow(clippy::print_stderr)]
pub fn check(deny: &Path) -> Result<()> {
    let fetched = Command::new(deny)
        .args(["--workspace", "fetch", "db"])
        .stdin(Stdio::null())
        .output()
        .context("start cargo-deny")?;
    if !fetched.status.success() {
        let text = String::from_utf8_lossy(&fetched.stderr);
        let Some(reason) = unreachable(&text) else {
            bail!("cargo deny fetch db: {text}");
        };
        eprintln!(
            "    the advisory database can't be reached, so advisories were NOT checked: {reason}"
        );
        return Ok(());
    }
    steps::run(Command::new(deny).args(["--workspace", "--offline", "check", "advisories"]))
}

/// Why the database can't be reached, if that is cargo-deny's error: git's message is the only sign of it.
fn unreachable(text: &str) -> Option<&str> {
    const SIGNS: [&str; 8] = [
        "could not resolve host",
        "could not resolve proxy",
        "failed to connect",
        "connect tunnel failed",
        "connection refused",
        "timed out",
        "network is unreachable",
        "the requested url returned error",
    ];
    if !text.contains("failed to fetch advisory database") {
        return None;
    }
    let is_sign = |line: &&str| {
        let line = line.to_ascii_lowercase();
        SIGNS.iter().any(|sign| line.contains(sign))
    };
    text.lines().map(str::trim).find(is_sign)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_database_that_can_not_be_reached_is_gone_without() {
        let offline = "2026-01-01 [ERROR] failed to fetch advisory database https://github.com/RustSec/advisory-db with cli\n\
            Caused by:\n    fatal: unable to access 'https://github.com/RustSec/advisory-db/': Could not resolve host: github.com\n";
        let reason = unreachable(offline).unwrap();
        assert!(reason.contains("Could not resolve host"), "{reason}");
        for other in [
            "",
            "error[unexpected-keys]: deny.toml has the unexpected key `advisorys`",
            "failed to fetch advisory database x with cli\nCaused by:\n    fatal: not a git repository",
            "failed to acquire advisory database lock",
        ] {
            assert_eq!(unreachable(other), None, "{other}");
        }
    }
}
