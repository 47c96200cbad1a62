//! A pool with more allocations than one object holds.

use std::net::Ipv4Addr;

use serde_json::{Value, json};

use crate::scene::{Scene, refusal};

/// So large an object has no room for a claim, and etcd still takes it.
const LARGE: usize = 1_460_000;
const NAME: &str = "a-pod-with-a-name-as-long-as-those-of-a-deployment-7d9c6b5f4-x2k8p";

/// A pool that upstream's plugin has filled, from its gateway on.
async fn full() -> Scene {
    let scene = Scene::new(20).await;
    let (mut allocations, mut size) = (serde_json::Map::new(), 0);
    for n in 0.. {
        if size > LARGE {
            break;
        }
        let first = u32::from(Ipv4Addr::new(10, 111, 0, 1));
        let address = Ipv4Addr::from(first + n);
        let entry = json!({
            "podName": format!("{NAME}-{n}"), "podNamespace": "a-namespace-of-the-cluster", "podUID": format!("{n:08x}-0000-4000-8000-000000000000"),
            "nodeName": "gke-cluster-default-pool-another-node-1a2b3c4d-wxyz", "allocatedAt": "2025-11-26T10:00:00Z",
            "berth": { "containerID": "c".repeat(64), "zone": "us-central1-a" },
        });
        size += entry.to_string().len() + 20;
        allocations.insert(address.to_string(), entry);
    }
    let mut object = scene.object().await;
    object["spec"]["allocations"] = Value::Object(allocations);
    // A note of who wrote each field would be a third of the object.
    object["metadata"]["managedFields"] = json!([{}]);
    scene.replace_pool(&object).await;
    scene
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_object_gets_pages_and_upstreams_writes_stop_allocation() {
    let scene = full().await;
    let before = scene.object().await;
    let node = scene.node("a").await;
    for pod in ["one", "two", "three"] {
        scene.pod(pod, &node.name, &[]).await;
    }
    let one = node.add(&scene, "one").await;
    assert!(one.starts_with("10.111.248."), "of the last block: {one}");
    let root = scene.object().await;
    let pages: Value = serde_json::from_str(
        root["metadata"]["annotations"]["berth.dev/pages"]
            .as_str()
            .unwrap(),
    )
    .unwrap();
    let page = scene
        .object_named(&format!("{}-10-111-248-0-21", scene.pool))
        .await;
    assert_eq!(pages["10.111.248.0/21"], page["metadata"]["uid"]);
    assert_eq!(page["spec"]["allocations"][&one]["podName"], "one");
    assert_eq!(root["spec"]["allocations"], before["spec"]["allocations"]);
    let capacity = |object: &Value| object["status"]["capacity"].as_u64().unwrap();
    assert_eq!(capacity(&root) + capacity(&page), 65_534);
    assert_eq!(page["status"]["allocated"], 1);
    assert_eq!(scene.holder(&one), node.name);
    assert_eq!(node.add(&scene, "one").await, one, "a repeat");

    // It moves and ends like any other.
    let b = scene.node("b").await;
    scene
        .annotate("one", "live.cast.ai/move-out-ip", "true")
        .await;
    scene
        .pod("clone", &b.name, &[("live.cast.ai/ip", &one)])
        .await;
    assert_eq!(b.add(&scene, "clone").await, one);
    assert_eq!(scene.holder(&one), b.name);
    let two = node.add(&scene, "two").await;
    assert_ne!(two, one);

    // Upstream's plugin knows no pages: it allocates in the pool's own object.
    let entry = json!({ "podName": "x", "podNamespace": "d", "podUID": "u", "nodeName": "n", "allocatedAt": "2025-11-26T10:00:00Z" });
    let patch = json!({ "spec": { "allocations": { "10.111.64.1": entry } } });
    scene.patch_pool(&patch).await;
    let (code, text) = refusal(&node.ask(scene.request("ADD", "three")).await);
    assert!(
        code == 7 && text.contains("another program wrote"),
        "{code} {text}"
    );
    // Nor by a pod that names an address of a page, or the pool's own object.
    for ip in ["10.111.248.200", "10.111.64.2"] {
        let pod = format!("exact-{}", ip.replace('.', "-"));
        scene
            .pod(&pod, &node.name, &[("live.cast.ai/ip", ip)])
            .await;
        let (code, text) = refusal(&node.ask(scene.request("ADD", &pod)).await);
        assert!(
            code == 7 && text.contains("another program wrote"),
            "{ip}: {code} {text}"
        );
    }
    // Who has an address keeps it.
    assert_eq!(node.add(&scene, "two").await, two);
    // What was allocated ends all the same.
    node.del(&scene, "two").await;
    scene.delete_pod("two").await;
    b.del(&scene, "clone").await;
    crate::scene::until("they are released", async || {
        let page = format!("{}-10-111-248-0-21", scene.pool);
        let page = scene.object_named(&page).await;
        let free =
            |ip: &String| page["spec"]["allocations"][ip].is_null() && scene.holders(ip).is_empty();
        free(&one) && free(&two)
    })
    .await;
    // An administrator has read it, and accepts it.
    let accept = json!({ "metadata": { "annotations": { "berth.dev/allocations-digest": null } } });
    scene.patch_pool(&accept).await;
    let three = node.add(&scene, "three").await;
    assert!(![&one, &two].contains(&&three), "{three}");
    // The next write of the pool's own object notes what it has accepted.
    let in_page =
        json!({ "spec": { "allocations": { "10.111.64.1": null, "10.111.248.77": entry } } });
    scene.patch_pool(&in_page).await;
    scene.pod("four", &node.name, &[]).await;
    let (code, text) = refusal(&node.ask(scene.request("ADD", "four")).await);
    assert!(code == 7 && text.contains("10.111.248.77"), "{code} {text}");
}
