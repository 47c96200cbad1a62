//! Controllers that lead at the same time.

use std::time::Duration;

use berth_testkit::{Asked, Fate, FaultProxy};
use serde_json::json;

use crate::test_cluster::TestCluster;
use crate::test_controller;

/// Nodes had the same CIDR: a new leader of the operator allocated again what the last one had just allocated,
/// because each kept that in memory (see #21482). Here it is in one object, and a write succeeds only on the version
/// that was read: that of a deposed leader assigns nothing.
#[tokio::test(flavor = "multi_thread")]
async fn cilium_17277_a_leader_that_was_overtaken_gives_nothing() {
    let cluster = TestCluster::new("leaders").await;
    let ipam = json!({ "range": "10.0.0.0/24", "node_slice_size": "/26", "network_name": "blue" });
    cluster.network("net", ipam).await;
    cluster.node("z").await;
    let relay = FaultProxy::new(cluster.cluster).await.unwrap();
    let config = test_controller::config(relay.kubeconfig(), &cluster.namespace);
    let old = test_controller::start(config);
    let row = async |n: usize| cluster.rows("blue").await.get(n).cloned();
    let is = |slice: &str, node: &str| Some(format!("{slice} {node}"));
    cluster
        .until("the old one leads", async || {
            row(0).await == is("10.0.0.0/26", "z")
        })
        .await;
    let is_write = |asked: &Asked| asked.method == "PATCH" && asked.path.ends_with("/blue");
    let mut held = false;
    relay.rule(move |asked| match is_write(asked) && !held {
        true => {
            held = true;
            Fate::Later(Duration::from_secs(10))
        }
        false => Fate::Pass,
    });
    let writes = || -> Vec<Option<u16>> {
        let seen = relay.seen().into_iter();
        let writes = seen.filter(|(asked, _)| is_write(asked));
        writes.map(|(_, code)| code).collect()
    };
    let before = writes().len();
    cluster.node("m").await;
    cluster
        .until("it is about to give m the second", async || {
            writes().len() > before
        })
        .await;
    cluster.node("a").await;
    let new = cluster.controller();
    cluster
        .until("the new one has given it to a", async || {
            row(1).await == is("10.0.0.64/26", "a")
        })
        .await;
    cluster
        .until("the old one's write has come", async || {
            writes()[before].is_some()
        })
        .await;
    assert!(
        matches!(writes()[before], Some(409 | 422)),
        "{:?}",
        writes()
    );
    let rows = [
        "10.0.0.0/26 z",
        "10.0.0.64/26 a",
        "10.0.0.128/26 m",
        "10.0.0.192/26 ",
    ];
    cluster.until_rows("blue", &rows).await;
    old.stop().await;
    new.stop().await;
}
