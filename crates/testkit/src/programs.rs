//! Programs that a test runs to their end, and what they need.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use anyhow::{Context, Result, bail};

/// Runs a command with this stdin, and returns its output.
pub fn fed(command: &mut Command, input: impl AsRef<[u8]>) -> io::Result<Output> {
    begun(command, input)?.wait_with_output()
}

/// Starts a command with this on its stdin, for a test that ends it early.
pub fn begun(command: &mut Command, input: impl AsRef<[u8]>) -> io::Result<Child> {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    if let Some(mut pipe) = child.stdin.take() {
        // A program that ends without reading reports that by its result, not by our broken pipe.
        let _ = pipe.write_all(input.as_ref());
    }
    Ok(child)
}

/// Variables that keep a `berth` from the machine's own files: whereabouts may be installed here, and the runtime's
/// result cache belongs to other containers. A test may set them again afterwards.
pub fn no_machine_files() -> [(&'static str, PathBuf); 3] {
    let none = std::env::temp_dir().join("berth-no-files");
    [
        ("BERTH_FLAT_FILES", none.join("whereabouts.conf")),
        ("BERTH_NODENAME_FILES", none.join("nodename")),
        ("BERTH_RESULT_CACHE", none.join("results")),
    ]
}

/// A Berth program, or a program that runs one, isolated from this machine: nothing of this process's environment, and
/// none of the machine's files. Every test starts its programs with this (`xtask/tests/isolation.rs`).
pub fn isolated(mut command: Command) -> Command {
    command.env_clear().envs(no_machine_files());
    command
}

/// The plugin, next to the `berth` of a test. It is another package's binary, which cargo does not build for `berth`'s
/// tests: built here, so that it is never outdated.
pub fn plugin_beside(berth: impl AsRef<Path>) -> Result<PathBuf> {
    let built = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--package", "berth-plugin"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .status()
        .context("start cargo")?;
    if !built.success() {
        bail!("the plugin does not build");
    }
    Ok(berth.as_ref().with_file_name("berth-cni"))
}

/// `berth-host`, next to the `berth` of a test. Built with the features of the whole workspace, as `cargo build
/// --workspace` does: those of the package alone would compile nmstate a second time.
pub fn host_beside(berth: impl AsRef<Path>) -> Result<PathBuf> {
    let built = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--workspace", "--bin", "berth-host"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .status()
        .context("start cargo")?;
    if !built.success() {
        bail!("berth-host does not build");
    }
    Ok(berth.as_ref().with_file_name("berth-host"))
}
