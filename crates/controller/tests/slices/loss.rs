//! Nodes that go, come back, or are only said to be gone (I4, I8).

use berth_api::slices::{EPOCHS, RECALLED};
use berth_controller::networks::reason;
use berth_testkit::InProcess;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use tokio::time::sleep;

use crate::test_cluster::World;
use crate::test_controller::{self, GRACE};

const IPAM: &str =
    r#"{ "range": "10.0.0.0/24", "node_slice_size": "/25", "network_name": "blue" }"#;

async fn sliced(name: &str) -> World {
    let world = World::new(name).await;
    world.nodes(&["a", "b"]).await;
    world
        .network("net", serde_json::from_str(IPAM).unwrap())
        .await;
    world
}

const BOTH: [&str; 2] = ["10.0.0.0/25 a", "10.0.0.128/25 b"];

/// The same, when each node has its slice.
async fn assigned(name: &str) -> (World, InProcess) {
    let world = sliced(name).await;
    let running = world.controller();
    world.until_rows("blue", &BOTH).await;
    (world, running)
}

/// The slice of node a has been taken back once, or was about to be.
async fn is_at_its_next_epoch(world: &World) {
    let epochs = world.annotation("blue", EPOCHS).await;
    assert_eq!(epochs.as_deref(), Some(r#"{"10.0.0.0/25":1}"#));
}

/// Both nodes go, and only of the slice of b nobody has an address.
async fn only_a_keeps_its_slice(world: &World) {
    world.delete_node("a").await;
    world.delete_node("b").await;
    world
        .until_rows("blue", &["10.0.0.0/25 a", "10.0.0.128/25 "])
        .await;
    sleep(GRACE * 2).await;
    assert_eq!(world.rows("blue").await[0], BOTH[0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slice_goes_back_when_its_node_and_its_pods_are_gone_and_has_a_new_epoch() {
    let (world, running) = assigned("loss").await;
    world.run_pod("web", "a", "net").await;
    world
        .put_entries(
            "blue-a-10.0.0.0-25",
            "10.0.0.0/25",
            &[("1", "web"), ("2", "long-gone")],
        )
        .await;
    let uid = world.node_uid("a").await;
    world.delete_node("a").await;
    world.node("c").await;
    // The node is gone and its pod is not: whoever gave the slice away now would give 10.0.0.1 twice.
    sleep(GRACE * 4).await;
    assert_eq!(world.rows("blue").await, BOTH);
    assert_eq!(world.ip_pools().await, ["blue-a-10.0.0.0-25"]);
    world.delete_pod("web").await;
    world
        .until_rows("blue", &["10.0.0.0/25 c", "10.0.0.128/25 b"])
        .await;
    is_at_its_next_epoch(&world).await;
    assert_eq!(world.ip_pools().await, Vec::<String>::new());
    let taken_back = |events: Vec<(String, String)>| {
        let told = |(kind, message): &(String, String)| {
            kind == reason::TAKEN_BACK && message.contains("10.0.0.0/25 of NodeSlicePool blue")
        };
        events.iter().any(told)
    };
    world
        .until("told, on the node and on the definition", async || {
            taken_back(world.node_events(&uid).await)
                && taken_back(world.events(&world.namespace, "net").await)
        })
        .await;
    running.stop().await;
}

/// A node was deleted and made again under its name; the controller had seen it gone, came to the cleaning a quarter of an hour
/// later, and freed what the new one had taken meanwhile, so that a pod got the address of its tunnel. A look and a write are
/// two moments: here whoever returns between them is seen by the look after the recall, and nothing is freed (I8).
#[tokio::test(flavor = "multi_thread")]
async fn calico_3589_6244_a_node_that_returns_while_its_slice_is_recalled_keeps_it() {
    let world = sliced("recall").await;
    let mut config = world.config();
    // The pause after the recall is half of it.
    config.slices.grace = GRACE * 10;
    let running = test_controller::start(config);
    world.until_rows("blue", &BOTH).await;
    world.delete_node("a").await;
    world
        .until("recalled", async || {
            let recalled = world.annotation("blue", RECALLED).await;
            recalled.as_deref() == Some(r#"["10.0.0.0/25"]"#)
        })
        .await;
    // Nobody else has it yet, and it is at its next epoch already: a node that reads this gives nothing.
    assert_eq!(world.rows("blue").await, BOTH);
    is_at_its_next_epoch(&world).await;
    world.node("a").await;
    world
        .until("kept", async || {
            world.annotation("blue", RECALLED).await.is_none()
        })
        .await;
    assert_eq!(world.rows("blue").await, BOTH);
    is_at_its_next_epoch(&world).await;
    running.stop().await;
}

/// What an agent has given and not yet published is known by the pod that asks for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_pod_without_an_entry_keeps_the_slice_too() {
    let (world, running) = assigned("unpublished").await;
    world.run_pod("web", "a", r#"[{"name":"net"}]"#).await;
    world.run_pod("plain", "b", "another").await;
    only_a_keeps_its_slice(&world).await;
    running.stop().await;
}

/// Agents compare the range and not the size: a pod of a definition that differs in that alone gets an address too.
#[tokio::test(flavor = "multi_thread")]
async fn a_pod_of_a_definition_that_differs_in_size_keeps_the_slice_too() {
    let (world, running) = assigned("mismatched").await;
    let other = json!({ "range": "10.0.0.0/24", "node_slice_size": "/26", "network_name": "blue" });
    world.network("other", other).await;
    world
        .until("it is told", async || {
            let told = world.events(&world.namespace, "other").await;
            told.iter().any(|(kind, _)| kind == reason::MISMATCH)
        })
        .await;
    world.run_pod("web", "a", "other").await;
    only_a_keeps_its_slice(&world).await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_made_again_in_time_keeps_its_slice() {
    let world = sliced("again").await;
    let mut config = world.config();
    config.slices.grace = GRACE * 4;
    let running = test_controller::start(config);
    world.until_rows("blue", &BOTH).await;
    for _ in 0..3 {
        world.delete_node("a").await;
        sleep(GRACE * 2).await;
        world.node("a").await;
        sleep(GRACE).await;
    }
    sleep(GRACE * 5).await;
    assert_eq!(world.rows("blue").await, BOTH);
    assert_eq!(world.annotation("blue", EPOCHS).await, None);
    running.stop().await;
}

/// The controller was away: that the node's name is there again is all that it can know.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_returns_later_gets_a_slice_at_its_new_epoch() {
    let (world, running) = assigned("later").await;
    world.delete_node("a").await;
    world
        .until_rows("blue", &["10.0.0.0/25 ", "10.0.0.128/25 b"])
        .await;
    world.node("a").await;
    world.until_rows("blue", &BOTH).await;
    is_at_its_next_epoch(&world).await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_out_of_service_loses_its_slice_and_gets_one_when_it_is_back() {
    let (world, running) = assigned("taint").await;
    // A daemon's pod stays on such a node for ever; it does not ask for the network.
    world.run_pod("daemon", "a", "").await;
    world.taint("a", true).await;
    world
        .until_rows("blue", &["10.0.0.0/25 ", "10.0.0.128/25 b"])
        .await;
    world.taint("a", false).await;
    world.until_rows("blue", &BOTH).await;
    running.stop().await;
}

/// A deposed leader that does not know it, or two that were told not to stand for election.
#[tokio::test(flavor = "multi_thread")]
async fn two_that_both_lead_do_no_harm() {
    let world = World::new("race").await;
    let ipam = json!({ "range": "10.0.0.0/16", "node_slice_size": "/26", "network_name": "blue" });
    world.network("net", ipam).await;
    let (one, two) = (world.controller(), world.controller());
    for round in 0..4 {
        let names = (0..20).map(|n| format!("n{round}-{n}"));
        world.many_nodes(names).await;
        if round > 0 {
            for n in 0..10 {
                world.delete_node(&format!("n{}-{n}", round - 1)).await;
            }
        }
    }
    // 20 of the last round and 10 of each before it.
    let nodes = async || {
        let rows = world.rows("blue").await;
        let mut nodes: Vec<String> = rows
            .iter()
            .filter_map(|row| Some(row.split_once(' ')?.1.to_owned()))
            .filter(|node| !node.is_empty())
            .collect();
        nodes.sort();
        (rows, nodes)
    };
    world
        .until("50 nodes have a slice", async || {
            nodes().await.1.len() == 50
        })
        .await;
    let (rows, held) = nodes().await;
    let mut slices: Vec<&str> = rows
        .iter()
        .map(|row| row.split(' ').next().unwrap())
        .collect();
    slices.sort_unstable();
    slices.dedup();
    assert_eq!((rows.len(), slices.len()), (1024, 1024));
    let mut once = held.clone();
    once.dedup();
    assert_eq!(once, held, "no node has two");
    one.stop().await;
    two.stop().await;
}

/// Slices that nodes have claimed by themselves: the claim goes, or is nobody's while parts of it are others'.
#[tokio::test(flavor = "multi_thread")]
async fn claims_of_a_node_that_is_gone_go_back_too() {
    let world = World::new("claims").await;
    world.nodes(&["here"]).await;
    let ipam = json!({ "range": "10.0.0.0/24", "fast_ipam": true });
    world.network("net", ipam).await;
    world
        .claim("10.0.0.0-28", "10.0.0.0/28", "gone", json!([]))
        .await;
    let part = json!([{ "range": "10.0.0.16/30", "node": "here" }]);
    world
        .claim("10.0.0.16-28", "10.0.0.16/28", "gone", part)
        .await;
    world
        .claim("10.0.0.32-28", "10.0.0.32/28", "here", json!([]))
        .await;
    world.run_pod("web", "gone", "net").await;
    world
        .put_entries("gone-10.0.0.0-28", "10.0.0.0/28", &[("1", "web")])
        .await;
    let running = world.controller();
    sleep(GRACE * 4).await;
    let all = [
        "10.0.0.0-28 gone 3",
        "10.0.0.16-28 gone 3",
        "10.0.0.32-28 here 3",
    ];
    assert_eq!(world.claims().await, all);
    world.delete_pod("web").await;
    world
        .until("taken back", async || {
            world.claims().await == ["10.0.0.16-28  4", "10.0.0.32-28 here 3"]
        })
        .await;
    assert_eq!(world.ip_pools().await, Vec::<String>::new());
    running.stop().await;
}

/// A taint is a loss too, and is not waited for until everything is read anew.
#[tokio::test(flavor = "multi_thread")]
async fn claims_of_a_node_out_of_service_go_back_when_it_is_tainted() {
    let world = World::new("tainted-claims").await;
    world.nodes(&["here"]).await;
    let ipam = json!({ "range": "10.0.0.0/24", "fast_ipam": true });
    world.network("net", ipam).await;
    for (name, range, node) in [
        ("10.0.0.0-28", "10.0.0.0/28", "gone"),
        ("10.0.0.16-28", "10.0.0.16/28", "here"),
    ] {
        world.claim(name, range, node, json!([])).await;
    }
    let running = world.controller();
    // All claims were looked at then, and none of those that are left is suspected.
    world
        .until("taken back", async || {
            world.claims().await == ["10.0.0.16-28 here 3"]
        })
        .await;
    world.taint("here", true).await;
    world
        .until("taken back, too", async || world.claims().await.is_empty())
        .await;
    running.stop().await;
}

/// What the lost node still has on its way to the whole dies before another can have the part.
#[tokio::test(flavor = "multi_thread")]
async fn the_whole_is_taken_from_a_lost_node_before_its_part() {
    let world = World::new("whole").await;
    world.nodes(&["here"]).await;
    let ipam = json!({ "range": "10.0.0.0/24", "fast_ipam": true });
    world.network("net", ipam).await;
    let part = json!([{ "range": "10.0.0.8/29", "node": "here" }]);
    world
        .claim("10.0.0.0-28", "10.0.0.0/28", "gone-whole", part)
        .await;
    world
        .claim("10.0.0.8-29", "10.0.0.8/29", "gone-whole", json!([]))
        .await;
    // In use: the whole. Nothing but their order speaks for the part.
    world.run_pod("web", "gone-whole", "").await;
    world
        .put_entries("gone-whole-10.0.0.0-28", "10.0.0.0/28", &[("1", "web")])
        .await;
    let running = world.controller();
    sleep(GRACE * 5).await;
    let both = ["10.0.0.0-28 gone-whole 3", "10.0.0.8-29 gone-whole 3"];
    assert_eq!(world.claims().await, both);
    world.delete_pod("web").await;
    world
        .until("taken back, both", async || {
            world.claims().await == ["10.0.0.0-28  4"]
        })
        .await;
    // Told after it was done.
    world
        .until("both are told", async || {
            world.node_events("gone-whole").await.len() == 2
        })
        .await;
    running.stop().await;
}

/// Nodes may not delete pools: they label those of slices that they gave back.
#[tokio::test(flavor = "multi_thread")]
async fn empty_pools_of_slices_that_were_given_back_go() {
    let world = World::new("leftovers").await;
    for (name, range) in [
        ("a-10.0.0.0-28", "10.0.0.0/28"),
        ("a-10.0.0.16-28", "10.0.0.16/28"),
        ("10.0.0.0-24", "10.0.0.0/24"),
    ] {
        let entries: &[(&str, &str)] = if name == "a-10.0.0.16-28" {
            &[("1", "web")]
        } else {
            &[]
        };
        world.put_entries(name, range, entries).await;
    }
    let label = json!({ "metadata": { "labels": { "berth.dev/given-back": "true" } } });
    for name in ["a-10.0.0.0-28", "a-10.0.0.16-28"] {
        let pools = world.objects("IPPool");
        let params = PatchParams::default();
        pools
            .patch(name, &params, &Patch::Merge(&label))
            .await
            .unwrap();
    }
    let running = world.controller();
    let used = ["10.0.0.0-24", "a-10.0.0.16-28"];
    world
        .until("deleted", async || world.ip_pools().await == used)
        .await;
    // Its slice was taken again: it is no leftover any more.
    world
        .until("its label goes", async || {
            let pool = world.objects("IPPool").get(used[1]).await.unwrap();
            pool.metadata.labels.unwrap_or_default().is_empty()
        })
        .await;
    running.stop().await;
}
