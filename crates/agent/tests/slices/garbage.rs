//! Addresses of pods that are gone: their own node releases them in its ledger and publishes that; no other process
//! does.

use std::collections::BTreeMap;
use std::time::Duration;

use berth_api::whereabouts::IPPool;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use serde_json::json;

use crate::test_node::{Machine, Site, until};

#[tokio::test(flavor = "multi_thread")]
async fn a_node_collects_its_own_slices_and_no_other_does() {
    let site = Site::shared().await;
    site.assign(
        "net",
        "10.4.0.0/24",
        "/26",
        &[("node-1", "10.4.0.0/26"), ("node-2", "10.4.0.64/26")],
    )
    .await;
    let pods: Api<Pod> = Api::namespaced(site.client.clone(), &site.namespace);
    for name in ["stays", "goes"] {
        let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name },
            "spec": { "nodeName": "node-1", "containers": [{ "name": "c", "image": "i" }] } });
        let pod = serde_json::from_value(pod).unwrap();
        pods.create(&PostParams::default(), &pod).await.unwrap();
    }
    // Published by a node that does not run here: only that node releases them.
    site.create::<IPPool>(json!({
        "apiVersion": "whereabouts.cni.cncf.io/v1alpha1", "kind": "IPPool",
        "metadata": { "name": "node-2-10.4.0.64-26", "annotations": { "berth.dev/published-by": "node-2" } },
        "spec": { "range": "10.4.0.64/26", "allocations": { "5": { "id": "x", "podref": "ns/nobody", "ifname": "net1" } } },
    }))
    .await;
    // Without a node: an ordinary pool, which any agent sweeps.
    site.create::<IPPool>(json!({
        "apiVersion": "whereabouts.cni.cncf.io/v1alpha1", "kind": "IPPool",
        "metadata": { "name": "10.44.0.0-24" },
        "spec": { "range": "10.44.0.0/24", "allocations": { "5": { "id": "x", "podref": "ns/nobody", "ifname": "net1" } } },
    }))
    .await;
    let mut machine = Machine::start(&site, "node-1").await;
    machine.stop().await;
    machine.collecting(Duration::from_millis(500));
    machine.run().await;
    let ipam = json!({ "range": "10.4.0.0/24", "node_slice_size": "/26", "enable_overlapping_ranges": false });
    for name in ["stays", "goes"] {
        machine.add_in(&site.namespace, name, &ipam).await;
    }
    let only = |name: &str| {
        let holder = (
            format!("{}/{name}", site.namespace),
            format!("{name}-container"),
        );
        BTreeMap::from([("1".to_owned(), holder)])
    };
    until("both are published", async || {
        let now = site.entries("node-1-10.4.0.0-26").await.unwrap_or_default();
        (now.len() == 2).then_some(()).ok_or(format!("{now:?}"))
    })
    .await;
    let at_once = DeleteParams::default().grace_period(0);
    pods.delete("goes", &at_once).await.unwrap();
    until("collected and published", async || {
        let now = site.entries("node-1-10.4.0.0-26").await.unwrap_or_default();
        (now == only("stays"))
            .then_some(())
            .ok_or(format!("{now:?}"))
    })
    .await;
    until("the ordinary pool is swept", async || {
        let now = site.entries("10.44.0.0-24").await.unwrap();
        now.is_empty().then_some(()).ok_or(format!("{now:?}"))
    })
    .await;
    let theirs = site.entries("node-2-10.4.0.64-26").await.unwrap();
    assert_eq!(theirs.len(), 1, "another node's slice is its own");
}
