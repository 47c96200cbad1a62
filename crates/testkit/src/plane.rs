//! What nodes have in common: the API server, the controller manager, the scheduler, and the wire between them.
//!
//! All of it is in one network namespace. A bridge in there, `lan`, joins the nodes' interfaces.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU8, Ordering};

use anyhow::{Context, Result};
use serde_json::json;

use crate::cluster::{Cluster, Options};
use crate::kubeconfig::{self, Credential};
use crate::netns::Netns;
use crate::process::{Process, guarded_in};
use crate::turn::Turn;

/// The bridge's own address; nodes count up from .1.
const GATEWAY: &str = "10.210.0.254";

const DEFINITION: &str = include_str!("network-attachment-definition.yaml");

#[derive(Debug)]
pub(crate) struct Plane {
    _scheduler: Process,
    _controllers: Process,
    pub cluster: Cluster,
    pub lan: Netns,
    /// What Multus asks the API server with.
    pub multus_kubeconfig: PathBuf,
    nodes: AtomicU8,
    // Last: nobody else begins before all of it is gone.
    _turn: Turn,
}

impl Plane {
    pub async fn start(options: Options) -> Result<Plane> {
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
            let (token_key, authority) = cluster.signing_files();
            command
                .arg(format!(
                    "--service-account-private-key-file={}",
                    token_key.display()
                ))
                .arg(format!("--root-ca-file={}", authority.display()))
                // Each controller has rights of its own; the manager's own are few.
                .arg("--use-service-account-credentials=true");
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
        Ok(Plane {
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

    /// Joins a node's namespace to the bridge: `eth0` in there, with an address and a default route.
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

impl Cluster {
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

/// Starts a controller of the control plane with what they all take.
fn start(cluster: &Cluster, name: &str, more: impl FnOnce(&mut Command)) -> Result<Process> {
    let kubeconfig = cluster.user_kubeconfig(name, &format!("system:{name}"), None)?;
    let program = cluster
        .parts
        .kube()
        .parent()
        .map(|dir| dir.join(name))
        .with_context(|| format!("where {name} is"))?;
    let mut command = guarded_in(Some(netns(cluster)?), &program);
    command
        .arg(format!("--kubeconfig={}", kubeconfig.display()))
        .args(["--leader-elect=false", "--bind-address=127.0.0.1"]);
    more(&mut command);
    Process::start(name, command, &cluster.dir().join("logs"))
}

fn netns(cluster: &Cluster) -> Result<&Path> {
    cluster
        .netns()
        .context("a control plane outside of a network namespace")
}
