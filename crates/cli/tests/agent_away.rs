//! A node of a cluster whose agent is away: whoever serves its calls then must not take the node's own database for the
//! cluster's pools. On a real API server.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod host;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use berth_api::claim::{self, SliceClaim};
use berth_api::whereabouts::IPPool;
use berth_testkit::{Account, Cluster, PodCall, fed, isolated};
use host::{Host, succeeded};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, ListParams};
use serde_json::{Value, json};

const BERTH: &str = env!("CARGO_BIN_EXE_berth");
const PATIENCE: Duration = Duration::from_secs(60);

/// `berth agent`, killed when dropped.
struct Agent(Child);

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Agent {
    /// Listens when this returns.
    fn start(state: &Path, kubeconfig: &Path, more: &[&str]) -> Agent {
        let socket = state.join("berth.sock");
        let child = isolated(Command::new(BERTH))
            .args(["agent", "--node", "node-1", "--kubeconfig"])
            .arg(kubeconfig)
            .args(more)
            .arg("--socket")
            .arg(&socket)
            .env("BERTH_DATABASE", state.join("berth.db"))
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let agent = Agent(child);
        let began = Instant::now();
        while std::os::unix::net::UnixStream::connect(&socket).is_err() {
            assert!(began.elapsed() < PATIENCE, "no agent");
            std::thread::sleep(Duration::from_millis(20));
        }
        agent
    }
}

/// An account of a namespace of its own, which has the same name.
async fn account() -> (Account, String) {
    account_on("node-1").await
}

/// That of the agent on another node.
async fn account_on(node: &str) -> (Account, String) {
    let cluster = Cluster::shared().await;
    for crd in berth_api::crds().unwrap() {
        cluster.apply_object(crd).await.unwrap();
    }
    let namespace = cluster.namespace("away").await.unwrap();
    let account = cluster.agent(&namespace, node).await.unwrap();
    (account, namespace)
}

/// A network as its definition has it: it names no cluster.
fn conf() -> Value {
    json!({"cniVersion": "1.1.0", "name": "net", "type": "macvlan",
        "ipam": {"type": "berth", "range": "10.0.0.0/16"}})
}

/// `program`, with nothing in its environment but what a runtime puts there.
fn call(program: &Path, state: &Path, verb: &str, pod: &str, conf: &Value) -> (bool, Value) {
    call_with(program, state, verb, pod, conf, &[])
}

/// The same with what the administrator of the node puts there.
fn call_with(
    program: &Path,
    state: &Path,
    verb: &str,
    pod: &str,
    conf: &Value,
    more: &[(&str, &Path)],
) -> (bool, Value) {
    let mut command = PodCall::new("berth", verb, pod).command(program);
    command
        .args(["cni", "--plugin", "berth"])
        .env("BERTH_DATABASE", state.join("berth.db"))
        .envs(more.iter().copied());
    let output = fed(&mut command, conf.to_string()).unwrap();
    let body = serde_json::from_slice(&output.stdout).unwrap_or(Value::Null);
    (output.status.success(), body)
}

/// Refused with `code`, in words that name `what`.
fn refused(answer: (bool, Value), code: u64, what: &str) {
    let (success, body) = answer;
    assert!(!success, "{body}");
    assert_eq!(body["code"], code, "{body}");
    assert!(body.to_string().contains(what), "{what}: {body}");
}

fn every_verb_is_refused(program: &Path, state: &Path, what: &str) {
    for verb in ["ADD", "CHECK", "DEL"] {
        refused(call(program, state, verb, "b", &conf()), 11, what);
    }
    let mut collect = conf();
    collect["cni.dev/valid-attachments"] = json!([]);
    refused(call(program, state, "GC", "b", &collect), 11, what);
    refused(call(program, state, "STATUS", "b", &conf()), 50, what);
}

#[tokio::test(flavor = "multi_thread")]
async fn where_an_agent_served_a_cluster_nobody_gives_from_the_node_s_own_file() {
    let (account, _) = account().await;
    let dir = tempfile::tempdir().unwrap();
    let agent = Agent::start(dir.path(), account.kubeconfig(), &[]);
    drop(agent);

    let engine = Path::new(BERTH);
    let mark = dir.path().join("berth.cluster");
    every_verb_is_refused(engine, dir.path(), mark.to_str().unwrap());
    // A network does not name the cluster of a node that has one; the administrator does.
    let mut named = conf();
    named["ipam"]["kubernetes"] = json!({ "kubeconfig": account.kubeconfig() });
    let below = account.kubeconfig().parent().unwrap();
    let directories = [("BERTH_DEFINITION_PATHS", below)];
    let answer = call_with(engine, dir.path(), "ADD", "b", &named, &directories);
    refused(answer, 11, mark.to_str().unwrap());
    // The installation tells the node's name too: entries of another name are no business of this account.
    let told = [
        ("BERTH_KUBECONFIG", account.kubeconfig()),
        ("NODENAME", Path::new("node-1")),
    ];
    let (success, body) = call_with(engine, dir.path(), "ADD", "b", &conf(), &told);
    assert!(success, "{body}");
    // A machine that has left its cluster for good.
    fs::remove_file(mark).unwrap();
    let (success, body) = call(engine, dir.path(), "ADD", "c", &conf());
    assert!(success, "{body}");
}

/// `berth install` into directories where nobody would look for them.
struct Odd {
    host: Host,
    state: tempfile::TempDir,
}

impl Odd {
    fn new() -> Odd {
        let host = Host::new();
        for dir in ["srv/plugins", "srv/networks"] {
            fs::create_dir_all(host.at(dir)).unwrap();
        }
        let mut command = host.command(&["--once", "--output=json"]);
        command
            .env("BERTH_ENGINE", BERTH)
            .env("CNI_BIN_DIR", "/srv/plugins")
            .env("CNI_CONF_DIR", "/srv/networks");
        succeeded(command);
        Odd {
            host,
            state: tempfile::tempdir().unwrap(),
        }
    }

    fn engine(&self) -> PathBuf {
        self.host.at("srv/plugins/berth-full")
    }

    /// What the installation says of its directory, seen from this machine: the host is a tree in it.
    fn here(&self) {
        let pointer = "srv/plugins/berth-full.json";
        let text = self.host.read(pointer);
        let own = self.host.at("srv/networks/whereabouts.d");
        let seen = text.replace("/srv/networks/whereabouts.d", own.to_str().unwrap());
        assert_ne!(seen, text);
        self.host.write(pointer, &seen);
    }

    fn call(&self, verb: &str, pod: &str) -> (bool, Value) {
        call(&self.engine(), self.state.path(), verb, pod, &conf())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_engine_finds_the_cluster_where_the_installation_left_it() {
    let (account, namespace) = account_on("node-1.example").await;
    let odd = Odd::new();
    odd.here();
    let flat = "srv/networks/whereabouts.d/whereabouts.conf";
    let kubernetes = json!({ "kubernetes": { "kubeconfig": account.kubeconfig() } });
    let installed = odd.host.read(flat);
    odd.host.write(flat, &kubernetes.to_string());
    let (success, body) = odd.call("ADD", "a");
    assert!(success, "{body}");
    assert!(
        !odd.state.path().join("berth.db").exists(),
        "the cluster keeps everything"
    );
    assert!(installed.contains("whereabouts.kubeconfig"), "{installed}");

    // And by which name the node goes.
    let node =
        json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "node-1.example" } });
    Cluster::shared().await.apply_object(node).await.unwrap();
    let mut sliced = conf();
    sliced["ipam"] = json!({"type": "berth", "range": "10.9.0.0/24", "fast_ipam": true});
    let (success, body) = call(&odd.engine(), odd.state.path(), "ADD", "b", &sliced);
    assert!(success, "{body}");
    // No definition gives it another one.
    fs::create_dir(odd.host.at("theirs")).unwrap();
    odd.host.write("theirs/nodename", "node-b\n");
    odd.host.write("theirs/whereabouts.conf", "{}");
    sliced["ipam"]["configuration_path"] = json!(odd.host.at("theirs"));
    sliced["ipam"]["range"] = json!("10.8.0.0/24");
    let theirs = [("BERTH_DEFINITION_PATHS", odd.host.root())];
    let (engine, state) = (odd.engine(), odd.state.path());
    let (success, body) = call_with(&engine, state, "ADD", "c", &sliced, &theirs);
    assert!(success, "{body}");
    let client = Cluster::shared().await.client().await.unwrap();
    let claims: Api<SliceClaim> = Api::namespaced(client, &claim::namespace(&namespace));
    let claims = claims.list(&ListParams::default()).await.unwrap();
    let nodes: Vec<&str> = claims
        .iter()
        .map(|claim| claim.spec.node.as_str())
        .collect();
    assert_eq!(nodes, ["node-1.example"; 2]);
}

#[test]
fn an_installation_whose_flat_file_is_gone_gives_nothing_from_the_node_s_own_file() {
    let odd = Odd::new();
    odd.here();
    fs::remove_file(odd.host.at("srv/networks/whereabouts.d/whereabouts.conf")).unwrap();
    every_verb_is_refused(&odd.engine(), odd.state.path(), "berth-full.json");
    assert!(!odd.state.path().join("berth.db").exists());
    // What can't be read is no reason to take the node for one of no cluster.
    odd.host.write("srv/plugins/berth-full.json", "{");
    let (success, body) = odd.call("ADD", "a");
    assert!(
        !success && body.to_string().contains("berth-full.json"),
        "{body}"
    );
}

/// Azure CNS (azure-container-networking#2138): the node is full, the daemon is gone, DEL needs the daemon and fails, so no pod
/// leaves, and the daemon's own pod finds no place. Here the engine does the agent's work; and where the agent's pod took its
/// token along, so that only its next one can, DEL succeeds and the address is left to the collector.
#[tokio::test(flavor = "multi_thread")]
async fn azure_cns_2138_pods_leave_a_full_node_whose_agent_is_gone() {
    let (account, namespace) = account().await;
    let dir = tempfile::tempdir().unwrap();
    // A copy, as the installation has it: its token is bound to the agent's pod.
    let kubeconfig = dir.path().join("kubeconfig");
    fs::copy(account.kubeconfig(), &kubeconfig).unwrap();
    let mut full = conf();
    full["ipam"]["range"] = json!("10.0.0.0/30");
    let call = |verb: &str, pod: &str, kubeconfig: &Path| {
        let told = [
            ("BERTH_KUBECONFIG", kubeconfig),
            ("NODENAME", Path::new("node-1")),
        ];
        call_with(Path::new(BERTH), dir.path(), verb, pod, &full, &told)
    };
    let done = |(success, body): (bool, Value)| assert!(success, "{body}");
    let client = Cluster::shared().await.client().await.unwrap();
    let pools: Api<IPPool> = Api::namespaced(client.clone(), &namespace);
    let held = async || {
        let pool = pools.get("10.0.0.0-30").await.unwrap();
        let entries = pool.spec.allocations.into_values();
        entries.map(|entry| entry.podref).collect::<Vec<_>>()
    };

    let agent = Agent::start(dir.path(), &kubeconfig, &[]);
    done(call("ADD", "a", &kubeconfig));
    done(call("ADD", "b", &kubeconfig));
    refused(call("ADD", "daemon", &kubeconfig), 11, "10.0.0.0/30");
    drop(agent);
    done(call("DEL", "a", &kubeconfig));
    assert_eq!(held().await, ["ns/b"]);
    done(call("ADD", "daemon", &kubeconfig));

    // The pod is deleted with its agent, and its token is nobody's.
    let pods: Api<Pod> = Api::namespaced(client, &namespace);
    let at_once = DeleteParams::default().grace_period(0);
    pods.delete("berth-agent-node-1", &at_once).await.unwrap();
    let began = Instant::now();
    // Full, until the server has forgotten the token.
    while !call("ADD", "c", &kubeconfig).1.to_string().contains("401") {
        assert!(began.elapsed() < PATIENCE, "the token is good");
        std::thread::sleep(Duration::from_millis(200));
    }
    done(call("DEL", "b", &kubeconfig));
    let cluster = Cluster::shared().await;
    let account = cluster.agent(&namespace, "node-1").await.unwrap();
    // What was not freed is nobody else's (I4), until the next agent sees that its pod is gone.
    refused(call("ADD", "c", account.kubeconfig()), 11, "10.0.0.0/30");
    let eager = ["--garbage-grace=1", "--garbage-interval=1"];
    let _next = Agent::start(dir.path(), account.kubeconfig(), &eager);
    let began = Instant::now();
    while held().await.contains(&"ns/b".to_owned()) {
        assert!(began.elapsed() < PATIENCE, "it is not collected");
        std::thread::sleep(Duration::from_millis(200));
    }
    done(call("ADD", "c", account.kubeconfig()));
}
