//! `cargo xtask settings`: writes docs/settings.md from the code. A test of the command fails while the two differ.

use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::steps::bare_cargo;

pub fn run() -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut command = bare_cargo();
    command.args(["run", "--quiet", "--package", "berth", "--bin", "berth"]);
    let output = command
        .args(["--", "settings"])
        .stderr(std::process::Stdio::inherit())
        .output()
        .context("run cargo")?;
    let status = output.status;
    ensure!(status.success(), "berth settings ended with {status}");
    std::fs::write(root.join("docs/settings.md"), output.stdout).context("write docs/settings.md")
}
