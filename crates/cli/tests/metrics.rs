//! What the built programs serve under `/metrics`, judged by Prometheus' own tool.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use berth_parts::Parts;
use berth_testkit::{Agent, Cluster, PodCall, Process, answered_addresses, guarded, isolated};
use serde_json::{Value, json};

const BERTH: &str = env!("CARGO_BIN_EXE_berth");
const NODE: &str = "n1";
const PATIENCE: Duration = Duration::from_secs(60);

/// The head and the body of `/metrics`.
fn metrics(mut stream: impl Read + Write, accept: &str) -> (String, String) {
    let request = format!(
        "GET /metrics HTTP/1.1\r\nhost: x\r\naccept: {accept}\r\nconnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    (head.to_ascii_lowercase(), body.to_owned())
}

/// What is served to whom asks for nothing special, as Prometheus' tool accepts it: one line a series.
fn accepted(stream: impl Read + Write) -> Vec<String> {
    let (head, text) = metrics(stream, "*/*");
    assert!(
        head.contains("content-type: text/plain; version=0.0.4"),
        "{head}"
    );
    let mut promtool = Command::new(Parts::find().unwrap().promtool().unwrap())
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    promtool
        .stdin
        .take()
        .unwrap()
        .write_all(text.as_bytes())
        .unwrap();
    let judged = promtool.wait_with_output().unwrap();
    let told = String::from_utf8_lossy(&judged.stderr).into_owned()
        + &String::from_utf8_lossy(&judged.stdout);
    assert!(judged.status.success(), "{told}\n{text}");
    let series = text.lines().filter(|line| !line.starts_with('#'));
    let series: Vec<String> = series.map(str::to_owned).collect();
    let is_build_info = |line: &&String| line.starts_with("berth_build_info{version=");
    assert_eq!(series.iter().filter(is_build_info).count(), 1);
    series
}

fn at_most(series: &[String], most: usize) {
    let count = series.len();
    assert!(count <= most, "{count} series:\n{}", series.join("\n"));
}

/// A pod in each of eleven networks.
fn attach(socket: &Path, ipam: impl Fn(usize) -> Value) {
    for network in 0..11 {
        let call = PodCall::new("whereabouts", "ADD", &format!("p{network}"));
        answered_addresses(&call.ask(socket, &ipam(network)).unwrap()).unwrap();
    }
}

#[test]
fn berth_15_28_promtool_accepts_what_an_agent_with_eleven_pools_serves() {
    let dir = tempfile::tempdir().unwrap();
    let agent = Agent::start(BERTH, dir.path(), "counted", |command| {
        command.args(["--node", NODE]);
    })
    .unwrap();
    let socket = || UnixStream::connect(&agent.socket).unwrap();
    attach(
        &agent.socket,
        |network| json!({ "range": format!("10.{network}.0.0/24") }),
    );
    at_most(&accepted(socket()), 200);

    let (head, text) = metrics(socket(), "application/openmetrics-text; version=1.0.0");
    assert!(
        head.contains("content-type: application/openmetrics-text"),
        "{head}"
    );
    assert!(text.ends_with("# EOF\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn berth_15_28_promtool_accepts_what_an_agent_with_eleven_sliced_networks_serves() {
    let cluster = cluster().await;
    let namespace = cluster.namespace("sliced").await.unwrap();
    let account = cluster.agent(&namespace, NODE).await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    let series = tokio::task::block_in_place(|| {
        let agent = Agent::start(BERTH, dir.path(), "sliced", |command| {
            command.args(["--node", NODE, "--kubeconfig"]);
            command.arg(account.kubeconfig());
        })
        .unwrap();
        attach(
            &agent.socket,
            |network| json!({ "range": format!("10.{network}.0.0/24"), "fast_ipam": true }),
        );
        accepted(UnixStream::connect(&agent.socket).unwrap())
    });
    let held = |line: &&String| line.starts_with("berth_slices_held{");
    assert_eq!(series.iter().filter(held).count(), 11, "{series:?}");
    at_most(&series, 400);
}

#[test]
fn berth_15_28_promtool_accepts_what_an_agent_for_eleven_vm_pools_serves() {
    let dir = tempfile::tempdir().unwrap();
    let pools: String = (1..11)
        .map(|n| format!("- name: pool-{n}\n  ips: 10.0.{n}.1\n"))
        .collect();
    let file = dir.path().join("vms.yaml");
    std::fs::write(&file, format!("vm-pool-ips: 10.0.0.1\npools:\n{pools}")).unwrap();
    let state = format!("sqlite:{}", dir.path().join("state.db").display());
    let agent = Agent::start(BERTH, dir.path(), "vms", |command| {
        command
            .args(["--vms-only", "--node", NODE])
            .env("VM_SETTINGS", &file)
            .env("VM_LEDGER", &state)
            .env("VM_READINESS", "off")
            .env("VM_CLEANUP", "false");
    })
    .unwrap();
    let socket = || UnixStream::connect(&agent.socket).unwrap();
    let names = (1..11)
        .map(|n| format!("pool-{n}"))
        .chain(["default".into()]);
    for name in names {
        let begun = Instant::now();
        while !allocated(socket(), &name) {
            assert!(begun.elapsed() < PATIENCE, "{}", agent.process.tail());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    let series = accepted(socket());
    let counted = |line: &&String| line.starts_with("berth_vm_allocations_total{");
    assert!(series.iter().filter(counted).count() >= 11, "{series:?}");
    at_most(&series, 250);
}

/// Whether the pool has given a VM; not before it is open.
fn allocated(mut stream: UnixStream, pool: &str) -> bool {
    let body = json!({ "allocationID": format!("a-{pool}") }).to_string();
    let request = format!(
        "POST /v1/vms/allocations?pool={pool} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n\
        content-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text.starts_with("HTTP/1.1 200") || text.starts_with("HTTP/1.1 201")
}

#[tokio::test(flavor = "multi_thread")]
async fn berth_15_28_promtool_accepts_what_the_controller_serves() {
    let cluster = cluster().await;
    let namespace = cluster.namespace("counted").await.unwrap();
    let definition = json!({
        "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
        "metadata": { "name": "cut", "namespace": namespace },
        "spec": { "config": json!({ "cniVersion": "1.0.0", "name": "cut", "type": "macvlan", "ipam": {
            "type": "whereabouts", "range": "10.50.0.0/16", "node_slice_size": "/24",
        } }).to_string() },
    });
    cluster.apply_object(definition).await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = free.local_addr().unwrap();
    drop(free);
    let mut command = isolated(guarded(BERTH));
    command
        .args(["controller", "--no-election", "--namespace", &namespace])
        .arg(format!("--listen={listen}"))
        .arg("--kubeconfig")
        .arg(cluster.kubeconfig());
    let process = Process::start("controller", command, dir.path()).unwrap();
    tokio::task::block_in_place(|| {
        let begun = Instant::now();
        let stream = loop {
            match TcpStream::connect(listen) {
                Ok(stream) => break stream,
                Err(_) => assert!(begun.elapsed() < PATIENCE, "{}", process.tail()),
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        at_most(&accepted(stream), 200);
    });
}

async fn cluster() -> &'static Cluster {
    let cluster = Cluster::shared().await;
    for crd in berth_api::crds().unwrap() {
        cluster.apply_object(crd).await.unwrap();
    }
    let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": NODE } });
    cluster.apply_object(node).await.unwrap();
    cluster
}
