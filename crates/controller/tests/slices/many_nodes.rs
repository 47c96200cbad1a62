//! A cluster is scaled down: many nodes are deleted at once, and one of them leaves something that can't be judged.
//!
//! Calico #8643: a block that could not be released blocked all the others, pass after pass, until no block was left
//! for new nodes. Here each slice is judged separately; what can't be read counts as used (I5), and keeps only its
//! own slice.

use berth_controller::networks::reason;
use berth_testkit::{Fate, FaultProxy};
use serde_json::json;

use crate::test_cluster::TestCluster;
use crate::test_controller;

fn names() -> impl Iterator<Item = String> {
    (0..20).map(|n| format!("n{n:02}"))
}

/// The slices that nodes have, with their nodes.
async fn held(cluster: &TestCluster) -> Vec<String> {
    let rows = cluster.rows("blue").await;
    rows.into_iter().filter(|row| !row.ends_with(' ')).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn calico_8643_a_slice_that_can_not_be_judged_holds_up_no_other() {
    let cluster = TestCluster::new("mass").await;
    let ipam = json!({ "range": "10.0.0.0/22", "node_slice_size": "/27", "network_name": "blue" });
    cluster.network("net", ipam).await;
    cluster.many_nodes(names()).await;
    let running = cluster.controller();
    let held = async || held(&cluster).await;
    cluster
        .until("all nodes have one", async || held().await.len() == 20)
        .await;
    let of_n03 = held().await.remove(3);
    assert_eq!(of_n03, "10.0.0.96/27 n03");
    // Not the slice's range: the entries can't be interpreted.
    cluster
        .put_entries(
            "blue-n03-10.0.0.96-27",
            "10.9.0.0/16",
            &[("1", "long-gone")],
        )
        .await;
    for name in names() {
        cluster.delete_node(&name).await;
    }
    cluster
        .until("the others' are free", async || {
            held().await == [of_n03.as_str()]
        })
        .await;
    cluster
        .until("reported what stays, and why", async || {
            let events = cluster.events(&cluster.namespace, "net").await;
            events.iter().any(|(kind, message)| {
                kind == reason::UNREADABLE && message.contains("blue-n03-10.0.0.96-27")
            })
        })
        .await;
    cluster.node("new").await;
    cluster
        .until("a new node is served", async || {
            held().await == ["10.0.0.0/27 new", of_n03.as_str()]
        })
        .await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn calico_8643_a_claim_that_can_not_be_judged_holds_up_no_other() {
    let cluster = TestCluster::new("massclaims").await;
    let ipam = json!({ "range": "10.0.0.0/23", "fast_ipam": true });
    cluster.network("net", ipam).await;
    for n in 0..20 {
        let (name, range) = (
            format!("10.0.0.{}-29", 8 * n),
            format!("10.0.0.{}/29", 8 * n),
        );
        cluster
            .claim(&name, &range, &format!("n{n:02}"), json!([]))
            .await;
    }
    cluster
        .put_entries("n03-10.0.0.24-29", "10.9.0.0/16", &[("1", "long-gone")])
        .await;
    // Nor is it known what this node has.
    cluster.claim("odd", "nonsense", "n05", json!([])).await;
    let running = cluster.controller();
    cluster
        .until("the others' are free", async || {
            cluster.claims().await == ["10.0.0.24-29 n03 3", "10.0.0.40-29 n05 3", "odd n05 3"]
        })
        .await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn calico_8643_a_pool_that_can_not_be_deleted_holds_up_no_other() {
    let cluster = TestCluster::new("masspools").await;
    let ipam = json!({ "range": "10.0.0.0/24", "node_slice_size": "/27", "network_name": "blue" });
    cluster.network("net", ipam).await;
    cluster.nodes(&["a", "b", "c"]).await;
    let relay = FaultProxy::new(cluster.cluster).await.unwrap();
    let barred = "blue-b-10.0.0.32-27";
    relay.rule(
        move |asked| match asked.method == "DELETE" && asked.path.ends_with(barred) {
            true => Fate::Refuse {
                code: 403,
                retry_after: None,
            },
            false => Fate::Pass,
        },
    );
    let config = test_controller::config(relay.kubeconfig(), &cluster.namespace);
    let running = test_controller::start(config);
    let held = async || held(&cluster).await;
    cluster
        .until("all nodes have one", async || held().await.len() == 3)
        .await;
    cluster
        .put_entries(barred, "10.0.0.32/27", &[("1", "long-gone")])
        .await;
    for node in ["a", "b", "c"] {
        cluster.delete_node(node).await;
    }
    cluster
        .until("the others' are free", async || {
            held().await == ["10.0.0.32/27 b"]
        })
        .await;
    relay.rule(|_| Fate::Pass);
    cluster
        .until("and so is this, once it can be", async || {
            held().await.is_empty()
        })
        .await;
    assert_eq!(cluster.ip_pools().await, Vec::<String>::new());
    running.stop().await;
}
