//! Nodes that are deleted, come back, or are only reported as gone (I4, I8).

use berth_api::slices::{EPOCHS, RECALLED};
use berth_controller::networks::reason;
use berth_testkit::InProcess;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use tokio::time::sleep;

use crate::test_cluster::TestCluster;
use crate::test_controller::{self, GRACE};

const IPAM: &str =
    r#"{ "range": "10.0.0.0/24", "node_slice_size": "/25", "network_name": "blue" }"#;

async fn sliced(name: &str) -> TestCluster {
    let cluster = TestCluster::new(name).await;
    cluster.nodes(&["a", "b"]).await;
    cluster
        .network("net", serde_json::from_str(IPAM).unwrap())
        .await;
    cluster
}

const BOTH: [&str; 2] = ["10.0.0.0/25 a", "10.0.0.128/25 b"];

/// The same, after each node has its slice.
async fn assigned(name: &str) -> (TestCluster, InProcess) {
    let cluster = sliced(name).await;
    let running = cluster.controller();
    cluster.until_rows("blue", &BOTH).await;
    (cluster, running)
}

/// The slice of node a was reclaimed once, or was about to be.
async fn is_at_its_next_epoch(cluster: &TestCluster) {
    let epochs = cluster.annotation("blue", EPOCHS).await;
    assert_eq!(epochs.as_deref(), Some(r#"{"10.0.0.0/25":1}"#));
}

/// Both nodes are deleted, and only the slice of b is unused.
async fn only_a_keeps_its_slice(cluster: &TestCluster) {
    cluster.delete_node("a").await;
    cluster.delete_node("b").await;
    cluster
        .until_rows("blue", &["10.0.0.0/25 a", "10.0.0.128/25 "])
        .await;
    sleep(GRACE * 2).await;
    assert_eq!(cluster.rows("blue").await[0], BOTH[0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slice_goes_back_when_its_node_and_its_pods_are_gone_and_has_a_new_epoch() {
    let (cluster, running) = assigned("loss").await;
    cluster.run_pod("web", "a", "net").await;
    cluster
        .put_entries(
            "blue-a-10.0.0.0-25",
            "10.0.0.0/25",
            &[("1", "web"), ("2", "long-gone")],
        )
        .await;
    let uid = cluster.node_uid("a").await;
    cluster.delete_node("a").await;
    cluster.node("c").await;
    // The node is gone but its pod is not: reassigning the slice now would allocate 10.0.0.1 twice.
    sleep(GRACE * 4).await;
    assert_eq!(cluster.rows("blue").await, BOTH);
    assert_eq!(cluster.ip_pools().await, ["blue-a-10.0.0.0-25"]);
    cluster.delete_pod("web").await;
    cluster
        .until_rows("blue", &["10.0.0.0/25 c", "10.0.0.128/25 b"])
        .await;
    is_at_its_next_epoch(&cluster).await;
    assert_eq!(cluster.ip_pools().await, Vec::<String>::new());
    let taken_back = |events: Vec<(String, String)>| {
        let is_reported = |(kind, message): &(String, String)| {
            kind == reason::TAKEN_BACK && message.contains("10.0.0.0/25 of NodeSlicePool blue")
        };
        events.iter().any(is_reported)
    };
    cluster
        .until("reported, on the node and on the definition", async || {
            taken_back(cluster.node_events(&uid).await)
                && taken_back(cluster.events(&cluster.namespace, "net").await)
        })
        .await;
    running.stop().await;
}

/// A node was deleted and created again under its name; the controller had seen it gone, cleaned up a quarter of an
/// hour later, and freed what the new one had allocated meanwhile, so that a pod got the address of its tunnel. A
/// read and a write are two moments: here a node that returns between them is found by the read after the recall, and
/// nothing is freed (I8).
#[tokio::test(flavor = "multi_thread")]
async fn calico_3589_6244_a_node_that_returns_while_its_slice_is_recalled_keeps_it() {
    let cluster = sliced("recall").await;
    let mut config = cluster.config();
    // The pause after the recall is half of it.
    config.slices.grace = GRACE * 10;
    let running = test_controller::start(config);
    cluster.until_rows("blue", &BOTH).await;
    cluster.delete_node("a").await;
    cluster
        .until("recalled", async || {
            let recalled = cluster.annotation("blue", RECALLED).await;
            recalled.as_deref() == Some(r#"["10.0.0.0/25"]"#)
        })
        .await;
    // No other node has it yet, and it is already at its next epoch: a node that reads this allocates nothing.
    assert_eq!(cluster.rows("blue").await, BOTH);
    is_at_its_next_epoch(&cluster).await;
    cluster.node("a").await;
    cluster
        .until("kept", async || {
            cluster.annotation("blue", RECALLED).await.is_none()
        })
        .await;
    assert_eq!(cluster.rows("blue").await, BOTH);
    is_at_its_next_epoch(&cluster).await;
    running.stop().await;
}

/// An address that an agent has allocated but not yet published counts by the pod that requests it.
#[tokio::test(flavor = "multi_thread")]
async fn a_pod_without_an_entry_keeps_the_slice_too() {
    let (cluster, running) = assigned("unpublished").await;
    cluster.run_pod("web", "a", r#"[{"name":"net"}]"#).await;
    cluster.run_pod("plain", "b", "another").await;
    only_a_keeps_its_slice(&cluster).await;
    running.stop().await;
}

/// Agents compare the range and not the size: a pod of a definition that differs in that alone gets an address too.
#[tokio::test(flavor = "multi_thread")]
async fn a_pod_of_a_definition_that_differs_in_size_keeps_the_slice_too() {
    let (cluster, running) = assigned("mismatched").await;
    let other = json!({ "range": "10.0.0.0/24", "node_slice_size": "/26", "network_name": "blue" });
    cluster.network("other", other).await;
    cluster
        .until("it is reported", async || {
            let events = cluster.events(&cluster.namespace, "other").await;
            events.iter().any(|(kind, _)| kind == reason::MISMATCH)
        })
        .await;
    cluster.run_pod("web", "a", "other").await;
    only_a_keeps_its_slice(&cluster).await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_made_again_in_time_keeps_its_slice() {
    let cluster = sliced("again").await;
    let mut config = cluster.config();
    config.slices.grace = GRACE * 4;
    let running = test_controller::start(config);
    cluster.until_rows("blue", &BOTH).await;
    for _ in 0..3 {
        cluster.delete_node("a").await;
        sleep(GRACE * 2).await;
        cluster.node("a").await;
        sleep(GRACE).await;
    }
    sleep(GRACE * 5).await;
    assert_eq!(cluster.rows("blue").await, BOTH);
    assert_eq!(cluster.annotation("blue", EPOCHS).await, None);
    running.stop().await;
}

/// The controller was down: it can only know that a node of that name exists again.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_returns_later_gets_a_slice_at_its_new_epoch() {
    let (cluster, running) = assigned("later").await;
    cluster.delete_node("a").await;
    cluster
        .until_rows("blue", &["10.0.0.0/25 ", "10.0.0.128/25 b"])
        .await;
    cluster.node("a").await;
    cluster.until_rows("blue", &BOTH).await;
    is_at_its_next_epoch(&cluster).await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_out_of_service_loses_its_slice_and_gets_one_when_it_is_back() {
    let (cluster, running) = assigned("taint").await;
    // A daemon's pod stays on such a node for ever; it does not request the network.
    cluster.run_pod("daemon", "a", "").await;
    cluster.taint("a", true).await;
    cluster
        .until_rows("blue", &["10.0.0.0/25 ", "10.0.0.128/25 b"])
        .await;
    cluster.taint("a", false).await;
    cluster.until_rows("blue", &BOTH).await;
    running.stop().await;
}

/// A deposed leader that does not know it, or two that run without an election.
#[tokio::test(flavor = "multi_thread")]
async fn two_that_both_lead_do_no_harm() {
    let cluster = TestCluster::new("race").await;
    let ipam = json!({ "range": "10.0.0.0/16", "node_slice_size": "/26", "network_name": "blue" });
    cluster.network("net", ipam).await;
    let (one, two) = (cluster.controller(), cluster.controller());
    for round in 0..4 {
        let names = (0..20).map(|n| format!("n{round}-{n}"));
        cluster.many_nodes(names).await;
        if round > 0 {
            for n in 0..10 {
                cluster.delete_node(&format!("n{}-{n}", round - 1)).await;
            }
        }
    }
    // 20 of the last round and 10 of each earlier one.
    let nodes = async || {
        let rows = cluster.rows("blue").await;
        let mut nodes: Vec<String> = rows
            .iter()
            .filter_map(|row| Some(row.split_once(' ')?.1.to_owned()))
            .filter(|node| !node.is_empty())
            .collect();
        nodes.sort();
        (rows, nodes)
    };
    cluster
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

/// Slices that nodes have claimed by themselves: the claim is deleted, or has no holder while other nodes have parts
/// of it.
#[tokio::test(flavor = "multi_thread")]
async fn claims_of_a_node_that_is_gone_go_back_too() {
    let cluster = TestCluster::new("claims").await;
    cluster.nodes(&["here"]).await;
    let ipam = json!({ "range": "10.0.0.0/24", "fast_ipam": true });
    cluster.network("net", ipam).await;
    cluster
        .claim("10.0.0.0-28", "10.0.0.0/28", "gone", json!([]))
        .await;
    let part = json!([{ "range": "10.0.0.16/30", "node": "here" }]);
    cluster
        .claim("10.0.0.16-28", "10.0.0.16/28", "gone", part)
        .await;
    cluster
        .claim("10.0.0.32-28", "10.0.0.32/28", "here", json!([]))
        .await;
    cluster.run_pod("web", "gone", "net").await;
    cluster
        .put_entries("gone-10.0.0.0-28", "10.0.0.0/28", &[("1", "web")])
        .await;
    let running = cluster.controller();
    sleep(GRACE * 4).await;
    let all = [
        "10.0.0.0-28 gone 3",
        "10.0.0.16-28 gone 3",
        "10.0.0.32-28 here 3",
    ];
    assert_eq!(cluster.claims().await, all);
    cluster.delete_pod("web").await;
    cluster
        .until("taken back", async || {
            cluster.claims().await == ["10.0.0.16-28  4", "10.0.0.32-28 here 3"]
        })
        .await;
    assert_eq!(cluster.ip_pools().await, Vec::<String>::new());
    running.stop().await;
}

/// A taint is a loss too, and is noticed before the next full read.
#[tokio::test(flavor = "multi_thread")]
async fn claims_of_a_node_out_of_service_go_back_when_it_is_tainted() {
    let cluster = TestCluster::new("tainted-claims").await;
    cluster.nodes(&["here"]).await;
    let ipam = json!({ "range": "10.0.0.0/24", "fast_ipam": true });
    cluster.network("net", ipam).await;
    for (name, range, node) in [
        ("10.0.0.0-28", "10.0.0.0/28", "gone"),
        ("10.0.0.16-28", "10.0.0.16/28", "here"),
    ] {
        cluster.claim(name, range, node, json!([])).await;
    }
    let running = cluster.controller();
    // All claims were read then, and none of those that are left is suspected.
    cluster
        .until("taken back", async || {
            cluster.claims().await == ["10.0.0.16-28 here 3"]
        })
        .await;
    cluster.taint("here", true).await;
    cluster
        .until("taken back, too", async || {
            cluster.claims().await.is_empty()
        })
        .await;
    running.stop().await;
}

/// Writes of the lost node to the whole fail before another can have the part.
#[tokio::test(flavor = "multi_thread")]
async fn the_whole_is_taken_from_a_lost_node_before_its_part() {
    let cluster = TestCluster::new("whole").await;
    cluster.nodes(&["here"]).await;
    let ipam = json!({ "range": "10.0.0.0/24", "fast_ipam": true });
    cluster.network("net", ipam).await;
    let part = json!([{ "range": "10.0.0.8/29", "node": "here" }]);
    cluster
        .claim("10.0.0.0-28", "10.0.0.0/28", "gone-whole", part)
        .await;
    cluster
        .claim("10.0.0.8-29", "10.0.0.8/29", "gone-whole", json!([]))
        .await;
    // In use: the whole. Only the order of the two protects the part.
    cluster.run_pod("web", "gone-whole", "").await;
    cluster
        .put_entries("gone-whole-10.0.0.0-28", "10.0.0.0/28", &[("1", "web")])
        .await;
    let running = cluster.controller();
    sleep(GRACE * 5).await;
    let both = ["10.0.0.0-28 gone-whole 3", "10.0.0.8-29 gone-whole 3"];
    assert_eq!(cluster.claims().await, both);
    cluster.delete_pod("web").await;
    cluster
        .until("taken back, both", async || {
            cluster.claims().await == ["10.0.0.0-28  4"]
        })
        .await;
    // Reported after it was done.
    cluster
        .until("both are reported", async || {
            cluster.node_events("gone-whole").await.len() == 2
        })
        .await;
    running.stop().await;
}

/// Nodes may not delete pools: they label the pools of slices that they returned.
#[tokio::test(flavor = "multi_thread")]
async fn empty_pools_of_returned_slices_are_deleted() {
    let cluster = TestCluster::new("leftovers").await;
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
        cluster.put_entries(name, range, entries).await;
    }
    let label = json!({ "metadata": { "labels": { "berth.dev/given-back": "true" } } });
    for name in ["a-10.0.0.0-28", "a-10.0.0.16-28"] {
        let pools = cluster.objects("IPPool");
        let params = PatchParams::default();
        pools
            .patch(name, &params, &Patch::Merge(&label))
            .await
            .unwrap();
    }
    let running = cluster.controller();
    let used = ["10.0.0.0-24", "a-10.0.0.16-28"];
    cluster
        .until("deleted", async || cluster.ip_pools().await == used)
        .await;
    // Its slice was claimed again: it is no leftover any more.
    cluster
        .until("its label goes", async || {
            let pool = cluster.objects("IPPool").get(used[1]).await.unwrap();
            pool.metadata.labels.unwrap_or_default().is_empty()
        })
        .await;
    running.stop().await;
}
