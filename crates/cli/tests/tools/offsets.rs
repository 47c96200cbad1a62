//! `berth offsets` on pools of a cluster.

use serde_json::json;

use crate::world::World;

#[tokio::test(flavor = "multi_thread")]
async fn offsets_of_a_stored_pool_and_who_has_them() {
    let world = World::new().await;
    // Cluster-scoped: a name of this test's own.
    let name = format!("traffic-{}", world.namespace);
    let range = json!({ "cidr": "10.90.0.0/24", "start": "10.90.0.1", "end": "10.90.0.10", "exclude": ["10.90.0.4"] });
    let allocation = json!({ "ip": "10.90.0.2", "offset": 1, "node": "node-7", "policy": "static-ip", "capture": "a" });
    let pool = json!({
        "apiVersion": "nmstate.io/v1", "kind": "NodeIPPool", "metadata": { "name": name },
        "spec": { "range": range },
    });
    world.apply(pool).await;
    let status = json!({ "allocated-offsets": [0, 1, 99], "allocations": [allocation] });
    let patch = json!({ "status": status }).to_string();
    let target = format!("nodeippool/{name}");
    let flags = ["--subresource=status", "--type=merge", "--patch", &patch];
    world.kubectl(&[["patch", &target].as_slice(), &flags].concat());

    let said = world.berth(&["offsets", &name, "1", "10.90.0.4", "-o", "json"]);
    // What the status holds past the pool's end is told, and the rest is shown.
    assert!(
        said.stderr.contains("[99]") && said.stderr.contains("last offset is 9"),
        "{said}"
    );
    assert_eq!(
        said.json(),
        json!([
            { "offset": 1, "ip": "10.90.0.2", "state": "allocated", "node": "node-7", "policy": "static-ip", "capture": "a" },
            { "offset": 3, "ip": "10.90.0.4", "state": "excluded" },
        ])
    );
    let complaint = world.berth(&["offsets", "no-such-pool", "1"]).failed(3);
    assert!(
        complaint.contains("no-such-pool") && complaint.contains("kubectl get nodeippools"),
        "{complaint}"
    );
}
