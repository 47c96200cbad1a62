//! What the nodes of a cluster share: the API server, the controller manager, the scheduler, and the network between
//! them.
//!
//! All of it is in one network namespace. A bridge inside, `lan`, connects the nodes' interfaces.

use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU8, Ordering};

use anyhow::{Context, Result};
use serde_json::json;

use crate::cluster::{Cluster, Options};
use crate::kubeconfig::{self, Credential};
use crate::machine_lock::Turn;
use crate::netns::Netns;
use crate::process::{Process, guarded_in};

/// The bridge's own address; nodes count from .1.
const GATEWAY: &str = "10.210.0.254";

const DEFINITION: &str = include_str!("network-attachment-definition.yaml");

#[derive(Debug)]
pub(crate) struct ControlPlane {
    _scheduler: Process,
    _controllers: Process,
    pub cluster: Cluster,
    pub lan: Netns,
    /// Multus' kubeconfig.
    pub multus_kubeconfig: PathBuf,
    nodes: AtomicU8,
    // Last: no other process starts before all of it is gone.
    _turn: Turn,
}

impl ControlPlane {
    pub async fn start(options: Options) -> Result<ControlPlane> {
        let turn = Turn::take().await?;
        let lan = Netns::new()?;
        lan.ip(&["link", "add", "lan", "type", "bridge"])?;
        lan.ip(&["addr", "add", &format!("{GATEWAY}/24"), "dev", "lan"])?;
        lan.ip(&["link", "set", "lan", "up"])?;
        let cluster = Cluster::start_with(Options {
            netns: Some(lan.path().to_owned()),
            service_account_admission: true,
            ..options
        })
        .await?;
        let controllers = start(&cluster, "kube-controller-manager", |command| {
            signs(&cluster, command);
        })?;
        let scheduler = start(&cluster, "kube-scheduler", |_| ())?;
        cluster.apply(DEFINITION).await?;
        let rules = json!([
            { "apiGroups": ["k8s.cni.cncf.io"], "resources": ["*"], "verbs": ["*"] },
            { "apiGroups": [""], "resources": ["pods", "pods/status"], "verbs": ["get", "update", "patch"] },
            { "apiGroups": ["", "events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch", "update"] },
        ]);
        let multus = cluster
            .service_account("kube-system", "multus", rules)
            .await?;
        Ok(ControlPlane {
            _scheduler: scheduler,
            _controllers: controllers,
            lan,
            multus_kubeconfig: multus.kubeconfig().to_owned(),
            cluster,
            nodes: AtomicU8::new(0),
            _turn: turn,
        })
    }

    /// The number of a new node, from 1.
    pub fn enrol(&self) -> u8 {
        self.nodes.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Connects a node's namespace to the bridge: `eth0` inside, with an address and a default route.
    pub fn connect(
        &self,
        number: u8,
        pid: u32,
        ip: impl Fn(&[&str]) -> Result<String>,
    ) -> Result<()> {
        let (port, pid) = (format!("node{number}"), pid.to_string());
        self.lan.ip(&[
            "link", "add", &port, "type", "veth", "peer", "name", "eth0", "netns", &pid,
        ])?;
        self.lan
            .ip(&["link", "set", &port, "master", "lan", "up"])?;
        ip(&[
            "addr",
            "add",
            &format!("{}/24", address(number)),
            "dev",
            "eth0",
        ])?;
        ip(&["link", "set", "eth0", "up"])?;
        ip(&["route", "add", "default", "via", GATEWAY])?;
        Ok(())
    }
}

/// The address of a node's eth0.
pub(crate) fn address(number: u8) -> String {
    format!("10.210.0.{number}")
}

/// What a controller manager makes tokens with. Each of its controllers has rights of its own; the manager's own are
/// few.
fn signs(cluster: &Cluster, command: &mut Command) {
    let (token_key, authority) = cluster.signing_files();
    command
        .arg(format!(
            "--service-account-private-key-file={}",
            token_key.display()
        ))
        .arg(format!("--root-ca-file={}", authority.display()))
        .arg("--use-service-account-credentials=true");
}

impl Cluster {
    /// The controller manager with its garbage collector alone: objects whose owners are gone are deleted.
    pub fn garbage_collector(&self) -> Result<Process> {
        start(self, "kube-controller-manager", |command| {
            signs(self, command);
            // No port: several clusters may have one on this machine.
            command.args([
                "--controllers=garbage-collector-controller",
                "--secure-port=0",
            ]);
        })
    }

    /// A kubeconfig with a certificate for this user.
    pub(crate) fn user_kubeconfig(
        &self,
        file: &str,
        user: &str,
        group: Option<&str>,
    ) -> Result<PathBuf> {
        let identity = self.authority.client(file, user, group)?;
        let path = self.dir().join(format!("{file}.kubeconfig"));
        let credential = Credential::Certificate(&identity);
        kubeconfig::write(
            &path,
            &self.url(),
            &self.authority.pem(),
            credential,
            "default",
        )?;
        Ok(path)
    }
}

/// Starts a controller of the control plane with their common arguments.
fn start(cluster: &Cluster, name: &str, more: impl FnOnce(&mut Command)) -> Result<Process> {
    let kubeconfig = cluster.user_kubeconfig(name, &format!("system:{name}"), None)?;
    let program = cluster
        .parts
        .kube()
        .parent()
        .map(|dir| dir.join(name))
        .with_context(|| format!("where {name} is"))?;
    let mut command = guarded_in(cluster.netns(), &program);
    command
        .arg(format!("--kubeconfig={}", kubeconfig.display()))
        .args(["--leader-elect=false", "--bind-address=127.0.0.1"]);
    more(&mut command);
    Process::start(name, command, &cluster.dir().join("logs"))
}
