//! Berth's own rules for policies that name a pool, on a cluster that has none of kubernetes-nmstate's: captures that can't be resolved are
//! refused, and captures can't be modified.

use std::time::{Duration, Instant};

use berth_nodes::capture::PoolPolicy;
use berth_nodes::objects::{self, POLICY};
use berth_parts::Parts;
use berth_testkit::Cluster;
use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

const SYNTAX: &str = include_str!("../../../../deploy/nodes/capture-syntax.yaml");
const RULE: &str = include_str!("../../../../deploy/nodes/captures.yaml");

fn policy(name: &str, capture: &Value, address: Value) -> DynamicObject {
    let interface = json!({ "name": "eth1", "ipv4": { "address": [address] } });
    let object = json!({
        "apiVersion": "nmstate.io/v1", "kind": "NodeNetworkConfigurationPolicy",
        "metadata": { "name": name },
        "spec": { "capture": capture, "desiredState": { "interfaces": [interface] } },
    });
    serde_json::from_value(object).unwrap()
}

/// Each error has field, value and what would be right; the same specs are refused by the agent, which serves policies older than the rule.
#[tokio::test(flavor = "multi_thread")]
async fn captures_that_can_not_be_resolved_are_refused() {
    let cluster = Cluster::shared().await;
    let manifests = Parts::find().unwrap().kubernetes_nmstate().unwrap();
    let crds = std::fs::read_to_string(manifests.join("crds.yaml")).unwrap();
    cluster.apply(&crds).await.unwrap();
    cluster.apply(SYNTAX).await.unwrap();
    let policies = objects::api(cluster.client().await.unwrap(), POLICY);
    let params = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let create = async |capture: &Value| {
        let object = policy(
            "syntax",
            capture,
            json!({ "ip": "{{ capture.a.ip }}", "prefix-length": 24 }),
        );
        policies.create(&params, &object).await
    };
    let begun = Instant::now();
    while create(&json!({ "a": "ippool" })).await.is_ok() {
        assert!(begun.elapsed().as_secs() < 60, "the rule is not enforced");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let good = "ippool.traffic-1.allocate";
    let long = format!("ippool.{}.allocate", "p".repeat(64));
    let cases = [
        (
            json!({ "a": "ippool.traffic-1.alocate" }),
            vec!["spec.capture.a", "`alocate`", "is allocate"],
        ),
        (
            json!({ "a": "ippool.traffic-1" }),
            vec![
                "spec.capture.a",
                "`ippool.traffic-1`",
                "write ippool.NAME.allocate",
            ],
        ),
        (
            json!({ "a": " ippool " }),
            vec!["spec.capture.a", "write ippool.NAME.allocate"],
        ),
        (
            json!({ "a": "ippool.Traffic.allocate" }),
            vec!["spec.capture.a", "Traffic", "a-z, 0-9"],
        ),
        (json!({ "a": long }), vec!["spec.capture.a", "at most 63"]),
        (
            json!({ "my.addr": good }),
            vec!["spec.capture.my.addr", "letters, digits"],
        ),
        (
            json!({ "a": format!("{good} | interfaces.name==\"eth1\"") }),
            vec!["spec.capture.a", "pipes a pool capture", "capture.a.ip"],
        ),
        (
            json!({ "a": format!("{good} == \"10.0.0.1\"") }),
            vec!["spec.capture.a", "compares", "fields for templates"],
        ),
        (
            json!({ "a": good, "b": "interfaces.name!=\"eth1\"" }),
            vec!["spec.capture.b", "`!=`", "use =="],
        ),
        (
            json!({ "a": good, "b": "capture.a | interfaces.name==\"eth1\"" }),
            vec!["spec.capture.b", "pipes", "fields for templates"],
        ),
        (
            json!({ "a": good, "b": "interfaces.name==capture.a.ip" }),
            vec!["spec.capture.b", "compares", "fields for templates"],
        ),
        (
            json!({ "a": good, "b": "interfaces.name:=ippool.x.allocate" }),
            vec!["spec.capture.b", "compares", "fields for templates"],
        ),
    ];
    for (capture, words) in cases {
        assert!(
            PoolPolicy::read(&json!({ "capture": capture })).is_err(),
            "{capture}"
        );
        let refused = create(&capture).await;
        let text = refused.expect_err(&capture.to_string()).to_string();
        for word in words {
            assert!(text.contains(word), "`{word}` is not in: {text}");
        }
    }
    for capture in [
        json!({ "a": good, "b": " ippool.sub.domain-2.allocate " }),
        json!({ "a": good, "b": "interfaces.name==\"a!=b|capture.a\"", "c": "capture.b | routes.running.destination==\"0.0.0.0/0\"" }),
        json!({ "a": good, "b": "capture.ab.interfaces.0.name", "ab": "interfaces.name==\"eth1\"" }),
        json!({ "a": "interfaces.name!=\"eth1\"" }),
    ] {
        create(&capture).await.unwrap();
        let read = PoolPolicy::read(&json!({ "capture": capture }));
        assert!(read.is_ok(), "{read:?}");
    }
}

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
