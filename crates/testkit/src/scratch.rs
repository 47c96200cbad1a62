//! A scratch directory, and a cgroup, that are removed when the test process ends, even after kill -9.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};
use tempfile::TempDir;

use crate::process::spawn;

/// Waits for the end of its standard input, which is the end of the test process, and then cleans up. It lets the parts
/// die first: they get their signal at the same moment.
const JANITOR: &str = r#"
trap '' HUP INT QUIT TERM
read -r _
sleep 0.5
"#;

/// Removes every directory of a cgroup (version 1 or 2), deepest first; retries one that a dying process is still in.
const SWEEP_CGROUP: &str = r#"
if [ -n "$1" ]; then
    for try in 1 2 3 4 5 6 7 8 9 10; do
        find /sys/fs/cgroup -depth -type d -path "*/$1*" -exec rmdir {} \; 2>/dev/null
        [ -z "$(find /sys/fs/cgroup -maxdepth 2 -type d -name "$1")" ] && break
        sleep 0.1
    done
fi
"#;

const SWEEP_FILES: &str = r#"
rm -rf -- "$2" || { sleep 1; rm -rf -- "$2"; }
"#;

#[derive(Debug)]
pub(crate) struct Scratch {
    dir: TempDir,
    cgroup: String,
    janitor: Child,
}

impl Scratch {
    pub fn new(name: &str) -> Result<Scratch> {
        Scratch::with_cgroup(name, "")
    }

    /// A scratch directory that also removes a cgroup.
    pub fn with_cgroup(name: &str, cgroup: &str) -> Result<Scratch> {
        let keep = std::env::var_os("BERTH_KEEP_SCRATCH").is_some();
        let dir = tempfile::Builder::new()
            .prefix(&format!("berth-{name}-"))
            .disable_cleanup(keep)
            .tempdir()
            .context("create a scratch directory")?;
        let mut command = Command::new("sh");
        command
            .arg("-c")
            .arg([JANITOR, SWEEP_CGROUP, if keep { "" } else { SWEEP_FILES }].concat())
            .args(["janitor", cgroup])
            .arg(dir.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        // Its own process group: killing the test's group must not kill the cleanup.
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let janitor = spawn(command).context("start the janitor of a scratch directory")?;
        Ok(Scratch {
            dir,
            cgroup: cgroup.to_owned(),
            janitor,
        })
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // The directory's own drop follows; the janitor is for processes that end without drops.
        let _ = self.janitor.kill();
        let _ = self.janitor.wait();
        let _ = Command::new("sh")
            .args(["-c", SWEEP_CGROUP, "sweep", &self.cgroup])
            .status();
    }
}
