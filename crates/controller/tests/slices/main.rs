//! The controller on a real API server: ranges are cut, nodes get slices, and keep them until they are gone.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod change;
mod leaders;
mod loss;
mod many_nodes;
mod peer;
mod size;
mod test_cluster;
#[path = "../test_controller/mod.rs"]
mod test_controller;

use berth_controller::networks::reason;
use serde_json::json;

use test_cluster::{TestCluster, conf};

/// Case 21 of the known cases.
#[tokio::test(flavor = "multi_thread")]
async fn two_nodes_get_the_first_two_slices_and_a_third_the_next() {
    let cluster = TestCluster::new("case21").await;
    cluster.nodes(&["b", "a"]).await;
    let ipam = json!({ "range": "10.0.0.0/8", "node_slice_size": "/10" });
    cluster.network("net", ipam).await;
    let running = cluster.controller();
    let rows = [
        "10.0.0.0/10 a",
        "10.64.0.0/10 b",
        "10.128.0.0/10 ",
        "10.192.0.0/10 ",
    ];
    cluster.until_rows("cni", &rows).await;
    let pool = cluster.pool("cni").await.unwrap();
    let spec = json!({ "range": "10.0.0.0/8", "sliceSize": "/10" });
    assert_eq!(pool.data["spec"], spec);

    // A node whose name sorts before the others takes nothing from them.
    cluster.nodes(&["0", "1", "2"]).await;
    let rows = [
        "10.0.0.0/10 a",
        "10.64.0.0/10 b",
        "10.128.0.0/10 0",
        "10.192.0.0/10 1",
    ];
    cluster.until_rows("cni", &rows).await;
    cluster
        .until("reported that there is none left", async || {
            let (kinds, message) = cluster.conditions("cni").await;
            kinds == [reason::EXHAUSTED] && message.contains("2 get none")
        })
        .await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ipv6_and_several_ranges_have_a_pool_each() {
    let cluster = TestCluster::new("v6").await;
    cluster.nodes(&["a", "b"]).await;
    let ipam = json!({
        "range": "fd00:1::/64", "node_slice_size": "/80", "network_name": "six",
        "range_start": "fd00:1::1:0:0:0",
        "ipRanges": [{ "range": "fd00:2::/112" }],
    });
    cluster.network("six", ipam).await;
    let both = json!({
        "range": "10.0.0.0/24", "node_slice_size": "26", "network_name": "both",
        "exclude": ["10.0.0.0/26"],
        "ipRanges": [{ "range": "fd00:3::/120" }],
    });
    cluster.network("both", both).await;
    let running = cluster.controller();
    // Of 65,536 slices only those that are assigned are listed; the first has no address from range_start on.
    cluster
        .until_rows("six", &["fd00:1:0:0:1::/80 a", "fd00:1:0:0:2::/80 b"])
        .await;
    let v4 = [
        "10.0.0.0/26 ",
        "10.0.0.64/26 a",
        "10.0.0.128/26 b",
        "10.0.0.192/26 ",
    ];
    cluster.until_rows("both", &v4).await;
    let v6 = [
        "fd00:3::/122 a",
        "fd00:3::40/122 b",
        "fd00:3::80/122 ",
        "fd00:3::c0/122 ",
    ];
    cluster.until_rows("both-fd00-3---120", &v6).await;
    // A second range that can't be cut is reported, and does not block the first.
    cluster
        .until("reported", async || {
            let events = cluster.events(&cluster.namespace, "six").await;
            events.iter().any(|(kind, message)| {
                kind == reason::INVALID
                    && message.contains("/80")
                    && message.contains("fd00:2::/112")
            })
        })
        .await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn definitions_of_one_network_share_a_pool_that_goes_with_the_last() {
    let cluster = TestCluster::new("shared").await;
    let other = cluster.cluster.namespace("other").await.unwrap();
    cluster.nodes(&["a"]).await;
    let ipam = json!({ "range": "10.0.0.0/24", "node_slice_size": "/25", "network_name": "blue" });
    cluster.network("one", ipam.clone()).await;
    // In another namespace, in a list of plugins.
    let listed = json!({ "cniVersion": "1.0.0", "name": "list", "plugins": [
        { "type": "tuning" }, conf("x", ipam),
    ]});
    cluster.network_in(&other, "two", &listed).await;
    let running = cluster.controller();
    cluster
        .until_rows("blue", &["10.0.0.0/25 a", "10.0.0.128/25 "])
        .await;
    let networks = format!("{other}/two,{}/one", cluster.namespace);
    let mut sorted: Vec<&str> = networks.split(',').collect();
    sorted.sort_unstable();
    cluster
        .until("both are named", async || {
            cluster.annotation("blue", "berth.dev/networks").await == Some(sorted.join(","))
        })
        .await;
    cluster.delete_network(&cluster.namespace, "one").await;
    cluster
        .until("one is left", async || {
            cluster.annotation("blue", "berth.dev/networks").await == Some(format!("{other}/two"))
        })
        .await;

    // The last definition is deleted while an address is in use: the pool stays, with the reason.
    cluster.run_pod("web", "a", "other/two").await;
    cluster
        .put_entries("blue-a-10.0.0.0-25", "10.0.0.0/25", &[("1", "web")])
        .await;
    cluster.delete_network(&other, "two").await;
    cluster
        .until("refused", async || {
            let (kinds, message) = cluster.conditions("blue").await;
            kinds == [reason::DELETION_REFUSED]
                && message.contains("10.0.0.1 of ")
                && message.contains("/web on a")
        })
        .await;
    cluster.delete_pod("web").await;
    cluster
        .until("deleted", async || cluster.pool("blue").await.is_none())
        .await;
    assert_eq!(cluster.ip_pools().await, Vec::<String>::new());
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn definitions_that_disagree_are_reported_and_the_older_is_followed() {
    let cluster = TestCluster::new("mismatch").await;
    cluster.nodes(&["a"]).await;
    let ipam = |size: &str| json!({ "range": "10.0.0.0/24", "node_slice_size": size, "network_name": "blue" });
    cluster.network("one", ipam("/25")).await;
    let running = cluster.controller();
    let rows = ["10.0.0.0/25 a", "10.0.0.128/25 "];
    cluster.until_rows("blue", &rows).await;
    cluster.network("two", ipam("/26")).await;
    cluster
        .until("reported on the pool", async || {
            let (kinds, message) = cluster.conditions("blue").await;
            kinds == [reason::MISMATCH] && message.contains("/two wants range 10.0.0.0/24 by /26")
        })
        .await;
    cluster
        .until("reported on the definition", async || {
            let events = cluster.events(&cluster.namespace, "two").await;
            events.iter().any(|(kind, _)| kind == reason::MISMATCH)
        })
        .await;
    assert_eq!(cluster.rows("blue").await, rows);
    cluster.network("two", ipam("25")).await;
    cluster
        .until("settled", async || {
            cluster.conditions("blue").await.0.is_empty()
        })
        .await;
    assert_eq!(cluster.rows("blue").await, rows);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_can_not_be_served_is_reported_and_the_others_are_served() {
    let cluster = TestCluster::new("bad").await;
    cluster.nodes(&["a"]).await;
    let range = "10.0.0.0/24";
    for (name, config, words) in [
        (
            "size",
            conf("c1", json!({ "range": range, "node_slice_size": "large" })),
            ["node_slice_size", "large"],
        ),
        (
            "small",
            conf("c2", json!({ "range": range, "node_slice_size": "/16" })),
            ["node_slice_size", "/16"],
        ),
        (
            "range",
            conf(
                "c3",
                json!({ "range": "10.0.0/24", "node_slice_size": "/26" }),
            ),
            ["range", "10.0.0/24"],
        ),
        (
            "none",
            conf("c4", json!({ "node_slice_size": "/26" })),
            ["node_slice_size", "range"],
        ),
        (
            "named",
            conf(
                "c5",
                json!({ "range": range, "node_slice_size": "/26", "network_name": "Not_A_Name" }),
            ),
            ["Not_A_Name", "NodeSlicePool"],
        ),
    ] {
        cluster.network_in(&cluster.namespace, name, &config).await;
        cluster
            .network(
                "good",
                json!({ "range": "10.1.0.0/24", "node_slice_size": "/25" }),
            )
            .await;
        let running = cluster.controller();
        cluster
            .until_rows("cni", &["10.1.0.0/25 a", "10.1.0.128/25 "])
            .await;
        cluster
            .until(name, async || {
                let events = cluster.events(&cluster.namespace, name).await;
                let about = |message: &str| words.iter().all(|word| message.contains(word));
                events.iter().any(|(_, message)| about(message))
            })
            .await;
        running.stop().await;
    }
    // Neither JSON nor a network of Berth.
    cluster
        .network_in(&cluster.namespace, "text", &json!("{"))
        .await;
    cluster
        .network_in(&cluster.namespace, "disk", &json!(""))
        .await;
    cluster.node("b").await;
    let running = cluster.controller();
    cluster
        .until_rows("cni", &["10.1.0.0/25 a", "10.1.0.128/25 b"])
        .await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn disjoint_ranges_are_published_until_they_overlap() {
    let cluster = TestCluster::new("apart").await;
    cluster.nodes(&["a"]).await;
    let sliced = json!({ "range": "10.0.0.0/24", "node_slice_size": "/25" });
    cluster.network("sliced", sliced).await;
    let elastic = json!({ "range": "10.1.0.0/24", "fast_ipam": true, "network_name": "fast" });
    cluster.network("elastic", elastic).await;
    let running = cluster.controller();
    let published = async |slices: bool, map: &str| {
        let found = cluster.annotation("cni", "berth.dev/disjoint").await;
        let data = cluster.config_map("berth-networks").await;
        found == slices.then(|| "true".to_owned())
            && data.get("disjoint.json").is_some_and(|text| text == map)
    };
    let fast = r#"{"fast-10.1.0.0-24":"10.1.0.0/24"}"#;
    cluster
        .until("both apart", async || published(true, fast).await)
        .await;
    cluster
        .network("wide", json!({ "range": "10.0.0.0/20" }))
        .await;
    cluster
        .until("the slices are not", async || published(false, fast).await)
        .await;
    cluster
        .network("wide", json!({ "range": "10.0.0.0/8" }))
        .await;
    cluster
        .until("neither is", async || published(false, "{}").await)
        .await;
    cluster.delete_network(&cluster.namespace, "wide").await;
    cluster
        .until("both again", async || published(true, fast).await)
        .await;
    cluster
        .network_in(&cluster.namespace, "disk", &json!(""))
        .await;
    cluster
        .until("unknown", async || published(false, "{}").await)
        .await;
    running.stop().await;
}
