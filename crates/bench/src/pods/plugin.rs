//! A CNI plugin, called as a container runtime calls it: a process per call, from its start to its end.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use berth_core::Address;
use berth_testkit::{PodCall, fed};
use serde_json::{Value, json};

/// One plugin with one network's configuration.
#[derive(Clone, Debug)]
pub struct Plugin {
    pub name: &'static str,
    pub binary: PathBuf,
    pub environment: Vec<(&'static str, OsString)>,
    /// The `ipam` object.
    pub ipam: Value,
}

/// A call that succeeded.
#[derive(Clone, Copy, Debug)]
pub struct Added {
    pub address: Address,
    pub took: Duration,
}

/// The container of a pod: as long as a runtime's ids, because they are written into the pool.
pub fn container(pod: &str) -> String {
    format!("{pod:0<64}").replace(|c: char| !c.is_ascii_alphanumeric(), "f")
}

pub fn arguments(pod: &str) -> String {
    format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME={pod}")
}

impl Plugin {
    pub fn with(mut self, key: &str, value: impl Into<Value>) -> Plugin {
        self.ipam[key] = value.into();
        self
    }

    pub fn within(mut self, name: &'static str, value: impl Into<OsString>) -> Plugin {
        self.environment.push((name, value.into()));
        self
    }

    pub fn configuration(&self) -> String {
        json!({"cniVersion": "0.3.1", "name": "bench", "type": "macvlan", "ipam": self.ipam})
            .to_string()
    }

    pub fn version(&self) -> Result<Duration> {
        let (took, stdout) = self.run("VERSION", "none")?;
        if !stdout.contains("supportedVersions") {
            bail!("{}: VERSION answered {stdout:?}", self.name);
        }
        Ok(took)
    }

    pub fn add(&self, pod: &str) -> Result<Added> {
        let (took, stdout) = self.run("ADD", pod)?;
        let result: Value = serde_json::from_str(&stdout)
            .with_context(|| format!("{}: ADD answered {stdout:?}", self.name))?;
        let text = result["ips"][0]["address"].as_str().unwrap_or_default();
        let bare = text.split('/').next().unwrap_or_default();
        let address = Address::parse_lenient(bare)
            .with_context(|| format!("{}: ADD returned no address: {stdout}", self.name))?;
        Ok(Added { address, took })
    }

    pub fn del(&self, pod: &str) -> Result<()> {
        self.run("DEL", pod).map(drop)
    }

    fn run(&self, verb: &str, pod: &str) -> Result<(Duration, String)> {
        let mut command = Command::new(&self.binary);
        command
            .env_clear()
            .envs(self.environment.iter().map(|(name, value)| (name, value)));
        let call = PodCall::new(self.name, verb, pod)
            .in_namespace("default", pod)
            .of_container(&container(pod));
        call.put_into(&mut command);
        let (took, output) = timed(&mut command, &self.configuration())
            .with_context(|| format!("run {}", self.binary.display()))?;
        let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
        if !output.status.success() {
            bail!("{}: {verb} of {pod} failed: {}", self.name, stdout.trim());
        }
        Ok((took, stdout))
    }
}

/// The time of starting a program that does nothing.
pub fn spawn(program: &Path) -> Result<Duration> {
    let (took, output) = timed(Command::new(program).env_clear(), "")?;
    if !output.status.success() {
        bail!("{} failed", program.display());
    }
    Ok(took)
}

fn timed(command: &mut Command, stdin: &str) -> Result<(Duration, std::process::Output)> {
    command.stderr(Stdio::null());
    let started = Instant::now();
    let output = fed(command, stdin)?;
    Ok((started.elapsed(), output))
}
