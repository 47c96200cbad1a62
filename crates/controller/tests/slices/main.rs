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

use test_cluster::{World, conf};

/// Case 21 of the known cases.
#[tokio::test(flavor = "multi_thread")]
async fn two_nodes_get_the_first_two_slices_and_a_third_the_next() {
    let world = World::new("case21").await;
    world.nodes(&["b", "a"]).await;
    let ipam = json!({ "range": "10.0.0.0/8", "node_slice_size": "/10" });
    world.network("net", ipam).await;
    let running = world.controller();
    let rows = [
        "10.0.0.0/10 a",
        "10.64.0.0/10 b",
        "10.128.0.0/10 ",
        "10.192.0.0/10 ",
    ];
    world.until_rows("cni", &rows).await;
    let pool = world.pool("cni").await.unwrap();
    let spec = json!({ "range": "10.0.0.0/8", "sliceSize": "/10" });
    assert_eq!(pool.data["spec"], spec);

    // A name before the others' takes nothing from them.
    world.nodes(&["0", "1", "2"]).await;
    let rows = [
        "10.0.0.0/10 a",
        "10.64.0.0/10 b",
        "10.128.0.0/10 0",
        "10.192.0.0/10 1",
    ];
    world.until_rows("cni", &rows).await;
    world
        .until("told that there is none left", async || {
            let (kinds, message) = world.conditions("cni").await;
            kinds == [reason::EXHAUSTED] && message.contains("2 get none")
        })
        .await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ipv6_and_several_ranges_have_a_pool_each() {
    let world = World::new("v6").await;
    world.nodes(&["a", "b"]).await;
    let ipam = json!({
        "range": "fd00:1::/64", "node_slice_size": "/80", "network_name": "six",
        "range_start": "fd00:1::1:0:0:0",
        "ipRanges": [{ "range": "fd00:2::/112" }],
    });
    world.network("six", ipam).await;
    let both = json!({
        "range": "10.0.0.0/24", "node_slice_size": "26", "network_name": "both",
        "exclude": ["10.0.0.0/26"],
        "ipRanges": [{ "range": "fd00:3::/120" }],
    });
    world.network("both", both).await;
    let running = world.controller();
    // Of 65,536 slices only those that are given are listed; the first has no address from range_start on.
    world
        .until_rows("six", &["fd00:1:0:0:1::/80 a", "fd00:1:0:0:2::/80 b"])
        .await;
    let v4 = [
        "10.0.0.0/26 ",
        "10.0.0.64/26 a",
        "10.0.0.128/26 b",
        "10.0.0.192/26 ",
    ];
    world.until_rows("both", &v4).await;
    let v6 = [
        "fd00:3::/122 a",
        "fd00:3::40/122 b",
        "fd00:3::80/122 ",
        "fd00:3::c0/122 ",
    ];
    world.until_rows("both-fd00-3---120", &v6).await;
    // A second range that can't be cut so is told, and does not keep the first from it.
    world
        .until("told", async || {
            let events = world.events(&world.namespace, "six").await;
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
    let world = World::new("shared").await;
    let other = world.cluster.namespace("other").await.unwrap();
    world.nodes(&["a"]).await;
    let ipam = json!({ "range": "10.0.0.0/24", "node_slice_size": "/25", "network_name": "blue" });
    world.network("one", ipam.clone()).await;
    // In another namespace, in a list of plugins.
    let listed = json!({ "cniVersion": "1.0.0", "name": "list", "plugins": [
        { "type": "tuning" }, conf("x", ipam),
    ]});
    world.network_in(&other, "two", &listed).await;
    let running = world.controller();
    world
        .until_rows("blue", &["10.0.0.0/25 a", "10.0.0.128/25 "])
        .await;
    let networks = format!("{other}/two,{}/one", world.namespace);
    let mut sorted: Vec<&str> = networks.split(',').collect();
    sorted.sort_unstable();
    world
        .until("both are named", async || {
            world.annotation("blue", "berth.dev/networks").await == Some(sorted.join(","))
        })
        .await;
    world.delete_network(&world.namespace, "one").await;
    world
        .until("one is left", async || {
            world.annotation("blue", "berth.dev/networks").await == Some(format!("{other}/two"))
        })
        .await;

    // The last goes while an address is in use: the pool stays and says why.
    world.run_pod("web", "a", "other/two").await;
    world
        .put_entries("blue-a-10.0.0.0-25", "10.0.0.0/25", &[("1", "web")])
        .await;
    world.delete_network(&other, "two").await;
    world
        .until("refused", async || {
            let (kinds, message) = world.conditions("blue").await;
            kinds == [reason::DELETION_REFUSED]
                && message.contains("10.0.0.1 of ")
                && message.contains("/web on a")
        })
        .await;
    world.delete_pod("web").await;
    world
        .until("deleted", async || world.pool("blue").await.is_none())
        .await;
    assert_eq!(world.ip_pools().await, Vec::<String>::new());
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn definitions_that_disagree_are_told_and_the_older_is_followed() {
    let world = World::new("mismatch").await;
    world.nodes(&["a"]).await;
    let ipam = |size: &str| json!({ "range": "10.0.0.0/24", "node_slice_size": size, "network_name": "blue" });
    world.network("one", ipam("/25")).await;
    let running = world.controller();
    let rows = ["10.0.0.0/25 a", "10.0.0.128/25 "];
    world.until_rows("blue", &rows).await;
    world.network("two", ipam("/26")).await;
    world
        .until("told on the pool", async || {
            let (kinds, message) = world.conditions("blue").await;
            kinds == [reason::MISMATCH] && message.contains("/two wants range 10.0.0.0/24 by /26")
        })
        .await;
    world
        .until("told on the definition", async || {
            let events = world.events(&world.namespace, "two").await;
            events.iter().any(|(kind, _)| kind == reason::MISMATCH)
        })
        .await;
    assert_eq!(world.rows("blue").await, rows);
    world.network("two", ipam("25")).await;
    world
        .until("settled", async || {
            world.conditions("blue").await.0.is_empty()
        })
        .await;
    assert_eq!(world.rows("blue").await, rows);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_can_not_be_served_is_told_and_the_others_go_on() {
    let world = World::new("bad").await;
    world.nodes(&["a"]).await;
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
        world.network_in(&world.namespace, name, &config).await;
        world
            .network(
                "good",
                json!({ "range": "10.1.0.0/24", "node_slice_size": "/25" }),
            )
            .await;
        let running = world.controller();
        world
            .until_rows("cni", &["10.1.0.0/25 a", "10.1.0.128/25 "])
            .await;
        world
            .until(name, async || {
                let events = world.events(&world.namespace, name).await;
                let about = |message: &str| words.iter().all(|word| message.contains(word));
                events.iter().any(|(_, message)| about(message))
            })
            .await;
        running.stop().await;
    }
    // Neither JSON nor a network of ours.
    world
        .network_in(&world.namespace, "text", &json!("{"))
        .await;
    world.network_in(&world.namespace, "disk", &json!("")).await;
    world.node("b").await;
    let running = world.controller();
    world
        .until_rows("cni", &["10.1.0.0/25 a", "10.1.0.128/25 b"])
        .await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ranges_that_are_apart_are_told_until_they_are_not() {
    let world = World::new("apart").await;
    world.nodes(&["a"]).await;
    let sliced = json!({ "range": "10.0.0.0/24", "node_slice_size": "/25" });
    world.network("sliced", sliced).await;
    let elastic = json!({ "range": "10.1.0.0/24", "fast_ipam": true, "network_name": "fast" });
    world.network("elastic", elastic).await;
    let running = world.controller();
    let told = async |slices: bool, map: &str| {
        let found = world.annotation("cni", "berth.dev/disjoint").await;
        let data = world.config_map("berth-networks").await;
        found == slices.then(|| "true".to_owned())
            && data.get("disjoint.json").is_some_and(|text| text == map)
    };
    let fast = r#"{"fast-10.1.0.0-24":"10.1.0.0/24"}"#;
    world
        .until("both apart", async || told(true, fast).await)
        .await;
    world
        .network("wide", json!({ "range": "10.0.0.0/20" }))
        .await;
    world
        .until("the slices are not", async || told(false, fast).await)
        .await;
    world
        .network("wide", json!({ "range": "10.0.0.0/8" }))
        .await;
    world
        .until("neither is", async || told(false, "{}").await)
        .await;
    world.delete_network(&world.namespace, "wide").await;
    world
        .until("both again", async || told(true, fast).await)
        .await;
    world.network_in(&world.namespace, "disk", &json!("")).await;
    world
        .until("nobody can tell", async || told(false, "{}").await)
        .await;
    running.stop().await;
}
