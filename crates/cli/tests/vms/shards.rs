//! One pool of 5,000 VMs over six ConfigMaps of a real API server, and eight manager processes that allocate all of
//! them: none twice, none left over, and the same ID keeps its VM wherever it spilled to.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use berth_testkit::Cluster;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use serde_json::{Value, json};

use crate::manager::{Manager, call};

const MANAGERS: usize = 8;
const WORKERS: usize = 12;
/// Thousands take minutes of two cores in a debug build: as many as `BERTH_VMS` says in the long form of the test command.
const FEWER_VMS: usize = 600;
const CONFIGMAPS: usize = 6;

fn number_of_vms() -> usize {
    let told = std::env::var("BERTH_VMS").ok();
    told.map_or(FEWER_VMS, |told| told.parse().unwrap())
}

fn addresses(vms: usize) -> String {
    let last = u32::from(Ipv4Addr::new(10, 0, 0, 0)) + u32::try_from(vms).unwrap() - 1;
    format!("10.0.0.0-{}", Ipv4Addr::from(last))
}

fn settings<'a>(
    namespace: &'a str,
    node: &'a str,
    count: &'a str,
    addresses: &'a str,
) -> [(&'a str, &'a str); 8] {
    [
        ("VM_POOL_IPS", addresses),
        ("MAX_RANGE_IPS", "5000"),
        ("POOL_CONFIGMAP_COUNT", count),
        ("POOL_NAMESPACE", namespace),
        ("NODE_NAME", node),
        // What is tested is the state; the VMs have tests of their own.
        ("VM_READINESS", "off"),
        ("VM_CLEANUP", "false"),
        ("OPERATION_TIMEOUT", "30s"),
    ]
}

async fn ask(socket: &Path, method: &str, path: &str, body: &str) -> (u16, Value) {
    for _ in 0..200 {
        let (status, answer) = call(socket, method, path, body).await.unwrap();
        // Whoever is told that it may succeed later comes back; an exhausted pool is an answer.
        if answer["retry"] != true || answer["code"] == "exhausted" {
            return (status, answer);
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("{method} {path} is never served");
}

async fn allocate(socket: &Path, id: &str) -> (u16, Value) {
    let wish = json!({ "allocationID": id, "podName": "web" }).to_string();
    ask(socket, "POST", "/v1/vms/allocations", &wish).await
}

/// Every allocation of all ConfigMaps of the pool: address to ID, and how many each ConfigMap has.
async fn stored(cluster: &Cluster, namespace: &str) -> (BTreeMap<String, String>, Vec<usize>) {
    let api: Api<ConfigMap> = Api::namespaced(cluster.client().await.unwrap(), namespace);
    let (mut all, mut sizes) = (BTreeMap::new(), Vec::new());
    for n in 0..CONFIGMAPS {
        let name = match n {
            0 => "byom-ip-pool-state".to_owned(),
            n => format!("byom-ip-pool-state-shard-{n}"),
        };
        let data = api.get(&name).await.unwrap().data.unwrap();
        let state: Value = serde_json::from_str(&data["allocation-state"]).unwrap();
        let entries = state["allocatedIPs"].as_object().unwrap();
        sizes.push(entries.len());
        for (id, entry) in entries {
            let ip = entry["ip"].as_str().unwrap().to_owned();
            assert_eq!(
                all.insert(ip.clone(), id.clone()),
                None,
                "{ip} is in two ConfigMaps"
            );
        }
    }
    (all, sizes)
}

#[tokio::test(flavor = "multi_thread")]
async fn one_pool_over_several_configmaps_allocates_no_vm_twice() {
    let cluster = Cluster::start().await.unwrap();
    let namespace = cluster.namespace("byom").await.unwrap();
    let count = CONFIGMAPS.to_string();
    let vms = number_of_vms();
    let addresses = addresses(vms);
    let mut managers = Vec::new();
    for n in 0..MANAGERS {
        let node = format!("node-{n}");
        let env = settings(&namespace, &node, &count, &addresses);
        managers.push(Manager::start_with(&cluster.kubeconfig(), &env, &["--vms-only"]).await);
    }
    let held: Arc<Mutex<BTreeMap<String, String>>> = Arc::default();
    let mut tasks = tokio::task::JoinSet::new();
    for (n, manager) in managers.iter().enumerate() {
        for w in 0..WORKERS {
            let (socket, held) = (manager.socket.clone(), Arc::clone(&held));
            tasks.spawn(async move {
                // Together one more than there are VMs for each worker: everyone ends when none is left.
                for k in 0.. {
                    let id = format!("pod-{n}-{w}-{k}");
                    let (status, answer) = allocate(&socket, &id).await;
                    if status == 409 {
                        assert_eq!(answer["code"], "exhausted", "{answer}");
                        return;
                    }
                    assert_eq!(status, 200, "{answer}");
                    assert_eq!(answer["pool"], "default");
                    let ip = answer["ip"].as_str().unwrap().to_owned();
                    let before = held.lock().unwrap().insert(ip.clone(), id.clone());
                    assert_eq!(
                        before, None,
                        "I1: {ip} was given to {id} while another has it"
                    );
                }
            });
        }
    }
    while let Some(ended) = tasks.join_next().await {
        ended.unwrap();
    }
    let held = std::mem::take(&mut *held.lock().unwrap());
    assert_eq!(held.len(), vms, "all of them can be had");
    let (all, sizes) = stored(&cluster, &namespace).await;
    assert_eq!(all, held, "the states are what the managers answered");
    let ids: BTreeSet<&String> = all.values().collect();
    assert_eq!(ids.len(), vms, "no ID has two");
    assert!(
        sizes.iter().all(|size| *size > vms / CONFIGMAPS / 2),
        "{sizes:?}"
    );

    // Any manager finds any ID, in whichever ConfigMap it is, and a repeat gets the same VM though room was made.
    let (status, answer) = ask(&managers[1].socket, "GET", "/v1/vms/status", "").await;
    assert_eq!((status, &answer["pools"][0]["inUse"]), (200, &json!(vms)));
    assert_eq!(answer["pools"].as_array().unwrap().len(), 1, "{answer}");
    let sample: Vec<(&String, &String)> = held.iter().step_by(vms / 20).collect();
    for (ip, _) in held.iter().skip(1).step_by(vms / 100) {
        let (_, found) = ask(&managers[3].socket, "GET", &format!("/v1/vms/ips/{ip}"), "").await;
        let path = format!(
            "/v1/vms/allocations/{}",
            found["allocationID"].as_str().unwrap()
        );
        let (status, answer) = ask(&managers[3].socket, "DELETE", &path, "").await;
        assert_eq!((status, &answer["returned"]), (200, &json!("released")));
    }
    for (ip, id) in sample {
        let (status, answer) = allocate(&managers[2].socket, id).await;
        assert_eq!((status, &answer["ip"]), (200, &json!(ip)), "{id}: {answer}");
    }
    let (all, _) = stored(&cluster, &namespace).await;
    assert_eq!(all.len(), vms - 100);

    // An agent with another number of ConfigMaps would list VMs in two of them: it stays shut and says why.
    let other = settings(&namespace, "node-9", "5", &addresses);
    let shut = Manager::start_shut(&cluster.kubeconfig(), &other, &["--vms-only"]).await;
    assert!(
        shut.contains("pool-configmap-count is 5: set it to 6"),
        "{shut}"
    );
}
