//! The second command of the README: everything that must hold before a change lands.

use std::process::Command;

use anyhow::Result;

use crate::lanes;
use crate::parts;
use crate::steps::{self, cargo, step};

/// The plugin ships static: a node's libc is nobody's business.
pub const PLUGIN_TARGET: &str = "x86_64-unknown-linux-musl";

pub fn run() -> Result<()> {
    step("parts: Debian packages and the real cluster", || {
        parts::ensure().map(drop)
    })?;
    let deny = step("parts: cargo-deny", parts::cargo_deny)?;
    step("fmt", || cargo(&["fmt", "--all", "--", "--check"]))?;
    step("clippy", || {
        cargo(&[
            "clippy",
            "--workspace",
            "--all-targets",
            "--",
            "-D",
            "warnings",
        ])
    })?;
    step("deny: licences, bans, sources", || {
        steps::run(Command::new(&deny).args([
            "--workspace",
            "check",
            "licenses",
            "bans",
            "sources",
        ]))
    })?;
    step("plugin", plugin)?;
    step("build", || cargo(&["build", "--workspace"]))?;
    step("test", lanes::run)?;
    step("examples in the documentation", || {
        cargo(&["test", "--workspace", "--doc"])
    })
}

/// Builds `berth-cni` into `target/x86_64-unknown-linux-musl/plugin/`.
pub fn plugin() -> Result<()> {
    steps::run(Command::new("rustup").args(["target", "add", PLUGIN_TARGET]))?;
    cargo(&[
        "build",
        "--package",
        "berth-plugin",
        "--profile",
        "plugin",
        "--target",
        PLUGIN_TARGET,
    ])
}
