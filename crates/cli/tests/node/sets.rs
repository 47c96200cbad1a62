//! Sets of pods: many at once, and pods that come back under their names.

use std::collections::{BTreeMap, BTreeSet};

use kube::api::{DeleteParams, ListParams};
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

/// Its name stays and its address with it, and whoever comes meanwhile does not get it.
#[tokio::test(flavor = "multi_thread")]
async fn a_sticky_set_keeps_its_addresses_while_no_pod_runs() {
    let scene = Scene::open("sticky").await;
    scene
        .network(
            "lan",
            json!({ "range": "10.50.13.0/24", "sticky_statefulset": true }),
        )
        .await;
    scene
        .apply(json!({
            "apiVersion": "apps/v1", "kind": "StatefulSet",
            "metadata": { "name": "db" },
            "spec": {
                "replicas": 1,
                "serviceName": "db",
                "selector": { "matchLabels": { "app": "db" } },
                "template": template("db", "lan"),
            },
        }))
        .await;
    let before = settled(&scene, "db", 1).await;
    let uid = scene
        .objects("v1", "Pod")
        .get("db-0")
        .await
        .unwrap()
        .metadata
        .uid;
    scene.create("stranger", "lan").await;
    scene.kubectl(&["delete", "pod", "db-0"]);
    scene
        .until("db-0 is made again", async || {
            let now = scene.objects("v1", "Pod").get_opt("db-0").await.unwrap();
            match now.is_some_and(|now| now.metadata.uid != uid) {
                true => Ok(()),
                false => Err("it is the old one".to_owned()),
            }
        })
        .await;
    assert_eq!(settled(&scene, "db", 1).await, before);
    scene.running("stranger").await;
    assert_ne!(scene.addresses("stranger", "net1"), ["10.50.13.1/24"]);
    scaled(&scene, "statefulset/db", "db", 0).await;
    scene.delete("stranger").await;
    scene.nothing_is_held(&["10.50.13.0-24"]).await;
}

/// A VM's pods have other names each time. The selection element names the claim, which Multus hands on unread.
#[tokio::test(flavor = "multi_thread")]
async fn an_ipam_claim_s_address_goes_from_pod_to_pod() {
    let scene = Scene::open("claim").await;
    scene
        .network_with(
            "lan",
            json!({ "allowPersistentIPs": true }),
            json!({ "range": "10.50.14.0/24" }),
        )
        .await;
    scene
        .apply(json!({
            "apiVersion": "k8s.cni.cncf.io/v1alpha1", "kind": "IPAMClaim",
            "metadata": { "name": "vm.lan" },
            "spec": { "network": "lan", "interface": "net1" },
        }))
        .await;
    let selection = json!([{ "name": "lan", "ipam-claim-reference": "vm.lan" }]).to_string();
    scene.run("launcher-a", &selection).await;
    assert_eq!(scene.addresses("launcher-a", "net1"), ["10.50.14.1/24"]);
    let claims = scene.objects("k8s.cni.cncf.io/v1alpha1", "IPAMClaim");
    let claim = claims.get("vm.lan").await.unwrap();
    assert_eq!(claim.data["status"]["ips"], json!(["10.50.14.1/24"]));
    scene.delete("launcher-a").await;
    // The VM is off: the address waits for it, whoever comes.
    scene.run("stranger", "lan").await;
    assert_eq!(scene.addresses("stranger", "net1"), ["10.50.14.2/24"]);
    scene.run("launcher-b", &selection).await;
    assert_eq!(scene.addresses("launcher-b", "net1"), ["10.50.14.1/24"]);
    claims
        .delete("vm.lan", &DeleteParams::default())
        .await
        .unwrap();
    scene.delete("launcher-b").await;
    scene.delete("stranger").await;
    scene.nothing_is_held(&["10.50.14.0-24"]).await;
}
