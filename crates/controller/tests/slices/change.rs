//! Ranges and sizes that change under slices that are in use, or not.

use berth_api::slices::EPOCHS;
use berth_controller::networks::reason;
use serde_json::{Value, json};

use crate::test_cluster::World;

fn ipam(range: &str, size: &str) -> Value {
    json!({ "range": range, "node_slice_size": size, "network_name": "blue" })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_range_that_grows_keeps_every_slice_where_it_is() {
    let world = World::new("grow").await;
    world.nodes(&["a", "b", "c"]).await;
    world.network("net", ipam("10.0.1.0/25", "/26")).await;
    let running = world.controller();
    world
        .until_rows("blue", &["10.0.1.0/26 a", "10.0.1.64/26 b"])
        .await;
    world.run_pod("web", "a", "net").await;
    world.network("net", ipam("10.0.0.0/23", "/26")).await;
    let rows = [
        "10.0.1.0/26 a",
        "10.0.1.64/26 b",
        "10.0.0.0/26 c",
        "10.0.0.64/26 ",
        "10.0.0.128/26 ",
        "10.0.0.192/26 ",
        "10.0.1.128/26 ",
        "10.0.1.192/26 ",
    ];
    world.until_rows("blue", &rows).await;
    assert_eq!(world.annotation("blue", EPOCHS).await, None);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_under_live_addresses_is_refused_and_names_them_and_later_made() {
    let world = World::new("change").await;
    world.nodes(&["a", "b"]).await;
    world.network("net", ipam("10.0.0.0/24", "/26")).await;
    let running = world.controller();
    let before = [
        "10.0.0.0/26 a",
        "10.0.0.64/26 b",
        "10.0.0.128/26 ",
        "10.0.0.192/26 ",
    ];
    world.until_rows("blue", &before).await;
    world.run_pod("web", "b", "net").await;
    world
        .put_entries("blue-b-10.0.0.64-26", "10.0.0.64/26", &[("5", "web")])
        .await;
    world.network("net", ipam("10.0.0.0/24", "/27")).await;
    world
        .until("refused", async || {
            let (kinds, message) = world.conditions("blue").await;
            kinds == [reason::CHANGE_REFUSED]
                && message.contains("10.0.0.69 of ")
                && message.contains("/web on b")
        })
        .await;
    world
        .until("told", async || {
            let events = world.events(&world.namespace, "net").await;
            events
                .iter()
                .any(|(kind, _)| kind == reason::CHANGE_REFUSED)
        })
        .await;
    assert_eq!(world.rows("blue").await, before);
    // New nodes are served meanwhile, as the range is cut now.
    world.node("c").await;
    world
        .until("c is served", async || {
            world.rows("blue").await[2] == "10.0.0.128/26 c"
        })
        .await;

    world.delete_pod("web").await;
    world
        .until("cut anew", async || {
            world.rows("blue").await.len() == 8 && world.conditions("blue").await.0.is_empty()
        })
        .await;
    let rows = world.rows("blue").await;
    assert_eq!(
        rows[..3],
        ["10.0.0.0/27 a", "10.0.0.32/27 b", "10.0.0.64/27 c"]
    );
    assert_eq!(world.ip_pools().await, Vec::<String>::new());
    let spec = world.pool("blue").await.unwrap().data["spec"].clone();
    assert_eq!(spec, json!({ "range": "10.0.0.0/24", "sliceSize": "/27" }));
    running.stop().await;
}

/// A pool was made smaller, or deleted, under nodes that used its CIDRs; the operator lost count of those, and when the pool was
/// there again, or larger, gave them to other nodes. Here what is in use stays its node's, whatever the definition says
/// meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn cilium_41986_a_range_that_shrinks_goes_and_comes_back_larger() {
    let world = World::new("extend").await;
    world.nodes(&["a", "b", "c"]).await;
    world.network("net", ipam("10.0.0.0/24", "/26")).await;
    let running = world.controller();
    let first = ["10.0.0.0/26 a", "10.0.0.64/26 b", "10.0.0.128/26 c"];
    let begins = async |expected: &[&str]| {
        let rows = world.rows("blue").await;
        rows.len() >= expected.len() && rows[..expected.len()] == *expected
    };
    world
        .until("each has one", async || begins(&first).await)
        .await;
    world.run_pod("web", "c", "net").await;
    world
        .put_entries("blue-c-10.0.0.128-26", "10.0.0.128/26", &[("5", "web")])
        .await;
    let refused = async |kind: &str| {
        let (kinds, message) = world.conditions("blue").await;
        kinds.iter().any(|one| one == kind) && message.contains("10.0.0.133 of ")
    };
    world.network("net", ipam("10.0.0.0/25", "/26")).await;
    world
        .until("it does not shrink", async || {
            refused(reason::CHANGE_REFUSED).await
        })
        .await;
    world.delete_network(&world.namespace, "net").await;
    world
        .until("it does not go", async || {
            refused(reason::DELETION_REFUSED).await
        })
        .await;
    world.nodes(&["0", "1", "2"]).await;
    world.network("net", ipam("10.0.0.0/23", "/26")).await;
    let served = [
        "10.0.0.0/26 a",
        "10.0.0.64/26 b",
        "10.0.0.128/26 c",
        "10.0.0.192/26 0",
        "10.0.1.0/26 1",
        "10.0.1.64/26 2",
    ];
    world
        .until("the new ones have others", async || begins(&served).await)
        .await;
    assert_eq!(world.annotation("blue", EPOCHS).await, None);
    assert_eq!(world.ip_pools().await, ["blue-c-10.0.0.128-26"]);
    running.stop().await;
}

/// A slip of the pen is no farewell: what can't be read leaves everything as it is.
#[tokio::test(flavor = "multi_thread")]
async fn a_definition_that_becomes_unreadable_keeps_its_pool() {
    let world = World::new("typo").await;
    world.nodes(&["a"]).await;
    world.network("net", ipam("10.0.0.0/24", "/25")).await;
    let running = world.controller();
    let rows = ["10.0.0.0/25 a", "10.0.0.128/25 "];
    world.until_rows("blue", &rows).await;
    world.network("net", ipam("10.0.0.0/24", "/2 5")).await;
    world
        .until("told", async || {
            let events = world.events(&world.namespace, "net").await;
            events.iter().any(|(kind, _)| kind == reason::INVALID)
        })
        .await;
    tokio::time::sleep(crate::test_controller::GRACE * 3).await;
    assert_eq!(world.rows("blue").await, rows);
    // What somebody deletes by hand is made again, as long as it is wanted.
    world.network("net", ipam("10.0.0.0/24", "/25")).await;
    let pools = world.objects("NodeSlicePool");
    pools
        .delete("blue", &kube::api::DeleteParams::default())
        .await
        .unwrap();
    world.until_rows("blue", &rows).await;
    running.stop().await;
}

/// What Berth can't read it does not write over (I5).
#[tokio::test(flavor = "multi_thread")]
async fn a_pool_that_can_not_be_read_is_told_and_left() {
    let world = World::new("unreadable").await;
    world.nodes(&["a"]).await;
    let object = json!({
        "apiVersion": "whereabouts.cni.cncf.io/v1alpha1", "kind": "NodeSlicePool",
        "metadata": { "name": "blue" },
        "spec": { "range": "nonsense", "sliceSize": "/25" },
        "status": { "allocations": [] },
    });
    let pools = world.objects("NodeSlicePool");
    let object = serde_json::from_value(object).unwrap();
    pools
        .create(&kube::api::PostParams::default(), &object)
        .await
        .unwrap();
    world.network("net", ipam("10.0.0.0/24", "/25")).await;
    let running = world.controller();
    world
        .until("told", async || {
            let events = world.events(&world.namespace, "net").await;
            events
                .iter()
                .any(|(kind, message)| kind == reason::UNREADABLE && message.contains("nonsense"))
        })
        .await;
    let spec = world.pool("blue").await.unwrap().data["spec"].clone();
    assert_eq!(spec["range"], "nonsense");
    running.stop().await;
}
