//! Who may take an address along, on real objects: namespace, name, controller, and which VM has it.

use berth_testcloud::AliasRange;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use crate::scene::{Scene, address, refusal, zone};

const IP: &str = "live.cast.ai/ip";
const OUT: &str = "live.cast.ai/move-out-ip";

fn pod(name: &str, node: &str, ip: Option<&str>, controller: Option<&str>) -> Pod {
    let mut pod = json!({
        "metadata": { "name": name },
        "spec": { "nodeName": node, "containers": [{ "name": "c", "image": "nothing" }] },
    });
    if let Some(ip) = ip {
        pod["metadata"]["annotations"] = json!({ IP: ip });
    }
    if let Some(uid) = controller {
        pod["metadata"]["ownerReferences"] = json!([
            { "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "cart", "uid": uid, "controller": true }
        ]);
    }
    serde_json::from_value(pod).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_of_another_namespace_gets_no_address() {
    let scene = Scene::new(20).await;
    let (a, b) = (scene.node("a").await, scene.node("b").await);
    scene.pod("cart", &a.name, &[(OUT, "true")]).await;
    let ip = a.add(&scene, "cart").await;
    let other = scene.cluster.namespace("other").await.unwrap();
    let clone = pod("cart", &b.name, Some(&ip), None);
    scene.create_pod(&other, &clone).await;
    let call = scene.call("ADD", "cart").in_namespace(&other, "cart");
    let (code, text) = refusal(&b.ask(call.request(&json!({}))).await);
    assert!(
        code == 7 && text.contains("a pod of another namespace"),
        "{code} {text}"
    );
    assert_eq!(scene.holder(&ip), a.name);
    let entry = scene.entry(&ip).await;
    assert_eq!(entry["podNamespace"], json!(scene.namespace));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sibling_of_one_controller_takes_it_without_the_marker() {
    let scene = Scene::new(20).await;
    let (a, b) = (scene.node("a").await, scene.node("b").await);
    let (ours, others) = (
        "7d9c6b5f-0000-4000-8000-000000000001",
        "7d9c6b5f-0000-4000-8000-000000000002",
    );
    let here = &scene.namespace;
    scene
        .create_pod(here, &pod("cart-1", &a.name, None, Some(ours)))
        .await;
    let ip = a.add(&scene, "cart-1").await;
    for (name, controller) in [("stranger", Some(others)), ("alone", None)] {
        scene
            .create_pod(here, &pod(name, &b.name, Some(&ip), controller))
            .await;
        let (code, text) = refusal(&b.ask(scene.request("ADD", name)).await);
        assert!(code == 11 && text.contains(OUT), "{name}: {code} {text}");
    }
    scene
        .create_pod(here, &pod("cart-2", &b.name, Some(&ip), Some(ours)))
        .await;
    assert_eq!(b.add(&scene, "cart-2").await, ip);
    assert_eq!(scene.holder(&ip), b.name);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_of_the_same_name_takes_it_without_the_marker() {
    let scene = Scene::new(20).await;
    let (a, b) = (scene.node("a").await, scene.node("b").await);
    scene.pod("cart-0", &a.name, &[]).await;
    let ip = a.add(&scene, "cart-0").await;
    // Its agent would release the address of a pod that is gone.
    a.kill();
    scene.delete_pod("cart-0").await;
    let again = pod("cart-0", &b.name, Some(&ip), None);
    let uid = scene.create_pod(&scene.namespace, &again).await;
    assert_eq!(b.add(&scene, "cart-0").await, ip);
    assert_eq!(scene.holder(&ip), b.name);
    assert_eq!(scene.entry(&ip).await["podUID"], json!(uid));
}

/// An entry as upstream writes it names no VM: the Node does.
#[tokio::test(flavor = "multi_thread")]
async fn an_entry_of_upstreams_moves_from_the_vm_of_its_node() {
    let scene = Scene::new(20).await;
    let (a, b) = (scene.node("a").await, scene.node("b").await);
    assert_ne!(zone(&a.name), zone(&b.name));
    let uid = scene.pod("cart", &a.name, &[(OUT, "true")]).await;
    let lost = scene.pod("lost", "no-such-node", &[(OUT, "true")]).await;
    let entry = |pod: &str, uid: &str, node: &str| {
        json!({
            "podName": pod, "podNamespace": scene.namespace, "podUID": uid, "nodeName": node,
            "allocatedAt": "2025-11-26T10:00:00Z",
        })
    };
    let entries: Value = json!({
        "10.111.0.7": entry("cart", &uid, &a.name),
        "10.111.0.8": entry("lost", &lost, "no-such-node"),
    });
    scene
        .patch_pool(&json!({ "spec": { "allocations": entries } }))
        .await;
    let own = vec![
        AliasRange::of("pods", "10.4.97.0/24"),
        AliasRange::of("live", "10.111.0.7/32"),
    ];
    scene
        .cloud
        .project(|project| project.set_aliases(zone(&a.name), &a.name, own));
    scene.pod("clone", &b.name, &[(IP, "10.111.0.7")]).await;
    let answer = b.ask(scene.request("ADD", "clone")).await;
    assert_eq!(address(&answer), "10.111.0.7");
    assert_eq!(scene.holder("10.111.0.7"), b.name);
    assert_eq!(scene.entry("10.111.0.7").await["nodeName"], json!(b.name));

    scene.pod("found", &b.name, &[(IP, "10.111.0.8")]).await;
    let (code, text) = refusal(&b.ask(scene.request("ADD", "found")).await);
    assert!(
        code == 7 && text.contains("there is no Node of that name"),
        "{code} {text}"
    );
}

/// Upstream's definition drops every field of an entry that it does not know.
#[tokio::test(flavor = "multi_thread")]
async fn upstreams_definition_loses_nothing_that_is_needed() {
    let scene = Scene::with_upstreams_definition(20).await;
    let (a, b) = (scene.node("a").await, scene.node("b").await);
    for name in ["web", "cart"] {
        scene.pod(name, &a.name, &[]).await;
    }
    let (web, cart) = (a.add(&scene, "web").await, a.add(&scene, "cart").await);
    assert!(scene.entry(&web).await["berth"].is_null(), "it is dropped");
    assert_eq!(a.add(&scene, "web").await, web, "a repeat");
    let name = a.kill();
    let a = scene.start(&name, |_| {}).await;
    assert_eq!(a.add(&scene, "web").await, web, "after a restart");
    a.del(&scene, "web").await;
    scene.delete_pod("web").await;
    scene.until_free(&web).await;
    scene.annotate("cart", OUT, "true").await;
    scene.pod("clone", &b.name, &[(IP, &cart)]).await;
    assert_eq!(b.add(&scene, "clone").await, cart);
    assert_eq!(scene.holder(&cart), b.name);
    assert_eq!(scene.entry(&cart).await["podName"], "clone");
    a.del(&scene, "cart").await;
    assert_eq!(scene.holder(&cart), b.name);
    b.del(&scene, "clone").await;
    scene.until_free(&cart).await;
}
