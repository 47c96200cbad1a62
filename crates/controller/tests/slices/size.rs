//! Ranges of many slices: one write for many nodes, and more slices than an object holds.

use std::time::Duration;

use serde_json::json;

use crate::test_cluster::TestCluster;
use crate::test_controller;

#[tokio::test(flavor = "multi_thread")]
async fn four_thousand_slices_are_one_object_and_many_nodes_are_one_write() {
    let cluster = TestCluster::new("many").await;
    cluster
        .many_nodes((0..200).map(|n| format!("n{n:03}")))
        .await;
    let ipam = json!({ "range": "10.0.0.0/16", "node_slice_size": "/28" });
    cluster.network("net", ipam).await;
    let mut config = cluster.config();
    // Longer than it takes to create the nodes below: changes that come together are written together.
    config.slices.gather = Duration::from_secs(5);
    let running = test_controller::start(config);
    let served = async |count: usize| {
        let rows = cluster.rows("cni").await;
        let nodes = rows.iter().filter(|row| !row.ends_with(' '));
        rows.len() == 4096 && nodes.count() == count
    };
    cluster.until("200 nodes", async || served(200).await).await;
    let generation = async || {
        cluster
            .pool("cni")
            .await
            .unwrap()
            .metadata
            .generation
            .unwrap()
    };
    let before = generation().await;
    cluster
        .many_nodes((200..300).map(|n| format!("n{n:03}")))
        .await;
    cluster.until("300 nodes", async || served(300).await).await;
    let writes = generation().await - before;
    assert!(writes <= 3, "{writes} writes for 100 nodes");
    assert_eq!(cluster.rows("cni").await[299], "10.0.18.176/28 n299");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_one_object_does_not_hold_is_on_further_ones() {
    let cluster = TestCluster::new("pages").await;
    cluster.nodes(&["a", "b", "c"]).await;
    // 32,768 slices of which the first 8,191 have no address: the last of the first page, then the next.
    let ipam = |range: &str| json!({ "range": range, "node_slice_size": "/23", "range_start": "10.63.254.0", "network_name": "blue" });
    cluster.network("net", ipam("10.0.0.0/8")).await;
    let running = cluster.controller();
    cluster.until_rows("blue", &["10.63.254.0/23 a"]).await;
    cluster
        .until_rows("blue--p1", &["10.64.0.0/23 b", "10.64.2.0/23 c"])
        .await;
    cluster.delete_node("b").await;
    cluster.until_rows("blue--p1", &["10.64.2.0/23 c"]).await;
    let epochs = cluster.annotation("blue--p1", "berth.dev/epochs").await;
    assert_eq!(epochs.as_deref(), Some(r#"{"10.64.0.0/23":1}"#));
    // A page without an assigned slice still has their epochs (I8).
    cluster.delete_node("c").await;
    let both = r#"{"10.64.0.0/23":1,"10.64.2.0/23":1}"#;
    cluster
        .until("taken back, both", async || {
            let epochs = cluster.annotation("blue--p1", "berth.dev/epochs").await;
            epochs.as_deref() == Some(both) && cluster.rows("blue--p1").await.is_empty()
        })
        .await;
    // A controller that starts again finds all of it.
    running.stop().await;
    let running = cluster.controller();
    cluster.nodes(&["d"]).await;
    cluster.until_rows("blue--p1", &["10.64.0.0/23 d"]).await;
    let epochs = cluster.annotation("blue--p1", "berth.dev/epochs").await;
    assert_eq!(epochs.as_deref(), Some(both));
    cluster.delete_network(&cluster.namespace, "net").await;
    for object in ["blue", "blue--p1"] {
        cluster
            .until("gone", async || cluster.pool(object).await.is_none())
            .await;
    }
    running.stop().await;
}
