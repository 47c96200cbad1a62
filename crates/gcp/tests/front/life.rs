//! ADD, CHECK, DEL, GC and STATUS of pods that do not move.

use berth_testcloud::{AliasRange, ApiError, Fault};
use serde_json::{Value, json};

use crate::scene::{REGION, Scene, UPDATE, address, refusal, until, zone};

#[tokio::test(flavor = "multi_thread")]
async fn the_standard_flow() {
    let scene = Scene::new(20).await;
    let node = scene.node("a").await;
    let uid = scene.pod("web", &node.name, &[]).await;
    let answer = node.ask(scene.request("ADD", "web")).await;
    let result: Value = serde_json::from_str(&answer.stdout).unwrap();
    let ips = json!([{ "address": "10.111.0.2/16", "gateway": "10.111.0.1" }]);
    assert_eq!(
        result["ips"], ips,
        "the pool's mask, and a gateway that no pod has"
    );
    assert_eq!(result["routes"], json!([{ "dst": "0.0.0.0/0" }]));
    assert_eq!(scene.holder("10.111.0.2"), node.name);
    let entry = scene.entry("10.111.0.2").await;
    assert_eq!(
        (&entry["podName"], &entry["podUID"], &entry["nodeName"]),
        (&json!("web"), &json!(uid), &json!(node.name))
    );
    let counters = json!({ "capacity": 65534, "allocated": 1, "available": 65533 });
    assert_eq!(scene.object().await["status"], counters);

    // A repeat gets the same answer, without an operation.
    let updates = scene.updates();
    assert_eq!(node.ask(scene.request("ADD", "web")).await, answer);
    assert_eq!(scene.updates(), updates);

    let mut check = scene.request("CHECK", "web");
    let mut network: Value = serde_json::from_str(&check.stdin).unwrap();
    network["prevResult"] = result;
    check.stdin = network.to_string();
    assert_eq!(node.ask(check.clone()).await.exit, 0);
    assert_eq!(node.ask(scene.request("STATUS", "")).await.exit, 0);

    // DEL needs neither the pod nor a namespace.
    scene.delete_pod("web").await;
    let mut del = scene.request("DEL", "web");
    del.environment.netns.clear();
    assert_eq!(node.ask(del.clone()).await.exit, 0);
    scene.until_free("10.111.0.2").await;
    assert_eq!(node.ask(del).await.exit, 0, "and a repeat succeeds");
    assert_eq!(refusal(&node.ask(check).await).0, 3);
    // It cools down: the next pod gets another.
    scene.pod("next", &node.name, &[]).await;
    assert_eq!(node.add(&scene, "next").await, "10.111.0.3");
    assert_eq!(scene.object().await["status"]["available"], 65533);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_alias_that_was_removed_by_hand_is_found_by_check() {
    let scene = Scene::new(20).await;
    let node = scene.node("a").await;
    scene.pod("web", &node.name, &[]).await;
    node.add(&scene, "web").await;
    scene
        .cloud
        .project(|project| project.set_aliases(zone(&node.name), &node.name, Vec::new()));
    let (code, text) = refusal(&node.ask(scene.request("CHECK", "web")).await);
    assert_eq!(code, 101, "{text}");
    assert!(text.contains("no such alias"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn upstreams_pool_is_kept_with_its_gateway_allocated() {
    let entry = |pod: &str| json!({ "podName": pod, "podNamespace": "d", "podUID": pod, "nodeName": "another-node", "allocatedAt": "2025-11-26T10:00:00Z" });
    let allocations = json!({ "10.111.0.1": entry("first"), "10.111.0.2": entry("second") });
    let written = allocations.clone();
    let scene = Scene::with_pool(20, |object| {
        object["spec"]["allocations"] = written;
        object["metadata"]["labels"] = json!({ "team": "x" });
        object["metadata"]["annotations"] = json!({ "other": "stays" });
    })
    .await;
    // Their node is there: they are not collected.
    let node = scene.start_other_node("another-node").await;
    scene.pod("web", &node.name, &[]).await;
    assert_eq!(node.add(&scene, "web").await, "10.111.0.3");
    let object = scene.object().await;
    for (address, entry) in allocations.as_object().unwrap() {
        assert_eq!(object["spec"]["allocations"][address], *entry);
    }
    assert_eq!(object["metadata"]["labels"]["team"], "x");
    assert_eq!(object["metadata"]["annotations"]["other"], "stays");
    let counters = json!({ "capacity": 65534, "allocated": 3, "available": 65531 });
    assert_eq!(object["status"], counters);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_that_another_vm_has_is_replaced() {
    let scene = Scene::new(20).await;
    let node = scene.node("a").await;
    let own = vec![AliasRange::of("live", "10.111.0.2/32")];
    scene.cloud.project(|project| {
        project.add_instance(zone("x"), "stranger", (REGION, &scene.subnet), own)
    });
    scene.pod("web", &node.name, &[]).await;
    assert_eq!(node.add(&scene, "web").await, "10.111.0.3");
    assert!(scene.entry("10.111.0.2").await.is_null());
    assert_eq!(scene.object().await["status"]["allocated"], 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_cloud_refuses_leaves_nothing_behind() {
    let scene = Scene::new(20).await;
    let node = scene.node("a").await;
    scene.pod("web", &node.name, &[]).await;
    for (code, reason, cni) in [(403, "forbidden", 7), (400, "invalid", 7)] {
        let mut left = Some(Fault::Refuse(ApiError::new(
            code,
            reason,
            "Required 'compute.instances.updateNetworkInterface' permission",
        )));
        scene.cloud.faults(move |request| {
            if request.call == UPDATE {
                left.take()
            } else {
                None
            }
        });
        let (found, text) = refusal(&node.ask(scene.request("ADD", "web")).await);
        assert_eq!(found, cni, "{text}");
        assert!(text.contains("updateNetworkInterface"), "{text}");
        until("nothing is allocated", async || {
            scene.object().await["status"]["allocated"] == 0
        })
        .await;
    }
    assert_eq!(scene.aliases(&node.name), Vec::<std::net::Ipv4Addr>::new());
    // A repeat of the pod gets its own address back, which cools down for it alone.
    assert_eq!(node.add(&scene, "web").await, "10.111.0.2");
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_pools_are_code_7_with_field_value_and_remedy() {
    let scene = Scene::with_pool(20, |object| {
        object["spec"]["subnet"] =
            json!("projects/berth-test/regions/us-central1/subnetworks/other");
    })
    .await;
    let node = scene.node("a").await;
    scene.pod("web", &node.name, &[]).await;
    let call = scene.call("ADD", "web");
    for (ipam, words) in [
        (
            json!({}),
            "spec.subnet is 'projects/berth-test/regions/us-central1/subnetworks/other'",
        ),
        (
            json!({ "ipPoolName": "no-such-pool" }),
            "IPPool no-such-pool does not exist",
        ),
        (json!({ "method": "magic" }), "ipam.method: 'magic'"),
    ] {
        let answer = node.ask(call.request(&ipam)).await;
        let (code, text) = refusal(&answer);
        assert!(code == 7 && text.contains(words), "{code} {text}");
        let body: Value = serde_json::from_str(&answer.stdout).unwrap();
        assert!(
            !body["details"].as_str().unwrap_or_default().is_empty(),
            "{body}"
        );
    }
    assert_eq!(scene.updates(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_labelled_pods_and_the_others_are_the_predecessors() {
    let scene = Scene::new(20).await;
    let node = scene.node("a").await;
    scene.pod("plain", &node.name, &[]).await;
    scene
        .labelled_pod("live", &node.name, &[], &[("berth.dev/live-ip", "true")])
        .await;
    let ranges = json!([[{ "subnet": "10.4.97.0/24" }]]);
    let ipam = json!({ "pods": "labelled", "ranges": ranges });
    // The agent has made no call of the cloud for a pod that is not its own.
    let answer = node.ask(scene.call("ADD", "plain").request(&ipam)).await;
    let delegate = answer.delegate.expect("delegated");
    assert_eq!(delegate.plugin, "host-local");
    let network: Value = serde_json::from_str(&delegate.stdin).unwrap();
    assert_eq!(
        network["ipam"],
        json!({ "ranges": ranges, "type": "host-local" })
    );
    assert!(scene.cloud.requests().is_empty());
    assert_eq!(
        address(&node.ask(scene.call("ADD", "live").request(&ipam)).await),
        "10.111.0.2"
    );
    // A container from before the switch.
    let del = node.ask(scene.call("DEL", "plain").request(&ipam)).await;
    assert_eq!(del.delegate.expect("delegated").plugin, "host-local");
    let own = node.ask(scene.call("DEL", "live").request(&ipam)).await;
    assert_eq!((own.exit, own.delegate), (0, None));
    // The label of the namespace counts for pods without one.
    scene.label_namespace("berth.dev/live-ip", "true").await;
    assert_eq!(
        address(&node.ask(scene.call("ADD", "plain").request(&ipam)).await),
        "10.111.0.3"
    );
    scene
        .labelled_pod("not", &node.name, &[], &[("berth.dev/live-ip", "false")])
        .await;
    assert!(
        node.ask(scene.call("ADD", "not").request(&ipam))
            .await
            .delegate
            .is_some()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn gc_detaches_what_no_attachment_has() {
    let scene = Scene::new(20).await;
    let node = scene.node("a").await;
    for pod in ["one", "two"] {
        scene.pod(pod, &node.name, &[]).await;
        node.add(&scene, pod).await;
    }
    let mut gc = scene.request("GC", "");
    let mut network: Value = serde_json::from_str(&gc.stdin).unwrap();
    network["cni.dev/valid-attachments"] =
        json!([{ "containerID": "two-container", "ifname": "eth0" }]);
    gc.stdin = network.to_string();
    let answer = node.ask(gc).await;
    assert_eq!(answer.exit, 0, "{}", answer.stdout);
    scene.until_free("10.111.0.2").await;
    assert_eq!(scene.holder("10.111.0.3"), node.name);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_of_the_primary_range_is_reserved_first() {
    let scene =
        Scene::with_pool(20, |object| object["spec"]["cidr"] = json!("10.128.8.0/24")).await;
    let node = scene.node("a").await;
    scene.pod("web", &node.name, &[]).await;
    let ipam = json!({ "method": "static" });
    let answer = node.ask(scene.call("ADD", "web").request(&ipam)).await;
    assert_eq!(
        berth_testkit::answered_addresses(&answer).unwrap(),
        ["10.128.8.2/24"]
    );
    let calls: Vec<String> = scene
        .cloud
        .requests()
        .iter()
        .map(|request| request.call.clone())
        .collect();
    let place = |call: &str| calls.iter().position(|made| made == call).unwrap();
    assert!(place("addresses.insert") < place(UPDATE), "{calls:?}");
    assert_eq!(
        node.ask(scene.call("DEL", "web").request(&ipam)).await.exit,
        0
    );
    scene.until_free("10.128.8.2").await;
    assert_eq!(scene.cloud.count("addresses.delete"), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn addresses_of_dead_pods_and_nodes_go_after_a_read_of_the_vm() {
    let scene = Scene::new(20).await;
    let (a, b) = (scene.node("a").await, scene.node("b").await);
    let mut given = Vec::new();
    for (node, pod) in [(&a, "here"), (&b, "there"), (&a, "lives")] {
        scene.pod(pod, &node.name, &[]).await;
        given.push(node.add(&scene, pod).await);
    }
    // A pod that vanished without a DEL: its node's agent.
    scene.delete_pod("here").await;
    scene.until_free(&given[0]).await;
    // A node that vanished with its pods; its VM is still there, with the alias: the leader.
    let gone = b.kill();
    scene.delete_pod("there").await;
    scene.delete_node(&gone).await;
    let _leader = scene.leader().await;
    scene.until_free(&given[1]).await;
    assert_eq!(scene.holder(&given[2]), a.name);
    // A second node, whose VM is gone with it.
    let c = scene.node("c").await;
    scene.pod("gone", &c.name, &[]).await;
    let last = c.add(&scene, "gone").await;
    let gone = c.kill();
    scene.delete_pod("gone").await;
    scene.delete_node(&gone).await;
    scene
        .cloud
        .project(|project| project.remove_instance(zone(&gone), &gone));
    scene.until_free(&last).await;
    assert_eq!(scene.entry(&given[2]).await["podName"], "lives");
}

#[tokio::test(flavor = "multi_thread")]
async fn attributes_that_can_not_be_read_hold_allocations() {
    let scene = Scene::with_pool(20, |object| {
        object["metadata"]["annotations"] = json!({ "berth.dev/attributes": "{" });
    })
    .await;
    let node = scene.node("a").await;
    scene.pod("web", &node.name, &[]).await;
    let (code, text) = refusal(&node.ask(scene.request("ADD", "web")).await);
    assert!(
        code == 7 && text.contains("berth.dev/attributes"),
        "{code} {text}"
    );
    let object = scene.object().await;
    assert_eq!(
        object["metadata"]["annotations"]["berth.dev/attributes"],
        "{"
    );
    assert_eq!(object["status"]["allocated"], 0);
    // Corrected by hand, it is served.
    let patch = json!({ "metadata": { "annotations": { "berth.dev/attributes": null } } });
    scene.patch_pool(&patch).await;
    assert_eq!(node.add(&scene, "web").await, "10.111.0.2");
}

#[tokio::test(flavor = "multi_thread")]
async fn events_on_a_pod_say_what_became_of_its_address() {
    let scene = Scene::new(20).await;
    let (a, b) = (scene.node("a").await, scene.node("b").await);
    scene
        .pod("wrong", &a.name, &[("live.cast.ai/ip", "ten")])
        .await;
    assert_eq!(refusal(&a.ask(scene.request("ADD", "wrong")).await).0, 7);
    let event = scene.event("wrong", "AddressRefused").await;
    assert_eq!(event.type_.as_deref(), Some("Warning"));
    let message = event.message.unwrap();
    assert!(
        message.contains("'ten' is not an IPv4 address"),
        "{message}"
    );

    scene.pod("cart", &a.name, &[]).await;
    let ip = a.add(&scene, "cart").await;
    scene
        .annotate("cart", "live.cast.ai/move-out-ip", "true")
        .await;
    let clone = [("live.cast.ai/ip", ip.as_str())];
    scene.pod("cart-clone", &b.name, &clone).await;
    assert_eq!(b.add(&scene, "cart-clone").await, ip);
    let event = scene.event("cart-clone", "AddressMoved").await;
    assert_eq!(event.type_.as_deref(), Some("Normal"));
    assert_eq!(
        event.message.unwrap(),
        format!("{ip} moved from {} to {}", a.name, b.name)
    );
    // A marker on a pod that has no address.
    let marked = [("live.cast.ai/move-out-ip", "true")];
    scene.pod("idle", &a.name, &marked).await;
    scene.event("idle", "NothingToMove").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ip_pool_that_was_made_again_allocates_nothing_that_a_pod_of_the_node_has() {
    let scene = Scene::new(20).await;
    let node = scene.node("a").await;
    scene.pod("web", &node.name, &[]).await;
    assert_eq!(node.add(&scene, "web").await, "10.111.0.2");
    scene.forget_allocations().await;
    scene.pod("next", &node.name, &[]).await;
    assert_eq!(node.add(&scene, "next").await, "10.111.0.3");
    assert_eq!(scene.holder("10.111.0.2"), node.name);
}
