//! Eight manager processes on one ConfigMap of a real API server, which is killed in between: no VM is given
//! twice, none is lost, and what the state says at the end is what the managers said all along.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use berth_testkit::{Cluster, Part};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use serde_json::{Value, json};

use crate::manager::{Manager, call};

const MANAGERS: usize = 8;
const EACH: usize = 200;
const WORKERS: usize = 5;
const VMS: usize = 400;

/// What the managers have answered so far: who has which VM.
#[derive(Default)]
struct History {
    held: BTreeMap<String, String>,
    failures: usize,
}

/// The same request until it succeeds: that is what idempotence is for.
async fn insist(
    socket: &std::path::Path,
    history: &Mutex<History>,
    method: &str,
    path: &str,
    body: &str,
) -> Value {
    for _ in 0..600 {
        match call(socket, method, path, body).await {
            Ok((200, answer)) => return answer,
            Ok((status, answer)) => {
                assert!(
                    answer["retry"] == true,
                    "{method} {path}: {status} {answer}"
                );
                history.lock().unwrap().failures += 1;
            }
            Err(error) => panic!("{method} {path}: {error}"),
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("{method} {path} never succeeded");
}

async fn work(socket: std::path::PathBuf, history: Arc<Mutex<History>>, name: String) {
    let mut mine: Vec<(String, String)> = Vec::new();
    for n in 0..EACH / WORKERS {
        let id = format!("{name}-{n}");
        let wish =
            json!({ "allocationID": id, "podName": name, "podNamespace": "default" }).to_string();
        let given = insist(&socket, &history, "POST", "/v1/vms/allocations", &wish).await;
        let ip = given["ip"].as_str().unwrap().to_string();
        let before = history.lock().unwrap().held.insert(ip.clone(), id.clone());
        assert_eq!(
            before, None,
            "I1: {ip} was given to {id} while another has it"
        );
        mine.push((id, ip));
        // Four of five come back; the rest stays to the end.
        if n % 5 != 0 {
            let (id, ip) = mine.swap_remove(n % mine.len());
            // Before the request: from then on another may have it.
            assert_eq!(history.lock().unwrap().held.remove(&ip), Some(id.clone()));
            let path = format!("/v1/vms/allocations/{id}");
            insist(&socket, &history, "DELETE", &path, "").await;
        }
    }
}

async fn until(history: &Mutex<History>, what: &str, is_so: impl Fn(&History) -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !is_so(&history.lock().unwrap()) {
        assert!(Instant::now() < end, "never: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn eight_processes_share_one_configmap() {
    let cluster = Cluster::start().await.unwrap();
    let namespace = cluster.namespace("byom").await.unwrap();
    let begun = Instant::now();
    let mut managers = Vec::new();
    for n in 0..MANAGERS {
        let node = format!("node-{n}");
        let env = [
            ("VM_POOL_IPS", "10.0.0.1-10.0.1.144"),
            ("MAX_RANGE_IPS", "1000"),
            ("POOL_NAMESPACE", &namespace),
            ("NODE_NAME", &node),
            // What is tested is the state; the VMs have tests of their own.
            ("VM_READINESS", "off"),
            ("VM_CLEANUP", "false"),
            ("OPERATION_TIMEOUT", "5s"),
        ];
        managers.push(Manager::start(&cluster.kubeconfig(), &env).await);
    }

    let history = Arc::new(Mutex::new(History::default()));
    let mut tasks = tokio::task::JoinSet::new();
    for (n, manager) in managers.iter().enumerate() {
        for w in 0..WORKERS {
            let name = format!("pod-{n}-{w}");
            tasks.spawn(work(manager.socket.clone(), Arc::clone(&history), name));
        }
    }
    // In the middle of it the API server dies, and comes back when somebody was refused for it.
    until(&history, "the work began", |history| {
        history.held.len() >= MANAGERS
    })
    .await;
    cluster.kill(Part::ApiServer).unwrap();
    until(&history, "somebody noticed", |history| history.failures > 0).await;
    cluster.restart(Part::ApiServer).await.unwrap();
    while let Some(ended) = tasks.join_next().await {
        ended.unwrap();
    }

    let client = cluster.client().await.unwrap();
    let api: Api<ConfigMap> = Api::namespaced(client, &namespace);
    let data = api.get("byom-ip-pool-state").await.unwrap().data.unwrap();
    let state: Value = serde_json::from_str(&data["allocation-state"]).unwrap();
    let allocated: BTreeMap<String, String> = state["allocatedIPs"]
        .as_object()
        .unwrap()
        .iter()
        .map(|(id, entry)| (entry["ip"].as_str().unwrap().to_string(), id.clone()))
        .collect();
    let history = std::mem::take(&mut *history.lock().unwrap());
    assert_eq!(
        allocated, history.held,
        "the state is what the managers answered"
    );
    assert_eq!(
        allocated.len(),
        state["allocatedIPs"].as_object().unwrap().len()
    );
    let available: Vec<&str> = state["availableIPs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|ip| ip.as_str().unwrap())
        .collect();
    let free: BTreeSet<&str> = available.iter().copied().collect();
    assert_eq!(free.len(), available.len(), "none is free twice");
    assert!(
        free.iter().all(|ip| !allocated.contains_key(*ip)),
        "none is free and in use"
    );
    assert_eq!(free.len() + allocated.len(), VMS, "none is lost");
    assert_eq!(allocated.len(), MANAGERS * WORKERS * EACH / WORKERS / 5);
    // Conflicts were met and resolved, and the log says so without drowning in it.
    let resolved = |manager: &Manager| {
        let log = manager.log();
        log.lines()
            .filter(|line| line.contains("conflict resolved"))
            .count()
    };
    let lines: Vec<usize> = managers.iter().map(resolved).collect();
    let most = 1 + begun.elapsed().as_secs() as usize / 30;
    assert!(
        lines.iter().sum::<usize>() > 0 && lines.iter().all(|n| *n <= most),
        "{lines:?}, at most {most} each"
    );
    // Every manager sees the same numbers.
    for manager in &managers {
        let (_, status) = manager.call("GET", "/status", "").await.unwrap();
        assert_eq!(status["pools"][0]["inUse"], allocated.len());
        assert_eq!(status["pools"][0]["available"], free.len());
    }
}
