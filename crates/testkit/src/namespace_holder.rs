//! A process that holds namespaces open: they exist while it runs, and it ends with the test.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Stdio};

use anyhow::{Context, Result, bail};
use rustix::process::Signal;

use crate::process::{guarded, inner, signal, spawn};

#[derive(Debug)]
pub(crate) struct NamespaceHolder {
    child: Child,
    /// The PID of a process inside the namespaces, as this process sees it.
    pid: u32,
}

impl NamespaceHolder {
    /// Unshares with these flags of unshare(1), runs the shell script inside, and holds the result. With `--fork` in
    /// the flags, the script's shell is the first process of a PID namespace: when it is killed, the kernel kills
    /// everything else inside.
    pub fn new(flags: &[&str], script: &str, arguments: &[&OsStr]) -> Result<NamespaceHolder> {
        let forks = flags.contains(&"--fork");
        // In a PID namespace the shell stays: while it waits it reaps orphans, which sleep would not. Elsewhere it is
        // replaced: a child of it would have no death signal and would survive a kill -9.
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
        // The line arrives when the namespaces are set up; before, they are the caller's own.
        let mut word = String::new();
        if let Some(out) = child.stdout.take() {
            BufReader::new(out)
                .read_line(&mut word)
                .context("read from unshare")?;
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
        Ok(NamespaceHolder { child, pid })
    }

    pub fn pid(&self) -> u32 {
        self.pid
    }
}

impl Drop for NamespaceHolder {
    fn drop(&mut self) {
        // The innermost is killed and the outer one waited for: unshare ends after the last process of its PID
        // namespace, so all of them are gone when this returns.
        if signal(self.pid, Signal::KILL).is_err() {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}
