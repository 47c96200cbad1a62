//! Captures of a pool policy can't be modified, by Berth's own rule: this cluster has none of kubernetes-nmstate's.

use std::time::{Duration, Instant};

use berth_nodes::objects::{self, POLICY};
use berth_parts::Parts;
use berth_testkit::Cluster;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};

const RULE: &str = include_str!("../../../../deploy/nodes/captures.yaml");

#[tokio::test(flavor = "multi_thread")]
async fn captures_of_a_pool_policy_can_not_be_modified() {
    let cluster = Cluster::shared().await;
    let manifests = Parts::find().unwrap().kubernetes_nmstate().unwrap();
    let crds = std::fs::read_to_string(manifests.join("crds.yaml")).unwrap();
    cluster.apply(&crds).await.unwrap();
    cluster.apply(RULE).await.unwrap();
    let policies = objects::api(cluster.client().await.unwrap(), POLICY);
    for (name, capture) in [
        ("of-a-pool", json!({ "a": "ippool.traffic-1.allocate" })),
        ("ordinary", json!({ "a": "interfaces.name == \"eth1\"" })),
    ] {
        let object = json!({
            "apiVersion": "nmstate.io/v1", "kind": "NodeNetworkConfigurationPolicy",
            "metadata": { "name": name },
            "spec": { "capture": capture, "desiredState": { "interfaces": [] } },
        });
        let object = serde_json::from_value(object).unwrap();
        let params = PostParams::default();
        policies.create(&params, &object).await.unwrap();
    }
    let patch = async |name: &str, spec: Value| {
        let patch = json!({ "spec": spec });
        let (params, patch) = (PatchParams::default(), Patch::Merge(&patch));
        policies.patch(name, &params, &patch).await
    };
    let other = |pool: &str| json!({ "capture": { "a": format!("ippool.{pool}.allocate") } });
    // The API server takes a moment to enforce a rule: until then a change is admitted.
    let begun = Instant::now();
    let mut number = 2;
    let refused = loop {
        match patch("of-a-pool", other(&format!("traffic-{number}"))).await {
            Err(error) => break error.to_string(),
            Ok(_) => assert!(begun.elapsed().as_secs() < 60, "the rule is not enforced"),
        }
        number += 1;
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    for part in ["spec.capture", "NodeIPPool", "create it again"] {
        assert!(refused.contains(part), "`{part}` is not in: {refused}");
    }
    let added = json!({ "capture": { "b": "interfaces.name == \"eth1\"" } });
    assert!(patch("of-a-pool", added).await.is_err(), "one more capture");
    // No pool before, one after: the addresses of the old capture would be lost from view.
    assert!(patch("ordinary", other("traffic-1")).await.is_err());
    // The rest of a pool policy may change.
    let selector = json!({ "nodeSelector": { "a": "b" } });
    patch("of-a-pool", selector).await.unwrap();
    let ordinary = json!({ "capture": { "a": "interfaces.name == \"eth2\"" } });
    patch("ordinary", ordinary).await.unwrap();
}
