//! The built command on a real API server: `berth cni` by itself, and beside `berth agent`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use berth_api::whereabouts::IPPool;
use berth_testkit::{Cluster, PodCall, answered_addresses, fed};
use kube::api::{Api, ListParams};
use serde_json::{Value, json};

const BERTH: &str = env!("CARGO_BIN_EXE_berth");
/// As the cluster has it: slices are claimed under the name of a Node only.
const NODE: &str = "node-1";

struct Machine {
    dir: tempfile::TempDir,
    kubeconfig: PathBuf,
    namespace: String,
    ipam: Value,
}

/// `berth agent`, killed when dropped.
struct Agent(Child);

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

async fn machine() -> Machine {
    let cluster = Cluster::shared().await;
    for crd in berth_api::crds().unwrap() {
        cluster.apply_object(crd).await.unwrap();
    }
    let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": NODE } });
    cluster.apply_object(node).await.unwrap();
    let namespace = cluster.namespace("engine").await.unwrap();
    let account = cluster.agent(&namespace, NODE).await.unwrap();
    Machine {
        dir: tempfile::tempdir().unwrap(),
        kubeconfig: account.kubeconfig().to_owned(),
        namespace,
        ipam: json!({ "range": "10.0.0.0/16" }),
    }
}

fn pod_call(verb: &str, pod: &str) -> PodCall {
    PodCall::new("whereabouts", verb, pod)
}

impl Machine {
    fn command(&self, verb: &str, pod: &str) -> Command {
        let mut command = pod_call(verb, pod).command(BERTH);
        command
            .env("NODENAME", NODE)
            .env("BERTH_DATABASE", self.dir.path().join("berth.db"));
        command
    }

    /// One call in a process of its own; the network names the cluster.
    fn cni(&self, verb: &str, pod: &str) -> (bool, Value) {
        let mut ipam = self.ipam.clone();
        ipam["kubernetes"] = json!({ "kubeconfig": self.kubeconfig });
        let conf = pod_call(verb, pod).network(&ipam);
        let mut command = self.command(verb, pod);
        // The administrator lets networks name their clusters here.
        command
            .args(["cni", "--plugin", "whereabouts"])
            .env("BERTH_DEFINITION_PATHS", self.kubeconfig.parent().unwrap());
        let output = fed(&mut command, conf.to_string()).unwrap();
        let body = serde_json::from_slice(&output.stdout).unwrap_or(Value::Null);
        (output.status.success(), body)
    }

    fn address(&self, pod: &str) -> String {
        let (success, body) = self.cni("ADD", pod);
        assert!(success, "{body}");
        body["ips"][0]["address"].as_str().unwrap().to_owned()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_call_finds_the_cluster_by_the_networks_kubeconfig() {
    let machine = machine().await;
    assert_eq!(machine.address("a"), "10.0.0.1/16");
    assert_eq!(machine.address("a"), "10.0.0.1/16");
    assert_eq!(machine.address("b"), "10.0.0.2/16");
    assert_eq!(machine.cni("CHECK", "b"), (true, Value::Null));
    assert_eq!(machine.cni("DEL", "a"), (true, Value::Null));
    assert_eq!(machine.address("c"), "10.0.0.1/16");
    // The cluster keeps everything: this machine's own store was never made.
    assert!(!machine.dir.path().join("berth.db").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_that_know_nothing_of_each_other_give_no_address_twice() {
    let machine = machine().await;
    let given: Vec<String> = std::thread::scope(|scope| {
        let lanes: Vec<_> = (0..4)
            .map(|lane| {
                let machine = &machine;
                scope.spawn(move || {
                    (lane..16)
                        .step_by(4)
                        .map(|n| machine.address(&format!("p{n}")))
                        .collect::<Vec<_>>()
                })
            })
            .collect();
        lanes
            .into_iter()
            .flat_map(|lane| lane.join().unwrap())
            .collect()
    });
    assert_eq!(given.iter().collect::<BTreeSet<_>>().len(), 16, "{given:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_is_ready_when_its_cluster_answers() {
    let machine = machine().await;
    let listen = {
        // A port that was free a moment ago.
        let probe = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        probe.local_addr().unwrap()
    };
    let child = machine
        .command("", "")
        .args([
            "agent",
            "--node",
            NODE,
            "--listen",
            &listen.to_string(),
            "--kubeconfig",
        ])
        .arg(&machine.kubeconfig)
        .arg("--socket")
        .arg(machine.dir.path().join("berth.sock"))
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let _agent = Agent(child);
    let get = |path: &str| -> Option<String> {
        use std::io::{Read, Write};
        let mut stream = std::net::TcpStream::connect(listen).ok()?;
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
        )
        .ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        Some(text)
    };
    let began = Instant::now();
    while !get("/readyz").is_some_and(|text| text.starts_with("HTTP/1.1 200")) {
        assert!(
            began.elapsed() < Duration::from_secs(20),
            "{:?}",
            get("/readyz")
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(get("/healthz").unwrap().starts_with("HTTP/1.1 200"));
    assert!(
        get("/metrics")
            .unwrap()
            .contains("berth_agent_cni_calls_under_way 0")
    );
    // Nothing that changes anything is open to the network.
    assert!(get("/v1/cni").unwrap().starts_with("HTTP/1.1 404"));
}

impl Machine {
    fn agent(&self) -> Agent {
        self.agent_with("--slice-gather-ms=200")
    }

    fn agent_with(&self, setting: &str) -> Agent {
        let child = self
            .command("", "")
            // However slow this machine is, what is published is looked at.
            .args(["agent", "--slice-publish-within=0", setting])
            .args(["--node", NODE, "--kubeconfig"])
            .arg(&self.kubeconfig)
            .arg("--socket")
            .arg(self.dir.path().join("berth.sock"))
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Agent(child)
    }

    /// An ADD over the agent's socket; none if there was no whole answer.
    fn ask(&self, pod: &str) -> Option<String> {
        let socket = self.dir.path().join("berth.sock");
        let answer = pod_call("ADD", pod).ask(&socket, &self.ipam).ok()?;
        Some(answered_addresses(&answer).ok()?.first()?.clone())
    }
}

/// Address and pod of every published entry.
async fn published(machine: &Machine) -> BTreeMap<String, String> {
    let client = Cluster::shared().await.client().await.unwrap();
    let pools: Api<IPPool> = Api::namespaced(client, &machine.namespace);
    let mut all = BTreeMap::new();
    for pool in pools.list(&ListParams::default()).await.unwrap() {
        let range: berth_core::Prefix = pool.spec.range.parse().unwrap();
        for (offset, held) in pool.spec.allocations {
            let address = range.network().plus(offset.parse().unwrap()).unwrap();
            let twice = all.insert(address.to_string(), held.podref);
            assert_eq!(twice, None, "{address}");
        }
    }
    all
}

/// Waits until that is what is published.
async fn shows(machine: &Machine, expected: &BTreeMap<String, String>) {
    let began = Instant::now();
    loop {
        let now = published(machine).await;
        if now == *expected {
            return;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "{now:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_killed_agent_had_not_published_the_next_one_does() {
    let mut machine = machine().await;
    machine.ipam =
        json!({ "range": "10.3.0.0/24", "fast_ipam": true, "enable_overlapping_ranges": false });
    let killed = machine.agent_with("--slice-gather-ms=3600000");
    let began = Instant::now();
    let given = loop {
        match machine.ask("a") {
            Some(address) => break address,
            None => tokio::time::sleep(Duration::from_millis(20)).await,
        }
        assert!(began.elapsed() < Duration::from_secs(60));
    };
    assert_eq!(published(&machine).await, BTreeMap::new());
    drop(killed);
    // Nobody asks it for anything.
    let _agent = machine.agent();
    let given = given.split('/').next().unwrap().to_owned();
    shows(&machine, &BTreeMap::from([(given, "ns/a".to_owned())])).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_killed_in_the_middle_of_adds_gives_no_address_twice() {
    let mut machine = machine().await;
    machine.ipam =
        json!({ "range": "10.1.0.0/24", "fast_ipam": true, "enable_overlapping_ranges": false });
    let (given, _agent) = std::thread::scope(|scope| {
        let machine = &machine;
        let killer = scope.spawn(move || {
            for pause in [700, 900, 1100] {
                let agent = machine.agent();
                std::thread::sleep(Duration::from_millis(pause));
                drop(agent);
            }
            machine.agent()
        });
        let lanes: Vec<_> = (0..3)
            .map(|lane| {
                scope.spawn(move || {
                    let mut given = Vec::new();
                    let began = Instant::now();
                    for n in (lane..60).step_by(3) {
                        let pod = format!("p{n}");
                        // What a runtime does: it asks again until it is served.
                        let address = loop {
                            match machine.ask(&pod) {
                                Some(address) => break address,
                                None => std::thread::sleep(Duration::from_millis(20)),
                            }
                            assert!(began.elapsed() < Duration::from_secs(90), "{pod}");
                        };
                        given.push((address, pod));
                    }
                    given
                })
            })
            .collect();
        let given: Vec<(String, String)> = lanes
            .into_iter()
            .flat_map(|lane| lane.join().unwrap())
            .collect();
        // Everybody is asked again, of the last agent: what was told holds.
        let agent = killer.join().unwrap();
        let again = |given: &Vec<(String, String)>| {
            for (address, pod) in given {
                let began = Instant::now();
                let told = loop {
                    match machine.ask(pod) {
                        Some(told) => break told,
                        None => std::thread::sleep(Duration::from_millis(20)),
                    }
                    assert!(began.elapsed() < Duration::from_secs(30), "{pod}");
                };
                assert_eq!(told, *address, "{pod}");
            }
        };
        again(&given);
        (given, agent)
    });
    let expected: BTreeMap<String, String> = given
        .iter()
        .map(|(address, pod): &(String, String)| {
            let bare = address.split('/').next().unwrap().to_owned();
            (bare, format!("ns/{pod}"))
        })
        .collect();
    assert_eq!(expected.len(), 60, "no address twice");
    shows(&machine, &expected).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_call_without_an_agent_gives_from_the_nodes_slices_too() {
    let mut machine = machine().await;
    machine.ipam =
        json!({ "range": "10.2.0.0/24", "fast_ipam": true, "enable_overlapping_ranges": false });
    let first = machine.address("a");
    assert_eq!(machine.address("a"), first);
    let second = machine.address("b");
    assert_ne!(first, second);
    let bare = |address: &str| address.split('/').next().unwrap().to_owned();
    let now = published(&machine).await;
    let expected = BTreeMap::from([
        (bare(&first), "ns/a".to_owned()),
        (bare(&second), "ns/b".to_owned()),
    ]);
    assert_eq!(now, expected);
    assert_eq!(machine.cni("DEL", "a"), (true, Value::Null));
    assert_eq!(published(&machine).await.len(), 1);
    assert_eq!(machine.address("c"), first);
}
