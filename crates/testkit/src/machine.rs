//! A separate machine for the CNI project's plugins, driven by cnitool as a runtime would.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::Output;

use anyhow::{Context, Result};
use berth_parts::Parts;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::netns::Netns;

/// A network namespace with an uplink `eth0`, and one network called `net`.
#[derive(Debug)]
pub struct Machine {
    host: Netns,
    _switch: Netns,
    parts: Parts,
    conf: TempDir,
}

impl Machine {
    /// A machine whose network uses `plugin`, with `ipam` for its addresses.
    pub fn with_network(plugin: Value, ipam: Value) -> Result<Machine> {
        let (host, switch) = (Netns::new()?, Netns::new()?);
        host.veth("eth0", &switch, "uplink")?;
        let mut plugin = plugin;
        plugin["ipam"] = ipam;
        let list = json!({"cniVersion": "1.1.0", "name": "net", "plugins": [plugin]});
        let conf = tempfile::tempdir().context("make a directory for a network")?;
        fs::write(conf.path().join("net.conflist"), list.to_string()).context("write a network")?;
        fs::create_dir(conf.path().join("cache")).context("make cnitool's cache")?;
        Ok(Machine {
            host,
            _switch: switch,
            parts: Parts::find()?,
            conf,
        })
    }

    pub fn host(&self) -> &Netns {
        &self.host
    }

    /// `cnitool <verb> net <pod>` with the IPAM plugin in `bin`, with additional environment `variables`, and a
    /// separate cache instead of the machine's.
    pub fn cnitool<V: AsRef<OsStr>>(
        &self,
        verb: &str,
        pod: &Netns,
        bin: &Path,
        variables: &[(&str, V)],
    ) -> Result<Output> {
        let script = "mkdir -p /var/lib/cni && mount --bind \"$0\" /var/lib/cni && exec \"$@\"";
        let path = format!("{}:{}", bin.display(), self.parts.cni_dir().display());
        self.host
            .command("unshare")
            .args(["--mount", "sh", "-c", script])
            .arg(self.conf.path().join("cache"))
            .arg(self.parts.cnitool())
            .args([verb, "net"])
            .arg(pod.path())
            .env("NETCONFPATH", self.conf.path())
            .env("CNI_PATH", path)
            .envs(variables.iter().map(|(name, value)| (name, value)))
            .output()
            .context("run cnitool")
    }
}
