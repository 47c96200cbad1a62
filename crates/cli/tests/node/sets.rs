//! Sets of pods: many at once, and pods that come back under their names.

use std::collections::{BTreeMap, BTreeSet};

use kube::api::DeleteParams;
use serde_json::json;

use crate::scene::Scene;
use crate::set::Set;

#[tokio::test(flavor = "multi_thread")]
async fn fifty_replicas_to_none_and_back() {
    let scene = Scene::open("fifty").await;
    scene
        .network("lan", json!({ "range": "10.50.6.0/26" }))
        .await;
    let web = Set::replicas(&scene, "web", "lan").await;
    for count in [50, 0, 50, 0] {
        let pods = web.scaled(count).await;
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
    let db = Set::stateful(&scene, "db", "lan").await;
    let before = db.scaled(3).await;
    for pod in ["db-1", "db-2"] {
        db.remake(pod).await;
        assert_eq!(db.settled(3).await, before);
    }
    db.scaled(0).await;
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
    let db = Set::stateful(&scene, "db", "lan").await;
    let before = db.scaled(1).await;
    scene.create("stranger", "lan").await;
    db.remake("db-0").await;
    assert_eq!(db.settled(1).await, before);
    scene.running("stranger").await;
    assert_ne!(scene.addresses("stranger", "net1"), ["10.50.13.1/24"]);
    db.scaled(0).await;
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
