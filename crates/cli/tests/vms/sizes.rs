//! Pools that change while the manager runs: by an edit of its settings file, and of the ConfigMap of pools.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use berth_testkit::Cluster;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{ObjectMeta, Patch, PatchParams, PostParams};
use serde_json::json;

use crate::manager::Manager;
use crate::{allocate, until};

const OFF: [(&str, &str); 3] = [
    ("NODE_NAME", "worker"),
    ("VM_READINESS", "off"),
    ("VM_CLEANUP", "false"),
];

/// The problem that the status shows, once it shows one.
async fn problem(manager: &Manager) -> String {
    let begun = Instant::now();
    loop {
        let (_, status) = manager.call("GET", "/status", "").await.unwrap();
        if let Some(problem) = status["problem"].as_str() {
            return problem.to_string();
        }
        assert!(begun.elapsed() < Duration::from_secs(30), "{status}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn by_an_edit_of_the_settings_file() {
    let cluster = Cluster::shared().await;
    let namespace = cluster.namespace("byom").await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("settings.yaml");
    // As a kubelet or an editor replaces it: whole.
    let write = |text: &str| {
        let next = dir.path().join("next");
        std::fs::write(&next, text).unwrap();
        std::fs::rename(next, &file).unwrap();
    };
    write("vm-pool-ips: 10.0.0.1-10.0.0.4\n");
    let path = file.to_str().unwrap().to_string();
    let mut env = OFF.to_vec();
    env.extend([
        ("POOL_NAMESPACE", namespace.as_str()),
        ("VM_SETTINGS", &path),
    ]);
    let manager = Manager::start(&cluster.kubeconfig(), &env).await;
    until(&manager, "default", [4, 0, 0]).await;
    let mut given = BTreeMap::new();
    for id in ["a", "b", "c"] {
        given.insert(allocate(&manager, "default", id).await, id);
    }

    write("vm-pool-ips: 10.0.0.1-10.0.0.6\npools:\n- name: gpu\n  ips: 10.0.1.1\n");
    until(&manager, "default", [3, 3, 0]).await;
    until(&manager, "gpu", [1, 0, 0]).await;
    assert_eq!(allocate(&manager, "gpu", "g").await, "10.0.1.1");

    // Shrunk to two: who has one of the others keeps it, and it does not come back.
    write("vm-pool-ips: 10.0.0.1-10.0.0.2\npools:\n- name: gpu\n  ips: 10.0.1.1\n");
    let small = ["10.0.0.1", "10.0.0.2"];
    let free = small.iter().filter(|ip| !given.contains_key(**ip)).count() as u64;
    until(&manager, "default", [free, 3, 0]).await;
    for (ip, id) in &given {
        let (_, shown) = manager
            .call("GET", &format!("/ips/{ip}"), "")
            .await
            .unwrap();
        assert_eq!(shown["allocationID"], *id);
    }
    for id in given.values() {
        let (told, ok) = manager.cli(&["deallocate", id]);
        assert!(ok, "{told}");
    }
    until(&manager, "default", [2, 0, 0]).await;

    // An edit that can't be used changes nothing, names the entry and is shown.
    write("vm-pool-ips: 10.0.0.1,10.0.0.300\n");
    let shown = problem(&manager).await;
    assert!(shown.contains("10.0.0.300"), "{shown}");
    until(&manager, "default", [2, 0, 0]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn by_an_edit_of_the_configmap_of_pools() {
    let cluster = Cluster::shared().await;
    let namespace = cluster.namespace("byom").await.unwrap();
    let api: Api<ConfigMap> = Api::namespaced(cluster.client().await.unwrap(), &namespace);
    let pools = ConfigMap {
        metadata: ObjectMeta {
            name: Some("pools".into()),
            ..ObjectMeta::default()
        },
        data: Some(BTreeMap::from([(
            "large".to_string(),
            "10.0.2.1-10.0.2.2".to_string(),
        )])),
        ..ConfigMap::default()
    };
    api.create(&PostParams::default(), &pools).await.unwrap();
    let edit = |data: serde_json::Value| {
        let api = api.clone();
        async move {
            let patch = Patch::Merge(json!({ "data": data }));
            let params = PatchParams::default();
            api.patch("pools", &params, &patch).await.unwrap();
        }
    };
    let mut env = OFF.to_vec();
    env.extend([
        ("POOL_NAMESPACE", namespace.as_str()),
        ("POOLS_CONFIGMAP", "pools"),
    ]);
    let manager = Manager::start(&cluster.kubeconfig(), &env).await;
    until(&manager, "large", [2, 0, 0]).await;
    let first = allocate(&manager, "large", "a").await;

    edit(json!({ "large": "10.0.2.1-10.0.2.3", "small": "10.0.3.1" })).await;
    until(&manager, "large", [2, 1, 0]).await;
    until(&manager, "small", [1, 0, 0]).await;

    edit(json!({ "large": "10.0.2.3" })).await;
    until(&manager, "large", [1, 1, 0]).await;
    let (_, shown) = manager.call("GET", "/allocations/a", "").await.unwrap();
    assert_eq!(shown["ip"], first);
    let (told, ok) = manager.cli(&["deallocate", "a"]);
    assert!(ok, "{told}");
    until(&manager, "large", [1, 0, 0]).await;

    edit(json!({ "small": "10.0.3.1, 10.0.3.x" })).await;
    let shown = problem(&manager).await;
    assert!(shown.contains("10.0.3.x"), "{shown}");
    until(&manager, "small", [1, 0, 0]).await;
}
