//! A child process that can't outlive its test, and its log.
//!
//! Guarantees: the child is killed when this process ends, however it ends (PR_SET_PDEATHSIG, set by util-linux's
//! setpriv, which then becomes the child). The signal is tied to the *thread* that forked, and tests run in threads
//! that end: so one thread, which never ends, forks for all.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process};

/// How long a process may take to stop.
const STANDING_LIMIT: Duration = Duration::from_secs(10);

struct Order {
    command: Command,
    reply: Sender<io::Result<Child>>,
}

/// Forks from the thread that lives as long as the process.
pub(crate) fn spawn(command: Command) -> io::Result<Child> {
    static DESK: OnceLock<Mutex<Sender<Order>>> = OnceLock::new();
    let desk = DESK.get_or_init(|| {
        let (orders, inbox) = channel::<Order>();
        // If the thread can't start, the inbox is dropped and the send below fails.
        let _ = std::thread::Builder::new()
            .name("testkit-spawn".into())
            .spawn(move || {
                for mut order in inbox {
                    let _ = order.reply.send(order.command.spawn());
                }
            });
        Mutex::new(orders)
    });
    let gone = || io::Error::other("the thread that starts processes is gone");
    let (reply, answer) = channel();
    desk.lock()
        .send(Order { command, reply })
        .map_err(|_| gone())?;
    answer.recv().map_err(|_| gone())?
}

/// A command whose process dies with the thread that starts it; more arguments may follow. [`Process::start`] starts it
/// from a thread that lives as long as the test process.
pub fn guarded(program: impl AsRef<Path>) -> Command {
    let mut command = Command::new("setpriv");
    command
        .args(["--pdeathsig", "KILL", "--"])
        .arg(program.as_ref());
    command
}

/// [`guarded`], in a network namespace. nsenter and not `ip netns exec`, which remounts /sys, where a kubelet then
/// finds no cgroups.
pub(crate) fn guarded_in(netns: Option<&Path>, program: &Path) -> Command {
    let Some(netns) = netns else {
        return guarded(program);
    };
    let mut command = guarded("nsenter");
    command
        .arg(format!("--net={}", netns.display()))
        .arg("--")
        .arg(program);
    command
}

/// Sends a signal to a process by its PID.
pub(crate) fn signal(pid: u32, signal: Signal) -> Result<()> {
    let pid = i32::try_from(pid)
        .ok()
        .and_then(Pid::from_raw)
        .with_context(|| format!("{pid} is not a process"))?;
    kill_process(pid, signal).with_context(|| format!("signal process {pid:?}"))
}

/// The only child of a process that waits for it: what nsenter or unshare forked into a PID namespace.
pub(crate) fn inner(pid: u32) -> Result<u32> {
    let path = format!("/proc/{pid}/task/{pid}/children");
    let children = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
    children
        .split_whitespace()
        .next()
        .and_then(|child| child.parse().ok())
        .with_context(|| format!("process {pid} has no child"))
}

/// A running process: killed on drop, and when the test process ends.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
    /// The child is an nsenter that forked into a PID namespace: signals are for what it forked.
    entered: bool,
}

impl Process {
    /// Starts a [`guarded`] command; its output is appended to `<logs>/<name>.log`.
    pub fn start(name: &str, mut command: Command, logs: &Path) -> Result<Process> {
        let log = logs.join(format!("{name}.log"));
        let output = File::options()
            .create(true)
            .append(true)
            .open(&log)
            .with_context(|| format!("open {}", log.display()))?;
        command
            .stdin(Stdio::null())
            .stdout(output.try_clone().context("share the log")?)
            .stderr(output);
        let child = spawn(command).with_context(|| format!("start {name}"))?;
        Ok(Process {
            name: name.to_owned(),
            child,
            log,
            entered: false,
        })
    }

    /// The same for a command that enters a PID namespace.
    pub(crate) fn entered(name: &str, command: Command, logs: &Path) -> Result<Process> {
        let mut process = Process::start(name, command, logs)?;
        process.entered = true;
        Ok(process)
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        self.child
            .try_wait()
            .with_context(|| format!("look after {}", self.name))
    }

    /// The process itself, not the one that entered its namespaces.
    pub fn pid(&self) -> Result<u32> {
        match self.entered {
            true => inner(self.child.id()),
            false => Ok(self.child.id()),
        }
    }

    pub(crate) fn signal(&self, which: Signal) -> Result<()> {
        signal(self.pid()?, which).with_context(|| format!("signal {}", self.name))?;
        if self.entered && which == Signal::CONT {
            // nsenter stops itself when its child is stopped.
            signal(self.child.id(), which).with_context(|| format!("resume {}", self.name))?;
        }
        Ok(())
    }

    /// SIGSTOP; every thread is stopped when this returns.
    pub fn pause(&self) -> Result<()> {
        self.signal(Signal::STOP)?;
        let tasks = format!("/proc/{}/task", self.pid()?);
        let end = Instant::now() + STANDING_LIMIT;
        while Instant::now() < end {
            let states = fs::read_dir(&tasks)?.filter_map(|task| {
                let stat = fs::read_to_string(task.ok()?.path().join("stat")).ok()?;
                // `pid (name) state …`, and a name may contain anything.
                stat.rsplit_once(") ")?.1.chars().next()
            });
            if states.into_iter().all(|state| state == 'T') {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        bail!("{tasks}: not stopped within {STANDING_LIMIT:?}")
    }

    /// SIGCONT.
    pub fn resume(&self) -> Result<()> {
        self.signal(Signal::CONT)
    }

    /// Its peak resident memory so far, in kilobytes.
    pub fn peak_rss(&self) -> Result<u64> {
        let path = format!("/proc/{}/status", self.pid()?);
        let text = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
        text.lines()
            .find_map(|line| {
                line.strip_prefix("VmHWM:")?
                    .trim()
                    .strip_suffix(" kB")?
                    .parse()
                    .ok()
            })
            .with_context(|| format!("{path} has no VmHWM"))
    }

    /// Where its output goes.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// kill -9; it is gone when this returns.
    pub fn kill(&mut self) -> Result<()> {
        // It may have ended already.
        if self.entered
            && let Ok(pid) = inner(self.child.id())
        {
            let _ = signal(pid, Signal::KILL);
            let _ = signal(self.child.id(), Signal::CONT);
        } else {
            let _ = self.child.kill();
        }
        self.child
            .wait()
            .with_context(|| format!("wait for the end of {}", self.name))?;
        Ok(())
    }

    /// The last lines of the log, for an error's text.
    pub fn tail(&self) -> String {
        let text = fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<_> = text.lines().collect();
        format!(
            "last lines of {}:\n{}",
            self.name,
            lines[lines.len().saturating_sub(30)..].join("\n")
        )
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_outlives_the_thread_that_asked_for_it() {
        let dir = tempfile::tempdir().unwrap();
        let logs = dir.path().to_owned();
        let mut process = std::thread::spawn(move || {
            let mut sleep = guarded("sleep");
            sleep.arg("600");
            Process::start("sleep", sleep, &logs).unwrap()
        })
        .join()
        .unwrap();
        std::thread::sleep(std::time::Duration::from_millis(200));
        assert!(process.ended().unwrap().is_none());
        process.kill().unwrap();
        assert!(process.ended().unwrap().is_some());
    }
}
