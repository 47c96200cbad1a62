//! The part of an apply that may hang, in a process of its own: it can be killed, and then changes nothing any more.

use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use nmstate::NetworkState;
use rustix::process::{Signal, set_parent_process_death_signal};

use crate::error::HostError;
use crate::input;
use crate::show::{Sorted, print};

/// How nmstate is to apply a state.
#[derive(Clone, Debug, Default, Args)]
pub struct How {
    /// Do not verify that the state was completely set.
    #[arg(long)]
    pub no_verify: bool,
    /// Configure the kernel only, without NetworkManager.
    #[arg(long, short)]
    pub kernel: bool,
    /// Wait for `commit`; without it the change is undone after the timeout.
    #[arg(long)]
    pub no_commit: bool,
    /// Do not make the state persistent.
    #[arg(long)]
    pub memory_only: bool,
    /// Replace an interface's settings instead of merging them with the present ones.
    #[arg(long)]
    pub override_iface: bool,
    /// Print secrets.
    #[arg(long, short)]
    pub show_secrets: bool,
    /// Seconds after which a change that hangs or is not committed is undone.
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub timeout: u32,
}

impl How {
    fn arguments(&self) -> Vec<String> {
        let flags = [
            (self.no_verify, "--no-verify"),
            (self.kernel, "--kernel"),
            (self.no_commit, "--no-commit"),
            (self.memory_only, "--memory-only"),
            (self.override_iface, "--override-iface"),
            (self.show_secrets, "--show-secrets"),
        ];
        let set = flags.into_iter().filter(|(set, _)| *set);
        let mut all: Vec<String> = set.map(|(_, flag)| flag.to_owned()).collect();
        all.extend(["--timeout".to_owned(), self.timeout.to_string()]);
        all
    }

    fn set(&self, state: &mut NetworkState) {
        state.set_kernel_only(self.kernel);
        state.set_verify_change(!self.no_verify);
        state.set_commit(!self.no_commit);
        state.set_timeout(self.timeout);
        state.set_memory_only(self.memory_only);
        state.set_override_iface(self.override_iface);
    }
}

#[derive(Debug, Args)]
pub struct Work {
    #[command(flatten)]
    how: How,
    /// The process that waits for this one: without it nothing is changed.
    #[arg(long)]
    parent: u32,
}

impl Work {
    /// Applies the state on stdin and prints what it changed.
    pub fn run(&self) -> Result<String, HostError> {
        let dies = set_parent_process_death_signal(Some(Signal::KILL));
        dies.map_err(|error| HostError::Kernel(error.to_string()))?;
        // It may have died before the signal was asked for.
        if std::os::unix::process::parent_id() != self.parent {
            return Err(HostError::Refused("the parent process is gone".to_owned()));
        }
        let text = input::text("-".as_ref())?;
        let mut desired: NetworkState = serde_json::from_str(&text)?;
        self.how.set(&mut desired);
        let mut current = NetworkState::new();
        current.set_kernel_only(self.how.kernel);
        current.set_running_config_only(true);
        current.retrieve()?;
        desired.apply()?;
        let mut changed = desired.gen_diff(&current).unwrap_or(desired);
        if !self.how.show_secrets {
            changed.hide_secrets();
        }
        print(&Sorted::of(changed)?, false)
    }
}

/// Applies a state in a worker, which is killed when the limit is over: what it printed, or why it failed.
pub fn apply(state: &NetworkState, how: &How, limit: Duration) -> Result<String, HostError> {
    let begun = Instant::now();
    let program = std::env::current_exe().map_err(HostError::io("find this program"))?;
    let mut child = Command::new(program)
        .args(["-q", "work", "--parent"])
        .arg(std::process::id().to_string())
        .args(how.arguments())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(HostError::io("start the worker"))?;
    let text = serde_json::to_string(state)?;
    let input = child.stdin.take();
    let feed = thread::spawn(move || input.map(|mut pipe| pipe.write_all(text.as_bytes())));
    let (said, complained) = (reader(child.stdout.take()), reader(child.stderr.take()));
    let ended = wait(&mut child, begun, limit)?;
    let _ = feed.join();
    let (said, complained) = (said.join(), complained.join());
    match ended {
        Ended::Well => Ok(said.unwrap_or_default().trim_end().to_owned()),
        Ended::Badly => {
            let why = complained.unwrap_or_default().trim().to_owned();
            Err(HostError::Input(why))
        }
        Ended::Killed => Err(HostError::Hung(limit)),
    }
}

enum Ended {
    Well,
    Badly,
    Killed,
}

fn wait(child: &mut Child, begun: Instant, limit: Duration) -> Result<Ended, HostError> {
    let broken = || HostError::io("wait for the worker");
    while begun.elapsed() < limit {
        match child.try_wait().map_err(broken())? {
            Some(status) if status.success() => return Ok(Ended::Well),
            Some(_) => return Ok(Ended::Badly),
            None => thread::sleep(Duration::from_millis(5)),
        }
    }
    // It may have ended in between: then there is nothing to kill.
    let _ = child.kill();
    child.wait().map_err(broken())?;
    Ok(Ended::Killed)
}

fn reader(pipe: Option<impl Read + Send + 'static>) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            let _ = pipe.read_to_end(&mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    })
}
