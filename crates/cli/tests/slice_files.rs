//! The file that a node's slices are kept in, with the built programs: one file for the agent and the engine beside the
//! plugin, and an agent that is killed. On a real API server.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use berth_api::whereabouts::{IPPool, NodeSlicePool};
use berth_testkit::{Account, Cluster, PodCall, answered_addresses, fed, isolated, plugin_beside};
use kube::api::{Api, ListParams, PostParams};
use serde_json::{Value, json};

const BERTH: &str = env!("CARGO_BIN_EXE_berth");
const PATIENCE: Duration = Duration::from_secs(60);

/// A node of a cluster, with an account and a namespace of its own.
struct Site {
    account: Account,
    namespace: String,
    node: String,
    dir: tempfile::TempDir,
}

impl Site {
    async fn new(node: &str) -> Site {
        let cluster = Cluster::shared().await;
        for crd in berth_api::crds().unwrap() {
            cluster.apply_object(crd).await.unwrap();
        }
        let object = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": node } });
        cluster.apply_object(object).await.unwrap();
        let namespace = cluster.namespace("files").await.unwrap();
        let account = cluster.agent(&namespace, node);
        Site {
            account: account.await.unwrap(),
            namespace,
            node: node.to_owned(),
            dir: tempfile::tempdir().unwrap(),
        }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// `berth agent` on a database of its own; it listens when this returns.
    fn agent(&self, gather: Duration) -> Agent {
        let socket = self.at("berth.sock");
        let mut command = isolated(Command::new(BERTH));
        command
            .args(["agent", "--node", &self.node, "--kubeconfig"])
            .arg(self.account.kubeconfig())
            .arg("--socket")
            .arg(&socket)
            .arg("--database")
            .arg(self.at("agent.db"))
            .args(["--slice-gather-ms", &gather.as_millis().to_string()])
            // However slow this machine is, what is published is looked at.
            .args(["--garbage-grace", "600", "--slice-publish-within=0"])
            .env("BERTH_RESULT_CACHE", self.at("results"))
            .stderr(Stdio::null());
        let child = command.spawn().unwrap();
        let began = Instant::now();
        while std::os::unix::net::UnixStream::connect(&socket).is_err() {
            assert!(began.elapsed() < PATIENCE, "no agent");
            std::thread::sleep(Duration::from_millis(20));
        }
        Agent { child, socket }
    }

    /// Another agent on the same file, which ends by itself: what it said.
    fn second_agent(&self) -> (bool, String) {
        let mut command = isolated(Command::new(BERTH));
        command
            .args(["agent", "--node", &self.node, "--kubeconfig"])
            .arg(self.account.kubeconfig())
            .arg("--socket")
            .arg(self.at("second.sock"))
            .arg("--database")
            .arg(self.at("agent.db"));
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.success(), said)
    }

    /// The engine beside a plugin, where no agent listens.
    fn engine(
        &self,
        program: &Path,
        database: Option<&Path>,
        pod: &str,
        ipam: &Value,
    ) -> (bool, Value) {
        let conf = PodCall::new("berth", "ADD", pod).network(ipam);
        let mut command = PodCall::new("berth", "ADD", pod).command(program);
        command
            .args([
                "cni",
                "--plugin",
                "berth",
                "--node",
                &self.node,
                "--kubeconfig",
            ])
            .arg(self.account.kubeconfig())
            .env("BERTH_RESULT_CACHE", self.at("results"));
        if let Some(database) = database {
            command.env("BERTH_DATABASE", database);
        }
        let output = fed(&mut command, conf.to_string()).unwrap();
        let body = serde_json::from_slice(&output.stdout).unwrap_or(Value::Null);
        (output.status.success(), body)
    }

    async fn pools<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>,
    {
        let client = Cluster::shared().await.client().await.unwrap();
        Api::namespaced(client, &self.namespace)
    }

    /// The pods of all entries of all pools.
    async fn shown(&self) -> BTreeSet<String> {
        let pools: Api<IPPool> = self.pools().await;
        let pools = pools.list(&ListParams::default()).await.unwrap();
        let entries = pools.into_iter().flat_map(|pool| pool.spec.allocations);
        entries.map(|(_, entry)| entry.podref).collect()
    }

    async fn until_shown(&self, what: &str, pods: &[&str]) {
        let expected: BTreeSet<String> = pods.iter().map(|pod| (*pod).to_owned()).collect();
        let began = Instant::now();
        loop {
            let now = self.shown().await;
            if now == expected {
                return;
            }
            assert!(began.elapsed() < PATIENCE, "{what}: {now:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// Killed when dropped, and not told before.
struct Agent {
    child: Child,
    socket: PathBuf,
}

impl Agent {
    fn call(&self, verb: &str, pod: &str, ipam: &Value) -> Vec<String> {
        let answer = PodCall::new("berth", verb, pod).ask(&self.socket, ipam);
        match verb {
            "DEL" => {
                assert_eq!(answer.unwrap().exit, 0);
                Vec::new()
            }
            _ => answered_addresses(&answer.unwrap()).unwrap(),
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The agent has a database of its own, and dies; the engine was told of none.
async fn one_file(site: &Site, ipam: &Value) {
    let mut held = BTreeMap::new();
    let mut note = |ip: String, pod: &str| {
        let twice = held.insert(ip.clone(), pod.to_owned());
        assert_eq!(twice, None, "{ip} is allocated to {pod} too");
    };
    let agent = site.agent(Duration::from_millis(50));
    for pod in ["a0", "a1", "a2"] {
        note(agent.call("ADD", pod, ipam).remove(0), pod);
    }
    let pods = ["ns/a0", "ns/a1", "ns/a2"];
    site.until_shown("published", &pods).await;
    drop(agent);
    // Another file: refused, and the right one is named.
    let other = site.at("other.db");
    let (success, refused) = site.engine(Path::new(BERTH), Some(&other), "e0", ipam);
    assert!(!success, "{refused}");
    assert_eq!(refused["code"], 11, "{refused}");
    let right = site.at("agent.db").display().to_string();
    assert!(refused.to_string().contains(&right), "{refused}");
    // The installation tells it: the same file.
    let engine = site.at("berth-full");
    fs::hard_link(BERTH, &engine)
        .or_else(|_| fs::copy(BERTH, &engine).map(drop))
        .unwrap();
    let pointer = json!({ "configuration_path": site.dir.path(), "database": right });
    fs::write(site.at("berth-full.json"), pointer.to_string()).unwrap();
    for pod in ["e1", "e2"] {
        let (success, body) = site.engine(&engine, None, pod, ipam);
        assert!(success, "{body}");
        note(body["ips"][0]["address"].as_str().unwrap().to_owned(), pod);
    }
    let agent = site.agent(Duration::from_millis(50));
    for pod in ["a3", "a4"] {
        note(agent.call("ADD", pod, ipam).remove(0), pod);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn berth_15_15_claimed_slices_are_allocated_from_by_one_file() {
    let site = Site::new("files-claimed").await;
    let ipam = json!({ "type": "berth", "range": "10.150.0.0/28", "fast_ipam": true, "slice_size": "/28",
        "enable_overlapping_ranges": false });
    one_file(&site, &ipam).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn berth_15_15_assigned_slices_are_allocated_from_by_one_file() {
    let site = Site::new("files-assigned").await;
    let table = json!({
        "apiVersion": "whereabouts.cni.cncf.io/v1alpha1", "kind": "NodeSlicePool", "metadata": { "name": "files" },
        "spec": { "range": "10.151.0.0/24", "sliceSize": "/28" },
        "status": { "allocations": [{ "nodeName": site.node, "sliceRange": "10.151.0.0/28" }] },
    });
    let tables: Api<NodeSlicePool> = site.pools().await;
    let table = serde_json::from_value(table).unwrap();
    tables.create(&PostParams::default(), &table).await.unwrap();
    let ipam = json!({ "type": "berth", "range": "10.151.0.0/24", "node_slice_size": "/28", "network_name": "files",
        "enable_overlapping_ranges": false });
    one_file(&site, &ipam).await;
}

/// DELs are acknowledged, and the agent is killed before it has published them.
#[tokio::test(flavor = "multi_thread")]
async fn berth_15_17_what_an_acknowledged_del_freed_does_not_come_back_after_kill_9() {
    let site = Site::new("files-killed").await;
    let ipam = json!({ "type": "berth", "range": "10.152.0.0/28", "fast_ipam": true, "slice_size": "/28",
        "enable_overlapping_ranges": false });
    let agent = site.agent(Duration::from_secs(3));
    let pods: Vec<String> = (0..7).map(|n| format!("k{n}")).collect();
    for pod in &pods {
        agent.call("ADD", pod, &ipam);
    }
    let refs: Vec<String> = pods.iter().map(|pod| format!("ns/{pod}")).collect();
    let all: Vec<&str> = refs.iter().map(String::as_str).collect();
    site.until_shown("published", &all).await;
    for pod in &pods[2..] {
        agent.call("DEL", pod, &ipam);
    }
    drop(agent);
    assert_eq!(site.shown().await.len(), 7, "nothing was published since");
    let began = Instant::now();
    let agent = site.agent(Duration::from_millis(200));
    site.until_shown("those that live, and no others", &all[..2])
        .await;
    println!(
        "the objects show the living pods {:?} after the start",
        began.elapsed()
    );
    let again: BTreeSet<String> = (0..12)
        .map(|n| agent.call("ADD", &format!("n{n}"), &ipam).remove(0))
        .collect();
    assert_eq!(again.len(), 12, "all that was freed can be allocated");
}

/// The agent lives, and its socket is not where the other processes look for it.
#[tokio::test(flavor = "multi_thread")]
async fn berth_20_1_one_process_owns_the_file() {
    let site = Site::new("files-owned").await;
    let sliced = json!({ "type": "berth", "range": "10.165.0.0/28", "fast_ipam": true, "slice_size": "/28",
        "enable_overlapping_ranges": false });
    let agent = site.agent(Duration::from_millis(50));
    agent.call("ADD", "a0", &sliced);
    let file = site.at("agent.db");
    let owner = format!("berth agent (process {})", agent.child.id());
    let (success, said) = site.second_agent();
    assert!(!success && said.contains(&owner), "{said}");
    assert!(said.contains(&file.display().to_string()), "{said}");
    let (success, refused) = site.engine(Path::new(BERTH), Some(&file), "e0", &sliced);
    let said = refused.to_string();
    assert!(!success && refused["code"] == 11, "{said}");
    assert!(
        said.contains(&owner) && said.contains(&file.display().to_string()),
        "{said}"
    );
    // A plain pool is the cluster's: any process serves it.
    let plain = json!({ "type": "berth", "range": "10.166.0.0/28" });
    let (success, answer) = site.engine(Path::new(BERTH), Some(&file), "e1", &plain);
    assert!(success, "{answer}");
    drop(agent);
    let (success, answer) = site.engine(Path::new(BERTH), Some(&file), "e0", &sliced);
    assert!(success, "{answer}");
}

/// The administrator puts the socket elsewhere: the installation tells the plugin.
#[tokio::test(flavor = "multi_thread")]
async fn berth_20_5_the_plugin_finds_the_agents_socket_by_the_installation() {
    let site = Site::new("files-socket").await;
    let ipam = json!({ "type": "berth", "range": "10.167.0.0/28", "fast_ipam": true, "slice_size": "/28",
        "enable_overlapping_ranges": false });
    let agent = site.agent(Duration::from_millis(50));
    let bin = site.at("bin");
    fs::create_dir(&bin).unwrap();
    // There is no engine: only the agent can answer.
    let plugin = bin.join("berth");
    fs::copy(plugin_beside(BERTH).unwrap(), &plugin).unwrap();
    let ask = || {
        let call = PodCall::new("berth", "ADD", "p");
        let mut command = call.command(&plugin);
        command.env_remove("BERTH_SOCKET").env("PATH", &bin);
        let output = fed(&mut command, call.network(&ipam).to_string()).unwrap();
        (
            output.status.success(),
            String::from_utf8_lossy(&output.stdout).into_owned(),
        )
    };
    let pointer = json!({ "configuration_path": site.dir.path(), "socket": agent.socket });
    fs::write(bin.join("berth-full.json"), pointer.to_string()).unwrap();
    let (success, answer) = ask();
    assert!(success && answer.contains("10.167.0."), "{answer}");
}
