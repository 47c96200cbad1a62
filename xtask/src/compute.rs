//! `cargo xtask compute`: the tests' local Google Cloud as a program.

use std::process::Command;

use anyhow::{Context, ensure};

#[derive(clap::Args)]
pub struct Compute {
    /// Options of the program; `--help` lists them.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    options: Vec<String>,
}

impl Compute {
    pub fn run(self) -> anyhow::Result<()> {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let status = Command::new(cargo)
            .args(["run", "--quiet", "-p", "berth-testcloud", "--"])
            .args(self.options)
            .status()
            .context("run cargo")?;
        ensure!(status.success(), "the local cloud ended with {status}");
        Ok(())
    }
}
