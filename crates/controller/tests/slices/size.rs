//! Ranges of many slices: one write for many nodes, and more slices than an object holds.

use std::time::Duration;

use serde_json::json;

use crate::test_cluster::World;
use crate::test_controller;

#[tokio::test(flavor = "multi_thread")]
async fn four_thousand_slices_are_one_object_and_many_nodes_are_one_write() {
    let world = World::new("many").await;
    world.many_nodes((0..200).map(|n| format!("n{n:03}"))).await;
    let ipam = json!({ "range": "10.0.0.0/16", "node_slice_size": "/28" });
    world.network("net", ipam).await;
    let mut config = world.config();
    // Longer than it takes to make the nodes below: what comes together is written together.
    config.slices.gather = Duration::from_secs(5);
    let running = test_controller::start(config);
    let served = async |count: usize| {
        let rows = world.rows("cni").await;
        let nodes = rows.iter().filter(|row| !row.ends_with(' '));
        rows.len() == 4096 && nodes.count() == count
    };
    world.until("200 nodes", async || served(200).await).await;
    let generation = async || {
        world
            .pool("cni")
            .await
            .unwrap()
            .metadata
            .generation
            .unwrap()
    };
    let before = generation().await;
    world
        .many_nodes((200..300).map(|n| format!("n{n:03}")))
        .await;
    world.until("300 nodes", async || served(300).await).await;
    let writes = generation().await - before;
    assert!(writes <= 3, "{writes} writes for 100 nodes");
    assert_eq!(world.rows("cni").await[299], "10.0.18.176/28 n299");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_one_object_does_not_hold_is_on_further_ones() {
    let world = World::new("pages").await;
    world.nodes(&["a", "b", "c"]).await;
    // 32,768 slices of which the first 8,191 have no address: the last of the first page, then the next.
    let ipam = |range: &str| json!({ "range": range, "node_slice_size": "/23", "range_start": "10.63.254.0", "network_name": "blue" });
    world.network("net", ipam("10.0.0.0/8")).await;
    let running = world.controller();
    world.until_rows("blue", &["10.63.254.0/23 a"]).await;
    world
        .until_rows("blue--p1", &["10.64.0.0/23 b", "10.64.2.0/23 c"])
        .await;
    world.delete_node("b").await;
    world.until_rows("blue--p1", &["10.64.2.0/23 c"]).await;
    let epochs = world.annotation("blue--p1", "berth.dev/epochs").await;
    assert_eq!(epochs.as_deref(), Some(r#"{"10.64.0.0/23":1}"#));
    // A page without a slice that somebody has tells of their epochs still (I8).
    world.delete_node("c").await;
    let both = r#"{"10.64.0.0/23":1,"10.64.2.0/23":1}"#;
    world
        .until("taken back, both", async || {
            let epochs = world.annotation("blue--p1", "berth.dev/epochs").await;
            epochs.as_deref() == Some(both) && world.rows("blue--p1").await.is_empty()
        })
        .await;
    // A controller that starts anew finds all of it.
    running.stop().await;
    let running = world.controller();
    world.nodes(&["d"]).await;
    world.until_rows("blue--p1", &["10.64.0.0/23 d"]).await;
    let epochs = world.annotation("blue--p1", "berth.dev/epochs").await;
    assert_eq!(epochs.as_deref(), Some(both));
    world.delete_network(&world.namespace, "net").await;
    for object in ["blue", "blue--p1"] {
        world
            .until("gone", async || world.pool(object).await.is_none())
            .await;
    }
    running.stop().await;
}
