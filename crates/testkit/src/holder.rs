//! A process that does nothing but hold namespaces open: they are there while it lives, and it dies with the test.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Stdio};

use anyhow::{Context, Result, bail};
use rustix::process::Signal;

use crate::process::{guarded, inner, signal, spawn};

#[derive(Debug)]
pub(crate) struct Holder {
    child: Child,
    /// Of a process inside the namespaces, as this process sees it.
    pid: u32,
}

impl Holder {
    /// Unshares with these flags of unshare(1), runs the shell script inside, and holds what came of it. With
    /// `--fork` in the flags the script's shell is the first process of a PID namespace: when it is killed,
    /// the kernel kills everything else in there.
    pub fn new(flags: &[&str], script: &str, arguments: &[&OsStr]) -> Result<Holder> {
        let forks = flags.contains(&"--fork");
        // In a PID namespace the shell stays: while it waits it reaps the orphans, which sleep would not.
        // Elsewhere it goes: a child of it would have no death signal, and would hold on after a kill -9.
        let hold = if forks {
            "sleep 2147483647; exit 1"
        } else {
            "exec sleep 2147483647"
        };
        let script = format!("set -e\n{script}\necho held\n{hold}\n");
        let mut command = guarded("unshare");
        command
            .args(flags)
            .args(["--", "sh", "-c", &script, "holder"])
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = spawn(command).context("start unshare")?;
        // The word comes when the namespaces are made and set up; before it, they are the caller's own.
        let mut word = String::new();
        if let Some(out) = child.stdout.take() {
            BufReader::new(out)
                .read_line(&mut word)
                .context("hear from unshare")?;
        }
        if word.trim() != "held" {
            let _ = child.wait();
            let mut complaint = String::new();
            if let Some(mut error) = child.stderr.take() {
                let _ = error.read_to_string(&mut complaint);
            }
            bail!(
                "make namespaces (root is needed): unshare {}: {complaint}",
                flags.join(" ")
            );
        }
        let pid = if forks {
            inner(child.id())?
        } else {
            child.id()
        };
        Ok(Holder { child, pid })
    }

    pub fn pid(&self) -> u32 {
        self.pid
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // The innermost is killed and the outer one waited for: unshare ends when the last process of its PID
        // namespace has, so all of them are gone when this returns.
        if signal(self.pid, Signal::KILL).is_err() {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}
