//! Sets of pods: many at once, and pods that come back under their names.

use std::collections::{BTreeMap, BTreeSet};

use kube::api::ListParams;
use serde_json::{Value, json};

use crate::scene::{Scene, template};

/// Pods of a label and the address that each is said to have on its first network; only those that run.
async fn running(scene: &Scene, label: &str) -> BTreeMap<String, String> {
    let of_label = ListParams::default().labels(&format!("app={label}"));
    let pods = scene.objects("v1", "Pod").list(&of_label).await.unwrap();
    let running = pods
        .into_iter()
        .filter(|pod| pod.data["status"]["phase"] == "Running");
    running
        .filter_map(|pod| {
            let text = pod
                .metadata
                .annotations?
                .remove("k8s.v1.cni.cncf.io/network-status")?;
            let networks: Vec<Value> = serde_json::from_str(&text).ok()?;
            let address = networks.get(1)?["ips"][0].as_str()?.to_owned();
            Some((pod.metadata.name?, address))
        })
        .collect()
}

async fn scaled(scene: &Scene, what: &str, label: &str, count: usize) -> BTreeMap<String, String> {
    scene.kubectl(&["scale", what, "--replicas", &count.to_string()]);
    settled(scene, label, count).await
}

async fn settled(scene: &Scene, label: &str, count: usize) -> BTreeMap<String, String> {
    scene
        .until(&format!("{count} pods of {label} run"), async || {
            let of_label = ListParams::default().labels(&format!("app={label}"));
            let there = scene
                .objects("v1", "Pod")
                .list(&of_label)
                .await
                .unwrap()
                .items
                .len();
            let running = running(scene, label).await.len();
            match (there, running) == (count, count) {
                true => Ok(()),
                false => Err(format!("{running} of {there}")),
            }
        })
        .await;
    running(scene, label).await
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_replicas_to_none_and_back() {
    let scene = Scene::open("fifty").await;
    scene
        .network("lan", json!({ "range": "10.50.6.0/26" }))
        .await;
    scene
        .apply(json!({
            "apiVersion": "apps/v1", "kind": "ReplicaSet",
            "metadata": { "name": "web" },
            "spec": {
                "replicas": 50,
                "selector": { "matchLabels": { "app": "web" } },
                "template": template("web", "lan"),
            },
        }))
        .await;
    for count in [50, 0, 50, 0] {
        let pods = scaled(&scene, "replicaset/web", "web", count).await;
        let addresses: BTreeSet<&String> = pods.values().collect();
        assert_eq!(addresses.len(), count, "{pods:?}");
        if count == 0 {
            scene.nothing_is_held(&["10.50.6.0-26"]).await;
            continue;
        }
        let held = scene.holders("10.50.6.0-26").await;
        let named: BTreeMap<String, String> = held
            .into_iter()
            .map(|(offset, holder)| {
                (
                    holder.trim_end_matches("/net1").to_owned(),
                    format!("10.50.6.{offset}"),
                )
            })
            .collect();
        assert_eq!(named, pods);
        assert_eq!(scene.reservations().await.len(), 50);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stateful_set_s_pods_keep_their_addresses() {
    let scene = Scene::open("stateful").await;
    scene
        .network("lan", json!({ "range": "10.50.7.0/24" }))
        .await;
    scene
        .apply(json!({
            "apiVersion": "apps/v1", "kind": "StatefulSet",
            "metadata": { "name": "db" },
            "spec": {
                "replicas": 3,
                "serviceName": "db",
                "podManagementPolicy": "Parallel",
                "selector": { "matchLabels": { "app": "db" } },
                "template": template("db", "lan"),
            },
        }))
        .await;
    let before = settled(&scene, "db", 3).await;
    for pod in ["db-1", "db-2"] {
        let uid = scene
            .objects("v1", "Pod")
            .get(pod)
            .await
            .unwrap()
            .metadata
            .uid;
        scene.kubectl(&["delete", "pod", pod]);
        scene
            .until(&format!("{pod} is made again"), async || {
                let now = scene.objects("v1", "Pod").get_opt(pod).await.unwrap();
                match now.is_some_and(|now| now.metadata.uid != uid) {
                    true => Ok(()),
                    false => Err("it is the old one".to_owned()),
                }
            })
            .await;
        assert_eq!(settled(&scene, "db", 3).await, before);
    }
    scaled(&scene, "statefulset/db", "db", 0).await;
    scene.nothing_is_held(&["10.50.7.0-24"]).await;
}
