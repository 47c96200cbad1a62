//! Slices that a controller has assigned: here by hand, in the format of whereabouts' own controller.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use berth_api::whereabouts::{IPPool, NodeSlicePool, OverlappingRangeIPReservation};
use berth_testkit::{Cluster, Part};
use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::test_node::{Machine, Site, quick, until};

fn entry(pod: &str) -> (String, String) {
    (format!("ns/{pod}"), format!("{pod}-container"))
}

#[tokio::test(flavor = "multi_thread")]
async fn an_assigned_slice_is_allocated_from_and_published() {
    let site = Site::shared().await;
    let slices = [
        ("node-1", "10.0.0.64/26"),
        ("node-2", "10.0.0.128/26"),
        ("", "10.0.0.0/26"),
    ];
    site.assign("blue", "10.0.0.0/24", "/26", &slices).await;
    let entries = json!({ "3": { "id": "w", "podref": "ns/w", "ifname": "net1" } });
    site.create::<IPPool>(json!({
        "apiVersion": "whereabouts.cni.cncf.io/v1alpha1", "kind": "IPPool",
        "metadata": { "name": "blue-node-1-10.0.0.64-26" },
        "spec": { "range": "10.0.0.64/26", "allocations": entries },
    }))
    .await;
    let machine = Machine::start(&site, "node-1").await;
    let ipam = json!({ "range": "10.0.0.0/24", "network_name": "blue", "node_slice_size": "/26",
        "range_start": "10.0.0.65", "exclude": ["10.0.0.66/32"], "enable_overlapping_ranges": false });
    // The mask is the range's. .67 was allocated by whereabouts, and stays its pod's.
    assert_eq!(machine.add("a", &ipam).await, "10.0.0.65/24");
    assert_eq!(machine.add("b", &ipam).await, "10.0.0.68/24");
    assert_eq!(machine.add("a", &ipam).await, "10.0.0.65/24");
    let expected = BTreeMap::from([
        ("1".to_owned(), entry("a")),
        ("3".to_owned(), ("ns/w".to_owned(), "w".to_owned())),
        ("4".to_owned(), entry("b")),
    ]);
    until("published", async || {
        let now = site.entries("blue-node-1-10.0.0.64-26").await.unwrap();
        (now == expected).then_some(()).ok_or(format!("{now:?}"))
    })
    .await;
    machine.del("a", &ipam).await;
    machine.call("DEL", "w", "w", &ipam).await;
    until("published again", async || {
        let now = site.entries("blue-node-1-10.0.0.64-26").await.unwrap();
        let only_b = BTreeMap::from([("4".to_owned(), entry("b"))]);
        (now == only_b).then_some(()).ok_or(format!("{now:?}"))
    })
    .await;
    assert_eq!(machine.add("c", &ipam).await, "10.0.0.65/24");
}

/// The table had no row of the node, and the plugin panicked at the first ADD. Here the error states what is missing.
#[tokio::test(flavor = "multi_thread")]
async fn whereabouts_518_a_node_without_a_slice_refuses_until_it_has_one() {
    let site = Site::shared().await;
    site.assign("net", "10.1.0.0/24", "/30", &[("other", "10.1.0.0/30")])
        .await;
    let mut settings = quick();
    settings.assign_wait = Duration::from_millis(200);
    let machine = Machine::start_with(&site, "node-1", settings).await;
    let ipam = json!({ "range": "10.1.0.0/24", "node_slice_size": "/26", "enable_overlapping_ranges": false });
    let (code, why) = machine.try_add("a", &ipam).await.unwrap_err();
    assert_eq!(code, 11);
    for word in ["node-1", "10.1.0.0/24", "NodeSlicePool net"] {
        assert!(why.contains(word), "{why}");
    }
    let lines = json!([{ "nodeName": "other", "sliceRange": "10.1.0.0/30" },
        { "nodeName": "node-1", "sliceRange": "10.1.0.64/30" },
        { "nodeName": "node-1", "sliceRange": "10.1.0.128/30" }]);
    let patch = Patch::Merge(json!({ "status": { "allocations": lines } }));
    let params = PatchParams::default();
    site.api::<NodeSlicePool>()
        .patch("net", &params, &patch)
        .await
        .unwrap();
    for (n, expected) in [64, 65, 66, 67, 128].into_iter().enumerate() {
        assert_eq!(
            machine.add(&format!("p{n}"), &ipam).await,
            format!("10.1.0.{expected}/24")
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_epoch_ends_the_slice_and_pods_keep_what_they_have() {
    let site = Site::shared().await;
    site.assign("net", "10.2.0.0/24", "/26", &[("node-1", "10.2.0.0/26")])
        .await;
    let machine = Machine::start(&site, "node-1").await;
    let ipam = json!({ "range": "10.2.0.0/24", "node_slice_size": "/26", "enable_overlapping_ranges": false });
    assert_eq!(machine.add("a", &ipam).await, "10.2.0.1/24");
    let patch = Patch::Merge(json!({
        "metadata": { "annotations": { "berth.dev/epochs": r#"{"10.2.0.0/26":1}"# } },
        "status": { "allocations": [{ "nodeName": "node-2", "sliceRange": "10.2.0.0/26" },
            { "nodeName": "node-1", "sliceRange": "10.2.0.64/26" }] },
    }));
    let params = PatchParams::default();
    site.api::<NodeSlicePool>()
        .patch("net", &params, &patch)
        .await
        .unwrap();
    let mut n = 0;
    until("the old slice is not allocated from", async || {
        n += 1;
        let given = machine.add(&format!("p{n}"), &ipam).await;
        (given == "10.2.0.64/24").then_some(()).ok_or(given)
    })
    .await;
    machine.del("a", &ipam).await;
    let given = machine.add("last", &ipam).await;
    assert_eq!(
        given, "10.2.0.65/24",
        "what the old slice's pods free is not allocated again"
    );
}

/// The controller recalls the slice, reads once more, and finds that the node exists after all.
#[tokio::test(flavor = "multi_thread")]
async fn a_recalled_slice_is_not_allocated_from_until_the_controller_keeps_it() {
    let site = Site::shared().await;
    site.assign(
        "net",
        "10.12.0.0/24",
        "/26",
        &[("recalled", "10.12.0.0/26")],
    )
    .await;
    let mut settings = quick();
    // Only the watch reports it in time.
    settings.look = Duration::from_secs(600);
    settings.assign_wait = Duration::from_millis(200);
    let machine = Machine::start_with(&site, "recalled", settings).await;
    let ipam = json!({ "range": "10.12.0.0/24", "node_slice_size": "/26", "enable_overlapping_ranges": false });
    assert_eq!(machine.add("a", &ipam).await, "10.12.0.1/24");
    let annotate = async |recalled: serde_json::Value, epochs: &str| {
        let told = json!({ "metadata": { "annotations": { "berth.dev/recalled": recalled, "berth.dev/epochs": epochs } } });
        let pools = site.api::<NodeSlicePool>();
        let params = PatchParams::default();
        pools
            .patch("net", &params, &Patch::Merge(told))
            .await
            .unwrap();
    };
    let epochs = r#"{"10.12.0.0/26":1}"#;
    annotate(json!(r#"["10.12.0.0/26"]"#), epochs).await;
    allocates_nothing(&machine, &ipam).await;
    until("the node has an event", async || {
        let events = site.node_events("recalled").await;
        let lost = |(reason, message): &(String, String)| {
            reason == "SliceLost"
                && message.contains("10.12.0.0/26")
                && message.contains("recalled")
        };
        events
            .iter()
            .any(lost)
            .then_some(())
            .ok_or(format!("{events:?}"))
    })
    .await;
    annotate(json!(null), epochs).await;
    let given = until("allocated again", async || {
        machine
            .try_add("b", &ipam)
            .await
            .map_err(|refused| format!("{refused:?}"))
    })
    .await;
    assert_ne!(given, ["10.12.0.1/24"]);
}

/// The same request, the same answer (I3), although its slice is not allocated from: neither while it is recalled,
/// nor when the node has none at all, nor after a restart without the API server.
#[tokio::test(flavor = "multi_thread")]
async fn a_container_gets_its_address_again_when_its_nodes_only_slice_is_lost() {
    let cluster = Cluster::start().await.unwrap();
    let site = Site::of(&cluster).await;
    let slices = [("node-1", "10.17.0.0/26")];
    site.assign("net", "10.17.0.0/24", "/26", &slices).await;
    let mut settings = quick();
    // Far more than a repeat may take.
    settings.assign_wait = Duration::from_secs(20);
    let mut machine = Machine::start_with(&site, "node-1", settings).await;
    let ipam = json!({ "range": "10.17.0.0/24", "node_slice_size": "/26", "enable_overlapping_ranges": false });
    assert_eq!(machine.add("a", &ipam).await, "10.17.0.1/24");
    assert_eq!(machine.add("b", &ipam).await, "10.17.0.2/24");
    let pools = site.api::<NodeSlicePool>();
    let write = async |patch: serde_json::Value| {
        let params = PatchParams::default();
        let patch = Patch::Merge(patch);
        pools.patch("net", &params, &patch).await.unwrap();
    };
    let lost = async |n: usize| {
        until("the loss is reported", async || {
            let events = site.node_events("node-1").await;
            let lost = events.iter().filter(|(reason, _)| reason == "SliceLost");
            (lost.count() >= n)
                .then_some(())
                .ok_or(format!("{events:?}"))
        })
        .await;
    };
    write(json!({ "metadata": { "annotations": {
        "berth.dev/recalled": r#"["10.17.0.0/26"]"#, "berth.dev/epochs": r#"{"10.17.0.0/26":1}"#,
    } } }))
    .await;
    lost(1).await;
    let started = Instant::now();
    assert_eq!(machine.add("a", &ipam).await, "10.17.0.1/24");
    assert_eq!(machine.add("b", &ipam).await, "10.17.0.2/24");
    assert!(started.elapsed() < Duration::from_secs(15), "{started:?}");
    write(
        json!({ "metadata": { "annotations": { "berth.dev/recalled": null } },
        "status": { "allocations": [{ "nodeName": "other", "sliceRange": "10.17.0.0/26" }] } }),
    )
    .await;
    assert_eq!(machine.add("a", &ipam).await, "10.17.0.1/24");
    machine.del("b", &ipam).await;
    machine.stop().await;
    cluster.pause(Part::ApiServer).unwrap();
    machine.run().await;
    assert_eq!(machine.add("a", &ipam).await, "10.17.0.1/24");
    // A pod that has released its address, and a new one, must wait for a slice.
    for pod in ["b", "new"] {
        let (code, why) = machine.try_add(pod, &ipam).await.unwrap_err();
        assert_eq!(code, 11, "{why}");
    }
}

/// Of a range with more slices than one object lists.
#[tokio::test(flavor = "multi_thread")]
async fn a_slice_on_a_further_page_is_found_and_reclaimed_from_there() {
    let site = Site::shared().await;
    site.assign("net", "10.0.0.0/8", "/24", &[("other", "10.0.0.0/24")])
        .await;
    site.create::<NodeSlicePool>(json!({
        "apiVersion": "whereabouts.cni.cncf.io/v1alpha1", "kind": "NodeSlicePool",
        "metadata": { "name": "net--p1", "labels": { "berth.dev/slice-pool": "net" },
            "annotations": { "berth.dev/slice-pool": "net", "berth.dev/slice-page": "1/8192" } },
        "spec": { "range": "10.0.0.0/8", "sliceSize": "/24" },
        "status": { "allocations": [{ "nodeName": "paged", "sliceRange": "10.32.0.0/24" }] },
    }))
    .await;
    let machine = Machine::start(&site, "paged").await;
    let ipam = json!({ "range": "10.0.0.0/8", "node_slice_size": "/24", "enable_overlapping_ranges": false });
    assert_eq!(machine.add("a", &ipam).await, "10.32.0.0/8");
    let pools = site.api::<NodeSlicePool>();
    let recalled = Patch::Merge(json!({ "metadata": { "annotations": {
        "berth.dev/recalled": r#"["10.32.0.0/24"]"#, "berth.dev/epochs": r#"{"10.32.0.0/24":1}"#,
    } } }));
    pools
        .patch("net--p1", &PatchParams::default(), &recalled)
        .await
        .unwrap();
    allocates_nothing(&machine, &ipam).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_node_object_nothing_is_allocated() {
    let site = Site::shared().await;
    site.assign(
        "net",
        "10.13.0.0/24",
        "/26",
        &[("unregistered", "10.13.0.0/26")],
    )
    .await;
    let machine = Machine::start(&site, "unregistered").await;
    let nodes: kube::Api<k8s_openapi::api::core::v1::Node> = kube::Api::all(site.client.clone());
    nodes
        .delete("unregistered", &kube::api::DeleteParams::default())
        .await
        .unwrap();
    let ipam = json!({ "range": "10.13.0.0/24", "node_slice_size": "/26", "enable_overlapping_ranges": false });
    let (code, why) = machine.try_add("a", &ipam).await.unwrap_err();
    assert_eq!(code, 11);
    assert!(why.contains("no Node unregistered"), "{why}");
    site.register("unregistered").await;
    assert_eq!(machine.add("a", &ipam).await, "10.13.0.1/24");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_api_server_adds_and_dels_go_on_and_are_published_later() {
    let cluster = Cluster::start().await.unwrap();
    let site = Site::of(&cluster).await;
    site.assign("net", "10.3.0.0/24", "/26", &[("node-1", "10.3.0.0/26")])
        .await;
    let proved =
        Patch::Merge(json!({ "metadata": { "annotations": { "berth.dev/disjoint": "true" } } }));
    site.api::<NodeSlicePool>()
        .patch("net", &PatchParams::default(), &proved)
        .await
        .unwrap();
    let mut machine = Machine::start(&site, "node-1").await;
    let ipam = json!({ "range": "10.3.0.0/24", "node_slice_size": "/26", "enable_overlapping_ranges": false });
    assert_eq!(machine.add("a", &ipam).await, "10.3.0.1/24");
    until("published", async || {
        let now = site.entries("node-1-10.3.0.0-26").await;
        now.filter(|now| now.len() == 1)
            .map(|_| ())
            .ok_or("not yet".to_owned())
    })
    .await;
    assert_eq!(machine.get("/readyz").await.0, 200);
    cluster.pause(Part::ApiServer).unwrap();
    // It serves: it is ready, and reports what it can't do.
    until("ready, degraded", async || {
        let (status, said) = machine.get("/readyz").await;
        let told = said.contains("degraded") && said.contains("1 ranges");
        (status == 200 && told).then_some(()).ok_or(said)
    })
    .await;
    let figures = machine.get("/metrics").await.1;
    assert!(figures.contains("berth_agent_degraded 1"), "{figures}");
    for n in 0..20 {
        machine.add(&format!("p{n}"), &ipam).await;
    }
    machine.del("a", &ipam).await;
    let checked = json!({ "range": "10.3.0.0/24", "node_slice_size": "/26" });
    let (code, why) = machine.try_add("checked", &checked).await.unwrap_err();
    assert_eq!(code, 11, "{why}");
    assert!(why.contains("overlap"), "{why}");
    // If a controller has proved that there is no overlap, and the network allows it, the reservation follows.
    let later = json!({ "range": "10.3.0.0/24", "node_slice_size": "/26", "reserve_later": true });
    let given = machine.add("later", &later).await;
    machine.del("p19", &later).await;
    // An agent that is restarted meanwhile serves from what was recorded in this boot.
    machine.stop().await;
    machine.run().await;
    assert_eq!(machine.add("p3", &ipam).await, "10.3.0.5/24");
    assert_eq!(machine.add("late", &ipam).await, "10.3.0.21/24");
    cluster.resume(Part::ApiServer).unwrap();
    until("published after all", async || {
        let now = site.entries("node-1-10.3.0.0-26").await.unwrap();
        (now.len() == 21 && now["21"] == entry("late"))
            .then_some(())
            .ok_or(format!("{now:?}"))
    })
    .await;
    let reservations = site.api::<OverlappingRangeIPReservation>();
    let name = given.split('/').next().unwrap();
    until("reserved after all", async || {
        let found = reservations.get_opt(name).await.unwrap();
        let ours = found.filter(|one| one.spec.podref == "ns/later");
        ours.map(|_| ()).ok_or(name.to_owned())
    })
    .await;
}

/// Waits until the node's agent refuses new pods with error 11 (try again later).
async fn allocates_nothing(machine: &Machine, ipam: &serde_json::Value) {
    let mut n = 0;
    until("nothing is allocated", async || {
        n += 1;
        match machine.try_add(&format!("p{n}"), ipam).await {
            Err((11, _)) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
}
