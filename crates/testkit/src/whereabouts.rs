//! The real plugin of whereabouts v0.9.4, run as a container runtime does, with the flat file that it requires.
//!
//! It enters no network namespace: tests check what it allocates and writes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result};
use berth_parts::Parts;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::call::PodCall;
use crate::programs::fed;

/// whereabouts on one node.
#[derive(Debug)]
pub struct Whereabouts {
    binary: PathBuf,
    dir: TempDir,
    node: String,
}

/// One interface of one container of one pod, in the namespace `ns`.
#[derive(Debug, Clone, Copy)]
pub struct Attachment<'a> {
    pub pod: &'a str,
    pub container: &'a str,
    pub ifname: &'a str,
}

impl Whereabouts {
    /// The context of the kubeconfig names the namespace of its objects.
    pub fn new(kubeconfig: &Path, node: &str) -> Result<Whereabouts> {
        let dir = tempfile::tempdir().context("create a directory for whereabouts")?;
        let flat = json!({ "kubernetes": { "kubeconfig": kubeconfig }, "log_level": "error" });
        let path = dir.path().join("whereabouts.conf");
        fs::write(&path, flat.to_string()).with_context(|| format!("write {}", path.display()))?;
        Ok(Whereabouts {
            binary: Parts::find()?.whereabouts(),
            dir,
            node: node.to_owned(),
        })
    }

    /// Its rights, for [`crate::Cluster::service_account`].
    pub fn rules() -> Value {
        json!([
            { "apiGroups": ["whereabouts.cni.cncf.io"], "resources": ["*"], "verbs": ["*"] },
            { "apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["*"] },
        ])
    }

    /// One call, for a macvlan network with this `ipam`.
    pub fn call(&self, verb: &str, who: Attachment<'_>, ipam: &Value) -> Result<Output> {
        let mut ipam = ipam.clone();
        ipam["type"] = json!("whereabouts");
        ipam["configuration_path"] = json!(self.dir.path().join("whereabouts.conf"));
        let conf = json!({ "cniVersion": "0.3.1", "name": "net", "type": "macvlan", "ipam": ipam });
        let call = PodCall::new("whereabouts", verb, who.pod)
            .of_container(who.container)
            .of_interface(who.ifname);
        let mut command = call.command(&self.binary);
        command.env("NODENAME", &self.node).stderr(Stdio::null());
        fed(&mut command, conf.to_string()).context("run whereabouts")
    }

    /// The sources that it is built from, with its manifests and installer.
    pub fn sources() -> Result<PathBuf> {
        let module = concat!(env!("CARGO_MANIFEST_DIR"), "/../parts/go/whereabouts");
        let name = "github.com/k8snetworkplumbingwg/whereabouts";
        let output = Command::new("go")
            .args(["mod", "download", "-json", name])
            .current_dir(module)
            .output()
            .context("start go")?;
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        let dir = answer["Dir"].as_str().filter(|_| output.status.success());
        let dir = dir.with_context(|| format!("go knows no {name}: {output:?}"))?;
        Ok(PathBuf::from(dir))
    }
}
