//! `berth-host`: reads and configures the network of the host that it runs on, with nmstate.
//!
//! Its commands, arguments and output are nmstatectl's, so that either can be named where Berth asks for a host program. It adds what
//! nmstatectl lacks without NetworkManager (`apply --kernel`): the way back is recorded before the first change ([`checkpoint`]), the
//! result is read back ([`kernel`]), and what fails, hangs or is not committed in time is undone ([`apply`]).
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod apply;
mod checkpoint;
mod clock;
mod error;
mod input;
mod kernel;
mod network_manager;
mod policy;
mod show;
mod undo;
mod worker;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{ArgAction, Args, Parser, Subcommand};

use error::HostError;

/// The version of nmstate, which `nmstatectl version` prints too.
const NMSTATE: &str = "2.2.62";

#[derive(Debug, Parser)]
#[command(
    name = "berth-host",
    version,
    about = "The host's network by nmstate, with nmstatectl's arguments",
    arg_required_else_help = true
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    /// Log more of what nmstate does.
    #[arg(short, global = true, action = ArgAction::Count)]
    verbose: u8,
    /// Do not log.
    #[arg(short, global = true)]
    quiet: bool,
    /// Where the record of an uncommitted change is kept; it must not outlive a reboot.
    #[arg(
        long,
        env = "BERTH_HOST_RUN",
        default_value = "/run/berth/host",
        global = true
    )]
    run_dir: PathBuf,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show the network state.
    #[command(alias = "s")]
    Show(show::Show),
    /// Generate the network state of a policy.
    #[command(alias = "p")]
    Policy(policy::Policy),
    /// Print a network state as nmstate understands it.
    #[command(aliases = ["f", "fmt"])]
    Format {
        /// The state, or - for stdin.
        #[arg(value_name = "STATE_FILE", default_value = "-")]
        file: PathBuf,
    },
    /// Apply a network state.
    #[command(alias = "a")]
    Apply(apply::Apply),
    /// Keep an applied change.
    Commit(Checkpoint),
    /// Undo an applied change that was not committed.
    Rollback(Checkpoint),
    /// Show the version of nmstate.
    Version,
    /// Undo the recorded change when its time is up.
    #[command(hide = true)]
    Guard,
    /// Apply the state on stdin: the part of an apply that may hang.
    #[command(hide = true)]
    Work(worker::Work),
}

#[derive(Debug, Args)]
struct Checkpoint {
    /// The change [default: the last one].
    #[arg(value_name = "CHECKPOINT", default_value = "")]
    name: String,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    log(cli.verbose, cli.quiet);
    match run(cli) {
        Ok(text) => say(&text),
        Err(error) => complain(&error),
    }
}

fn run(cli: Cli) -> Result<String, HostError> {
    let records = checkpoint::Records::new(cli.run_dir);
    match cli.command {
        Command::Show(command) => command.run(),
        Command::Policy(command) => command.run(),
        Command::Format { file } => Ok(serde_yaml::to_string(&input::state(&file)?)?),
        Command::Apply(command) => command.run(&records),
        Command::Commit(Checkpoint { name }) => undo::commit(&records, &name),
        Command::Rollback(Checkpoint { name }) => undo::rollback(&records, &name),
        Command::Version => Ok(NMSTATE.to_owned()),
        Command::Guard => undo::guard(&records).map(|()| String::new()),
        Command::Work(command) => command.run(),
    }
}

/// A closed pipe is no failure: the reader has seen enough.
fn say(text: &str) -> ExitCode {
    let _ = writeln!(std::io::stdout().lock(), "{text}");
    ExitCode::SUCCESS
}

#[allow(clippy::print_stderr)]
fn complain(error: &HostError) -> ExitCode {
    eprintln!("{error}");
    ExitCode::from(error.code())
}

/// nmstate logs by the `log` crate; stdout is for answers.
fn log(verbose: u8, quiet: bool) {
    let filter = match (quiet, verbose) {
        (true, _) => return,
        (false, 0) => "nmstate=warn",
        (false, 1) => "nmstate=debug",
        (false, _) => "debug",
    };
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_env_filter(filter)
        .init();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_that_of_the_crate() {
        let manifest = include_str!("../Cargo.toml");
        assert!(manifest.contains(&format!("nmstate = {{ version = \"={NMSTATE}\"")));
    }

    #[test]
    fn nmstatectls_command_lines_are_understood() {
        for line in [
            "show --json --kernel",
            "show eth1 -k -r",
            "policy --current F --json --output-captured F --captured F POLICY",
            "policy -c F -a F -o F POLICY",
            "apply --no-commit --timeout 480 STATE",
            "apply -k --no-verify -",
            "apply --memory-only --override-iface --show-secrets STATE",
            "apply",
            "commit",
            "rollback /org/freedesktop/NetworkManager/Checkpoint/1",
            "format -",
            "-v show",
            "version",
        ] {
            let words = std::iter::once("berth-host").chain(line.split(' '));
            Cli::try_parse_from(words).unwrap_or_else(|error| panic!("{line}: {error}"));
        }
    }
}
