//! Ranges and sizes that change while slices are in use, or not.

use berth_api::slices::EPOCHS;
use berth_controller::networks::reason;
use serde_json::{Value, json};

use crate::test_cluster::TestCluster;

fn ipam(range: &str, size: &str) -> Value {
    json!({ "range": range, "node_slice_size": size, "network_name": "blue" })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_range_that_grows_keeps_every_slice_where_it_is() {
    let cluster = TestCluster::new("grow").await;
    cluster.nodes(&["a", "b", "c"]).await;
    cluster.network("net", ipam("10.0.1.0/25", "/26")).await;
    let running = cluster.controller();
    cluster
        .until_rows("blue", &["10.0.1.0/26 a", "10.0.1.64/26 b"])
        .await;
    cluster.run_pod("web", "a", "net").await;
    cluster.network("net", ipam("10.0.0.0/23", "/26")).await;
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
    cluster.until_rows("blue", &rows).await;
    assert_eq!(cluster.annotation("blue", EPOCHS).await, None);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_under_live_addresses_is_refused_and_names_them_and_later_made() {
    let cluster = TestCluster::new("change").await;
    cluster.nodes(&["a", "b"]).await;
    cluster.network("net", ipam("10.0.0.0/24", "/26")).await;
    let running = cluster.controller();
    let before = [
        "10.0.0.0/26 a",
        "10.0.0.64/26 b",
        "10.0.0.128/26 ",
        "10.0.0.192/26 ",
    ];
    cluster.until_rows("blue", &before).await;
    cluster.run_pod("web", "b", "net").await;
    cluster
        .put_entries("blue-b-10.0.0.64-26", "10.0.0.64/26", &[("5", "web")])
        .await;
    cluster.network("net", ipam("10.0.0.0/24", "/27")).await;
    cluster
        .until("refused", async || {
            let (kinds, message) = cluster.conditions("blue").await;
            kinds == [reason::CHANGE_REFUSED]
                && message.contains("10.0.0.69 of ")
                && message.contains("/web on b")
        })
        .await;
    cluster
        .until("reported", async || {
            let events = cluster.events(&cluster.namespace, "net").await;
            events
                .iter()
                .any(|(kind, _)| kind == reason::CHANGE_REFUSED)
        })
        .await;
    assert_eq!(cluster.rows("blue").await, before);
    // New nodes are served meanwhile, as the range is cut now.
    cluster.node("c").await;
    cluster
        .until("c is served", async || {
            cluster.rows("blue").await[2] == "10.0.0.128/26 c"
        })
        .await;

    cluster.delete_pod("web").await;
    cluster
        .until("cut again", async || {
            cluster.rows("blue").await.len() == 8 && cluster.conditions("blue").await.0.is_empty()
        })
        .await;
    let rows = cluster.rows("blue").await;
    assert_eq!(
        rows[..3],
        ["10.0.0.0/27 a", "10.0.0.32/27 b", "10.0.0.64/27 c"]
    );
    assert_eq!(cluster.ip_pools().await, Vec::<String>::new());
    let spec = cluster.pool("blue").await.unwrap().data["spec"].clone();
    assert_eq!(spec, json!({ "range": "10.0.0.0/24", "sliceSize": "/27" }));
    running.stop().await;
}

/// A pool was made smaller, or deleted, under nodes that used its CIDRs; the operator lost count of those, and when
/// the pool was created again, or enlarged, allocated them to other nodes. Here what is in use stays with its node,
/// whatever the definition is meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn cilium_41986_a_range_that_shrinks_goes_and_comes_back_larger() {
    let cluster = TestCluster::new("extend").await;
    cluster.nodes(&["a", "b", "c"]).await;
    cluster.network("net", ipam("10.0.0.0/24", "/26")).await;
    let running = cluster.controller();
    let first = ["10.0.0.0/26 a", "10.0.0.64/26 b", "10.0.0.128/26 c"];
    let starts = async |expected: &[&str]| {
        let rows = cluster.rows("blue").await;
        rows.len() >= expected.len() && rows[..expected.len()] == *expected
    };
    cluster
        .until("each has one", async || starts(&first).await)
        .await;
    cluster.run_pod("web", "c", "net").await;
    cluster
        .put_entries("blue-c-10.0.0.128-26", "10.0.0.128/26", &[("5", "web")])
        .await;
    let refused = async |kind: &str| {
        let (kinds, message) = cluster.conditions("blue").await;
        kinds.iter().any(|one| one == kind) && message.contains("10.0.0.133 of ")
    };
    cluster.network("net", ipam("10.0.0.0/25", "/26")).await;
    cluster
        .until("it does not shrink", async || {
            refused(reason::CHANGE_REFUSED).await
        })
        .await;
    cluster.delete_network(&cluster.namespace, "net").await;
    cluster
        .until("it does not go", async || {
            refused(reason::DELETION_REFUSED).await
        })
        .await;
    cluster.nodes(&["0", "1", "2"]).await;
    cluster.network("net", ipam("10.0.0.0/23", "/26")).await;
    let served = [
        "10.0.0.0/26 a",
        "10.0.0.64/26 b",
        "10.0.0.128/26 c",
        "10.0.0.192/26 0",
        "10.0.1.0/26 1",
        "10.0.1.64/26 2",
    ];
    cluster
        .until("the new ones have others", async || starts(&served).await)
        .await;
    assert_eq!(cluster.annotation("blue", EPOCHS).await, None);
    assert_eq!(cluster.ip_pools().await, ["blue-c-10.0.0.128-26"]);
    running.stop().await;
}

/// A typing error is no removal: an unreadable definition leaves everything as it is.
#[tokio::test(flavor = "multi_thread")]
async fn a_definition_that_becomes_unreadable_keeps_its_pool() {
    let cluster = TestCluster::new("typo").await;
    cluster.nodes(&["a"]).await;
    cluster.network("net", ipam("10.0.0.0/24", "/25")).await;
    let running = cluster.controller();
    let rows = ["10.0.0.0/25 a", "10.0.0.128/25 "];
    cluster.until_rows("blue", &rows).await;
    cluster.network("net", ipam("10.0.0.0/24", "/2 5")).await;
    cluster
        .until("reported", async || {
            let events = cluster.events(&cluster.namespace, "net").await;
            events.iter().any(|(kind, _)| kind == reason::INVALID)
        })
        .await;
    tokio::time::sleep(crate::test_controller::GRACE * 3).await;
    assert_eq!(cluster.rows("blue").await, rows);
    // What was deleted by hand is created again, as long as a definition wants it.
    cluster.network("net", ipam("10.0.0.0/24", "/25")).await;
    let pools = cluster.objects("NodeSlicePool");
    pools
        .delete("blue", &kube::api::DeleteParams::default())
        .await
        .unwrap();
    cluster.until_rows("blue", &rows).await;
    running.stop().await;
}

/// Berth does not overwrite what it can't read (I5).
#[tokio::test(flavor = "multi_thread")]
async fn a_pool_that_can_not_be_read_is_reported_and_left() {
    let cluster = TestCluster::new("unreadable").await;
    cluster.nodes(&["a"]).await;
    let object = json!({
        "apiVersion": "whereabouts.cni.cncf.io/v1alpha1", "kind": "NodeSlicePool",
        "metadata": { "name": "blue" },
        "spec": { "range": "nonsense", "sliceSize": "/25" },
        "status": { "allocations": [] },
    });
    let pools = cluster.objects("NodeSlicePool");
    let object = serde_json::from_value(object).unwrap();
    pools
        .create(&kube::api::PostParams::default(), &object)
        .await
        .unwrap();
    cluster.network("net", ipam("10.0.0.0/24", "/25")).await;
    let running = cluster.controller();
    cluster
        .until("reported", async || {
            let events = cluster.events(&cluster.namespace, "net").await;
            events
                .iter()
                .any(|(kind, message)| kind == reason::UNREADABLE && message.contains("nonsense"))
        })
        .await;
    let spec = cluster.pool("blue").await.unwrap().data["spec"].clone();
    assert_eq!(spec["range"], "nonsense");
    running.stop().await;
}
