//! `berth-host apply`: all of a state, or nothing of it.
//!
//! With `--kernel`: the way back is computed and recorded, a guard is started that takes it when the time is up, and only then the state
//! is applied, by a worker that can be killed. What was applied is read back. A failure, a hang and a missing commit all end in [`undo`].

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use clap::Args;
use nmstate::NetworkState;

use crate::checkpoint::{Locked, NAME, Record, Records};
use crate::error::HostError;
use crate::worker::How;
use crate::{input, kernel, network_manager, undo, worker};

#[derive(Debug, Args)]
pub struct Apply {
    /// The states, each by itself; - or nothing for stdin.
    #[arg(value_name = "STATE_FILE")]
    files: Vec<PathBuf>,
    #[command(flatten)]
    how: How,
}

impl Apply {
    pub fn run(&self, records: &Records) -> Result<String, HostError> {
        let stdin = [PathBuf::from("-")];
        let files = match self.files.as_slice() {
            [] => &stdin,
            files => files,
        };
        let mut said = String::new();
        for file in files {
            let state = input::state(file)?;
            said += &match self.how.kernel {
                true => apply(records, &state, &self.how)?,
                false => network_manager::apply(&state, &self.how)?,
            };
        }
        Ok(said)
    }
}

fn apply(records: &Records, desired: &NetworkState, how: &How) -> Result<String, HostError> {
    let locked = records.lock()?;
    settle_last(&locked)?;
    let before = kernel::read(desired)?;
    kernel::check_possible(desired, &before)?;
    let mut current = NetworkState::new();
    current.set_kernel_only(true);
    current.set_running_config_only(true);
    current.retrieve()?;
    let revert = desired.generate_revert(&current)?;
    let timeout = Duration::from_secs(how.timeout.into());
    let record = Record::new(desired.clone(), revert, before, timeout);
    locked.write(&record)?;
    if let Err(error) = guard(records) {
        // Nothing is changed yet, so there is nothing to undo.
        locked.remove()?;
        return Err(error);
    }
    let applied = worker::apply(desired, how, record.left());
    let done = applied.and_then(|said| match (how.no_verify, kernel::missing(desired)?) {
        (false, Some(missing)) => Err(HostError::Refused(format!(
            "the state was applied and read back: {missing}"
        ))),
        _ => Ok(said),
    });
    match done {
        Ok(said) if how.no_commit => Ok(said),
        Ok(said) => locked.remove().map(|()| said),
        Err(cause) => Err(undo::after(&locked, &record, &cause.to_string())),
    }
}

/// A change whose time is over is undone first; one that waits for its commit forbids another.
fn settle_last(locked: &Locked<'_>) -> Result<(), HostError> {
    match locked.read()? {
        None => Ok(()),
        Some(last) if last.is_over() => undo::undo(locked, &last),
        Some(last) => Err(HostError::Refused(format!(
            "the change `{NAME}` waits for its commit for {} more seconds; commit it or roll it back first",
            last.left().as_secs()
        ))),
    }
}

/// Starts the process that undoes the change when its time is up, whatever becomes of this one.
fn guard(records: &Records) -> Result<(), HostError> {
    let program = std::env::current_exe().map_err(HostError::io("find this program"))?;
    Command::new(program)
        .args(["-q", "--run-dir"])
        .arg(records.directory())
        .arg("guard")
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(HostError::io("start the guard"))?;
    Ok(())
}
