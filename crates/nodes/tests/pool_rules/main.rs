//! What the API server itself refuses in a NodeIPPool: every rule of the definition, on a real server.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod captures;
mod create;
mod update;

use berth_api::nmstate::{NodeIPPool, NodeIPPoolSpec};
use berth_nodes::pool::{PoolSpace, SpecError};
use berth_testkit::Cluster;
use kube::api::{Api, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};

const CRD: &str = include_str!("../../../../deploy/crds/nmstate.io_nodeippools.yaml");

async fn pools() -> Api<DynamicObject> {
    let cluster = Cluster::shared().await;
    cluster.apply(CRD).await.unwrap();
    let gvk = GroupVersionKind::gvk("nmstate.io", "v1", "NodeIPPool");
    let resource = ApiResource::from_gvk_with_plural(&gvk, "nodeippools");
    Api::all_with(cluster.client().await.unwrap(), &resource)
}

fn object(name: &str, spec: Value) -> DynamicObject {
    let object = json!({ "apiVersion": "nmstate.io/v1", "kind": "NodeIPPool", "metadata": { "name": name }, "spec": spec });
    serde_json::from_value(object).unwrap()
}

fn good() -> Value {
    json!({ "range": { "cidr": "10.10.10.0/24", "start": "10.10.10.1", "end": "10.10.10.10", "exclude": ["10.10.10.4", "10.10.10.7"] } })
}

/// `good()` with one value replaced, or removed if it is null.
fn with(pointer: &[&str], value: Value) -> Value {
    let mut spec = good();
    let (last, path) = pointer.split_last().unwrap();
    let mut place = &mut spec;
    for step in path {
        place = &mut place[*step];
    }
    match value {
        Value::Null => drop(place.as_object_mut().unwrap().remove(*last)),
        value => place[*last] = value,
    }
    spec
}

fn range(cidr: &str, start: &str, end: &str, exclude: &[&str]) -> Value {
    let mut range = json!({ "cidr": cidr });
    for (name, value) in [("start", start), ("end", end)] {
        if !value.is_empty() {
            range[name] = json!(value);
        }
    }
    if !exclude.is_empty() {
        range["exclude"] = json!(exclude);
    }
    json!({ "range": range })
}

fn read(spec: &Value) -> Result<PoolSpace, SpecError> {
    let spec: NodeIPPoolSpec = serde_json::from_value(spec.clone()).unwrap();
    PoolSpace::read(&spec)
}

/// The largest pool that the schema takes stays within what the server spends on one object, and its status can be written.
#[tokio::test(flavor = "multi_thread")]
async fn the_largest_pool_is_within_the_servers_budget() {
    let pools = pools().await;
    let excludes = |net: u32| -> Vec<String> {
        (1..=32)
            .map(|n| format!("fd00:{net:x}::{:x}", n * 2))
            .collect()
    };
    let mk = |net: u32| json!({ "cidr": format!("fd00:{net:x}::/64"), "start": format!("fd00:{net:x}::1"), "end": format!("fd00:{net:x}:0:0:ffff:ffff:ffff:fffe"), "exclude": excludes(net) });
    let reservations: serde_json::Map<String, Value> = (0..256)
        .map(|n| {
            (
                format!("node-{n}.example.com"),
                json!(format!("fd00::ffff:{n:x}")),
            )
        })
        .collect();
    let spec = json!({
        "range": mk(0),
        "ranges": (1..=8).map(mk).collect::<Vec<Value>>(),
        "reservations": reservations,
    });
    read(&spec).unwrap();
    pools
        .create(&PostParams::default(), &object("largest", spec))
        .await
        .unwrap();
    let status =
        json!({ "status": { "allocated-offsets": [0, 1, 2], "total": 3, "used": 3, "free": 0 } });
    let patched = pools
        .patch_status("largest", &PatchParams::default(), &Patch::Merge(&status))
        .await
        .unwrap();
    assert_eq!(
        patched.data["status"]["allocated-offsets"],
        json!([0, 1, 2])
    );
}

/// The columns that `kubectl get` prints.
#[tokio::test(flavor = "multi_thread")]
async fn kubectl_prints_total_used_and_free() {
    let pools = pools().await;
    pools
        .create(&PostParams::default(), &object("columns", good()))
        .await
        .unwrap();
    let status = json!({ "status": { "total": 8, "used": 2, "free": 6, "conditions": [{
        "type": "Available", "status": "True", "reason": "ReconciledPool", "message": "The pool is up to date", "lastTransitionTime": "2026-11-17T00:00:00Z" }] } });
    pools
        .patch_status("columns", &PatchParams::default(), &Patch::Merge(&status))
        .await
        .unwrap();
    let printed = Cluster::shared()
        .await
        .kubectl(&["get", "nip", "columns"])
        .unwrap();
    let text = String::from_utf8(printed.stdout).unwrap();
    let words: Vec<&str> = text.split_whitespace().collect();
    assert_eq!(
        words[..8],
        [
            "NAME",
            "CIDR",
            "TOTAL",
            "USED",
            "FREE",
            "AVAILABLE",
            "REASON",
            "AGE"
        ]
    );
    assert_eq!(
        words[8..15],
        [
            "columns",
            "10.10.10.0/24",
            "8",
            "2",
            "6",
            "True",
            "ReconciledPool"
        ]
    );
    let typed: NodeIPPool =
        serde_json::from_value(serde_json::to_value(pools.get("columns").await.unwrap()).unwrap())
            .unwrap();
    assert_eq!(typed.status.unwrap().free, Some(6));
}

/// Host bits are masked, and `kubectl` prints a warning that says so.
#[tokio::test(flavor = "multi_thread")]
async fn host_bits_are_warned_about() {
    let cluster = Cluster::shared().await;
    pools().await;
    let policy = include_str!("../../../../deploy/crds/policy-nodeippools.yaml");
    cluster.apply(policy).await.unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    let object = object("host-bits", range("10.10.11.0/16", "10.10.11.4", "", &[]));
    std::fs::write(file.path(), serde_json::to_string(&object).unwrap()).unwrap();
    let path = file.path().to_str().unwrap();
    let arguments = ["apply", "--dry-run=server", "-f", path];
    let expected = "10.10.11.0/16 has host bits and is read as 10.10.0.0/16";
    // The API server takes a new policy up after a moment.
    let begun = std::time::Instant::now();
    loop {
        let output = cluster.kubectl(&arguments).unwrap();
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        if text.contains(expected) {
            break;
        }
        assert!(begun.elapsed().as_secs() < 60, "{text}");
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    }
}
