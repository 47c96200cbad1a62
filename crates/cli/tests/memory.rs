//! What the built programs need to read all pools and reservations: a page of them at a time, and never all as JSON trees.
//!
//! Compared with the same work on a namespace with one empty pool, so that what the program needs anyway, and this build of it, is not
//! counted. `cargo xtask bench memory` measures the release at ten times the size.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use berth_api::whereabouts::{IPPool, OverlappingRangeIPReservation};
use berth_testkit::{Agent, Cluster, PodCall, Process, given, guarded, isolated};
use kube::Api;
use kube::api::PostParams;
use serde_json::{Map, json};
use tokio::task::JoinSet;

const BERTH: &str = env!("CARGO_BIN_EXE_berth");
const NODE: &str = "node-1";
const PATIENCE: Duration = Duration::from_secs(180);

const POOLS: usize = 2;
/// Entries of each pool.
const ENTRIES: usize = 3_000;
const RESERVATIONS: usize = 5_000;
/// Requests at a time while they are made.
const WRITERS: usize = 16;

/// Kilobytes that all of it may need.
const MOST: u64 = 12 * 1024;

/// A namespace with next to nothing in it, and one with everything.
struct Site {
    cluster: &'static Cluster,
    empty: String,
    full: String,
}

impl Site {
    async fn new() -> Site {
        let cluster = Cluster::shared().await;
        for crd in berth_api::crds().unwrap() {
            cluster.apply_object(crd).await.unwrap();
        }
        let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": NODE } });
        cluster.apply_object(node).await.unwrap();
        let empty = cluster.namespace("empty").await.unwrap();
        let full = cluster.namespace("full").await.unwrap();
        let site = Site {
            cluster,
            empty,
            full,
        };
        // One pool, so that it is a namespace of pools.
        let pool = json!({
            "apiVersion": "whereabouts.cni.cncf.io/v1alpha1", "kind": "IPPool",
            "metadata": { "name": "10.250.0.0-24", "namespace": site.empty },
            "spec": { "range": "10.250.0.0/24", "allocations": {} },
        });
        cluster.apply_object(pool).await.unwrap();
        site.fill().await;
        site
    }

    async fn fill(&self) {
        let client = self.cluster.client().await.unwrap();
        let params = PostParams::default();
        let pools: Api<IPPool> = Api::namespaced(client.clone(), &self.full);
        for pool in 0..POOLS {
            let entry = |at: usize| {
                let entry = json!({ "id": container(at), "podref": podref(&self.full, at), "ifname": format!("net{pool}") });
                (at.to_string(), entry)
            };
            let entries: Map<_, _> = (1..=ENTRIES).map(entry).collect();
            let pool = json!({
                "metadata": { "name": format!("10.{pool}.0.0-16") },
                "spec": { "range": format!("10.{pool}.0.0/16"), "allocations": entries },
            });
            let pool = serde_json::from_value(pool).unwrap();
            pools.create(&params, &pool).await.unwrap();
        }
        let reservations: Api<OverlappingRangeIPReservation> = Api::namespaced(client, &self.full);
        let mut writers = JoinSet::new();
        for first in 0..WRITERS {
            let (reservations, namespace) = (reservations.clone(), self.full.clone());
            writers.spawn(async move {
                for n in (first..RESERVATIONS).step_by(WRITERS) {
                    let reservation = reservation(&namespace, n / ENTRIES, n % ENTRIES + 1);
                    let params = PostParams::default();
                    reservations.create(&params, &reservation).await.unwrap();
                }
            });
        }
        writers.join_all().await;
    }
}

fn reservation(namespace: &str, pool: usize, at: usize) -> OverlappingRangeIPReservation {
    let reservation = json!({
        "metadata": {
            "name": format!("10.{pool}.{}.{}", at / 256, at % 256),
            "annotations": { "berth.dev/node": NODE },
        },
        "spec": {
            "containerid": container(at), "ifname": format!("net{pool}"), "podref": podref(namespace, at),
        },
    });
    serde_json::from_value(reservation).unwrap()
}

fn podref(namespace: &str, at: usize) -> String {
    format!("{namespace}/replica-{at:05}")
}

fn container(at: usize) -> String {
    format!("{at:064x}")
}

fn agent(dir: &Path, kubeconfig: &Path, interval: &str) -> Agent {
    Agent::start(BERTH, dir, "agent", |command| {
        command
            .args(["--node", NODE, "--garbage-interval", interval])
            // Their pods do not exist: suspected, and never freed here.
            .args([
                "--garbage-grace=86400",
                "--garbage-node-grace=86400",
                "--kubeconfig",
            ])
            .arg(kubeconfig);
    })
    .unwrap()
}

fn sweeps(socket: &Path) -> f64 {
    let mut stream = UnixStream::connect(socket).unwrap();
    let request = "GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let mut lines = text.lines();
    let line = lines.find_map(|line| line.strip_prefix("berth_garbage_sweeps_total "));
    line.map_or(0.0, |value| value.parse().unwrap())
}

/// Kilobytes that an agent has had at most after two sweeps.
fn sweep(kubeconfig: &Path) -> u64 {
    let dir = tempfile::tempdir().unwrap();
    let agent = agent(dir.path(), kubeconfig, "1");
    // An agent collects in a cluster that it was asked for.
    let status = PodCall::new("berth", "STATUS", "none");
    let range = json!({ "range": "10.200.0.0/24" });
    status.ask(&agent.socket, &range).unwrap();
    let begun = Instant::now();
    while sweeps(&agent.socket) < 2.0 {
        assert!(begun.elapsed() < PATIENCE, "{}", agent.process.tail());
        std::thread::sleep(Duration::from_millis(50));
    }
    agent.process.peak_rss().unwrap()
}

/// The same after an ADD. In the full namespace the first addresses of its range are all reserved: the search lists them.
fn add(kubeconfig: &Path) -> u64 {
    let dir = tempfile::tempdir().unwrap();
    let agent = agent(dir.path(), kubeconfig, "86400");
    let call = PodCall::new("whereabouts", "ADD", "new");
    let begun = Instant::now();
    // As a kubelet does: again and again, on a machine that is too slow for one try.
    loop {
        let answer = call.ask(&agent.socket, &json!({ "range": "10.0.0.0/17" }));
        match given(&answer.unwrap()) {
            Ok(_) => return agent.process.peak_rss().unwrap(),
            Err(why) => assert!(begun.elapsed() < PATIENCE, "{why:?}"),
        }
    }
}

/// The same of `berth pools`.
fn pools(kubeconfig: &Path, namespace: &str) -> u64 {
    let dir = tempfile::tempdir().unwrap();
    let mut command = isolated(guarded(BERTH));
    command
        .args(["pools", "--namespace", namespace, "--kubeconfig"])
        .arg(kubeconfig);
    let mut process = Process::start("pools", command, dir.path()).unwrap();
    let mut most = 0;
    // What it had at most is known only while it runs.
    while process.ended().unwrap().is_none() {
        most = most.max(process.peak_rss().unwrap_or_default());
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(
        process.ended().unwrap().unwrap().success(),
        "{}",
        process.tail()
    );
    most
}

#[tokio::test(flavor = "multi_thread")]
async fn berth_15_21_no_program_holds_all_pools_and_reservations() {
    let site = Site::new().await;
    let empty = site.cluster.agent(&site.empty, NODE).await.unwrap();
    let full = site.cluster.agent(&site.full, NODE).await.unwrap();
    tokio::task::block_in_place(|| {
        let admin = site.cluster.kubeconfig();
        let of_pools = |namespace: &str| pools(&admin, namespace);
        let measured = [
            (
                "a sweep",
                sweep(empty.kubeconfig()),
                sweep(full.kubeconfig()),
            ),
            ("`berth pools`", of_pools(&site.empty), of_pools(&site.full)),
            (
                "an ADD that lists",
                add(empty.kubeconfig()),
                add(full.kubeconfig()),
            ),
        ];
        for (what, without, with) in measured {
            let more = with.saturating_sub(without);
            println!("{what}: {without} kB, with everything {more} kB more");
            assert!(
                more <= MOST,
                "{what} needs {more} kB more than {without} kB"
            );
        }
    });
}
