//! A `berth agent` process, as on a node.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use serde_json::{Value, json};

use crate::process::{Process, guarded};
use crate::programs::isolated;

/// Long enough for a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);

/// An agent that accepts calls; killed on drop, and when the test process ends.
#[derive(Debug)]
pub struct Agent {
    pub process: Process,
    pub socket: PathBuf,
}

impl Agent {
    /// The rights of an agent that serves pods, for [`crate::Cluster::service_account`].
    pub fn rules() -> Value {
        let verbs = [
            "get", "list", "watch", "create", "update", "patch", "delete",
        ];
        json!([
            { "apiGroups": ["whereabouts.cni.cncf.io"], "resources": ["ippools", "overlappingrangeipreservations"], "verbs": verbs },
            { "apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": verbs },
            { "apiGroups": [""], "resources": ["nodes", "pods"], "verbs": ["get", "list", "watch"] },
            { "apiGroups": [""], "resources": ["events"], "verbs": ["create"] },
            { "apiGroups": ["k8s.cni.cncf.io"], "resources": ["network-attachment-definitions"], "verbs": ["list"] },
        ])
    }

    /// Starts the binary isolated from this process's environment and the machine's files, with socket, database and
    /// log in `dir`, all under one name; `more` adds arguments. Returns when it accepts calls.
    pub fn start(
        berth: impl AsRef<Path>,
        dir: &Path,
        name: &str,
        more: impl FnOnce(&mut Command),
    ) -> Result<Agent> {
        let socket = dir.join(format!("{name}.sock"));
        let mut command = isolated(guarded(berth));
        command
            // Where setpriv is.
            .env("PATH", "/usr/bin:/bin")
            .env("BERTH_SOCKET", &socket)
            .env("BERTH_DATABASE", dir.join(format!("{name}.db")))
            .arg("agent");
        more(&mut command);
        let mut process = Process::start(name, command, dir)?;
        let started = Instant::now();
        // A killed agent leaves its socket behind, so its existence proves nothing.
        while UnixStream::connect(&socket).is_err() {
            if let Some(status) = process.ended()? {
                bail!("the agent ended with {status}; {}", process.tail());
            }
            if started.elapsed() > TIMEOUT {
                bail!("the agent takes no calls; {}", process.tail());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(Agent { process, socket })
    }
}
