//! A scratch directory that is gone when the test process is, even after kill -9.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};
use tempfile::TempDir;

use crate::process::spawn;

/// Waits for the end of its standard input, which is the end of the test process, and then sweeps. It
/// lets the parts die first: they get their signal at the same moment.
const SWEEP: &str = r#"
trap '' HUP INT QUIT TERM
read -r _
sleep 0.5
for cgroup in "$2"; do
    [ -n "$cgroup" ] && find /sys/fs/cgroup -depth -type d -path "*/$cgroup*" -exec rmdir {} \; 2>/dev/null
done
rm -rf -- "$1" || { sleep 1; rm -rf -- "$1"; }
"#;

#[derive(Debug)]
pub(crate) struct Scratch {
    dir: TempDir,
    janitor: Child,
}

impl Scratch {
    pub fn new(name: &str) -> Result<Scratch> {
        Scratch::with_cgroup(name, "")
    }

    /// A scratch directory whose janitor also removes this cgroup of every hierarchy.
    pub fn with_cgroup(name: &str, cgroup: &str) -> Result<Scratch> {
        let dir = tempfile::Builder::new()
            .prefix(&format!("berth-{name}-"))
            .tempdir()
            .context("create a scratch directory")?;
        let mut command = Command::new("sh");
        command
            .args(["-c", SWEEP, "janitor"])
            .arg(dir.path())
            .arg(cgroup)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        // A group of its own: who kills the test's group shall not kill who cleans up after it.
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let janitor = spawn(command).context("start the janitor of a scratch directory")?;
        Ok(Scratch { dir, janitor })
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // The directory's own drop follows; the janitor is for deaths without drops.
        let _ = self.janitor.kill();
        let _ = self.janitor.wait();
    }
}
