//! The second command of the README: everything that must pass before a change lands.

use std::process::Command;

use anyhow::Result;
use berth_parts::Tool;
use clap::Args;

use crate::steps::{self, cargo, step};
use crate::{advisories, bench, fuzz, parallel_tests, parts};

/// The plugin ships static: it must not depend on a node's libc.
pub const PLUGIN_TARGET: &str = "x86_64-unknown-linux-musl";

#[derive(Args)]
pub struct Test {
    /// Also a VM pool of 5,000, states of policies read by the real nmstatectl, peak memory in a large cluster, and every
    /// fuzz target and the black-box fuzzer for a minute each, after all tests.
    #[arg(long)]
    long: bool,
}

impl Test {
    pub fn run(&self) -> Result<()> {
        run()?;
        if self.long {
            step("a VM pool of 5,000 in several ConfigMaps", many_vms)?;
            step("states of policies, read by nmstatectl", by_nmstatectl)?;
            step("peak memory in a large cluster", bench::memory)?;
            fuzz::all(fuzz::MINUTE)?;
            step("black-box fuzzer", || fuzz::black_box(fuzz::MINUTE))?;
        }
        Ok(())
    }
}

fn many_vms() -> Result<()> {
    let test = "shards::one_pool_over_several_configmaps_allocates_no_vm_twice";
    let mut cargo = steps::bare_cargo();
    steps::run(
        cargo
            .args(["test", "--package", "berth", "--test", "vms", test])
            .env("BERTH_VMS", "5000"),
    )
}

/// Berth's states and nmpolicyctl's, both as `nmstatectl format` reads them; Berth itself runs berth-host.
fn by_nmstatectl() -> Result<()> {
    let nmstatectl = parts::tool(Tool::Nmstatectl)?;
    let mut cargo = steps::bare_cargo();
    steps::run(
        cargo
            .args(["test", "--package", "berth", "--test", "policy"])
            .env("BERTH_NMSTATECTL", nmstatectl),
    )
}

fn run() -> Result<()> {
    step("parts: Debian packages and the real cluster", || {
        parts::ensure().map(drop)
    })?;
    let deny = step("parts: cargo-deny", || parts::tool(Tool::Deny))?;
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
    step("deny: advisories", || advisories::check(&deny))?;
    step("plugin", plugin)?;
    step("build", || cargo(&["build", "--workspace"]))?;
    step("test", parallel_tests::run)?;
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
