//! A cluster is scaled down: many nodes go at once, and one of them leaves something that nobody can judge.
//!
//! Calico #8643: a block that could not be given back held up all the others, pass after pass, until no block was left for
//! new nodes. Here each slice is judged by itself; what can't be read is in use (I5), and keeps nothing but its own slice.

use berth_controller::networks::reason;
use berth_testkit::{Fate, FaultProxy};
use serde_json::json;

use crate::test_cluster::World;
use crate::test_controller;

fn names() -> impl Iterator<Item = String> {
    (0..20).map(|n| format!("n{n:02}"))
}

/// The slices that nodes have, with their nodes.
async fn held(world: &World) -> Vec<String> {
    let rows = world.rows("blue").await;
    rows.into_iter().filter(|row| !row.ends_with(' ')).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn calico_8643_a_slice_that_can_not_be_judged_holds_up_no_other() {
    let world = World::new("mass").await;
    let ipam = json!({ "range": "10.0.0.0/22", "node_slice_size": "/27", "network_name": "blue" });
    world.network("net", ipam).await;
    world.many_nodes(names()).await;
    let running = world.controller();
    let held = async || held(&world).await;
    world
        .until("all nodes have one", async || held().await.len() == 20)
        .await;
    let of_n03 = held().await.remove(3);
    assert_eq!(of_n03, "10.0.0.96/27 n03");
    // Not the slice's range: nobody knows what the entries are.
    world
        .put_entries(
            "blue-n03-10.0.0.96-27",
            "10.9.0.0/16",
            &[("1", "long-gone")],
        )
        .await;
    for name in names() {
        world.delete_node(&name).await;
    }
    world
        .until("the others' are free", async || {
            held().await == [of_n03.as_str()]
        })
        .await;
    world
        .until("told what stays, and why", async || {
            let events = world.events(&world.namespace, "net").await;
            events.iter().any(|(kind, message)| {
                kind == reason::UNREADABLE && message.contains("blue-n03-10.0.0.96-27")
            })
        })
        .await;
    world.node("new").await;
    world
        .until("a new node is served", async || {
            held().await == ["10.0.0.0/27 new", of_n03.as_str()]
        })
        .await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn calico_8643_a_claim_that_can_not_be_judged_holds_up_no_other() {
    let world = World::new("massclaims").await;
    let ipam = json!({ "range": "10.0.0.0/23", "fast_ipam": true });
    world.network("net", ipam).await;
    for n in 0..20 {
        let (name, range) = (
            format!("10.0.0.{}-29", 8 * n),
            format!("10.0.0.{}/29", 8 * n),
        );
        world
            .claim(&name, &range, &format!("n{n:02}"), json!([]))
            .await;
    }
    world
        .put_entries("n03-10.0.0.24-29", "10.9.0.0/16", &[("1", "long-gone")])
        .await;
    // Nor is it known what this node has.
    world.claim("odd", "nonsense", "n05", json!([])).await;
    let running = world.controller();
    world
        .until("the others' are free", async || {
            world.claims().await == ["10.0.0.24-29 n03 3", "10.0.0.40-29 n05 3", "odd n05 3"]
        })
        .await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn calico_8643_a_pool_that_can_not_be_deleted_holds_up_no_other() {
    let world = World::new("masspools").await;
    let ipam = json!({ "range": "10.0.0.0/24", "node_slice_size": "/27", "network_name": "blue" });
    world.network("net", ipam).await;
    world.nodes(&["a", "b", "c"]).await;
    let relay = FaultProxy::new(world.cluster).await.unwrap();
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
    let config = test_controller::config(relay.kubeconfig(), &world.namespace);
    let running = test_controller::start(config);
    let held = async || held(&world).await;
    world
        .until("all nodes have one", async || held().await.len() == 3)
        .await;
    world
        .put_entries(barred, "10.0.0.32/27", &[("1", "long-gone")])
        .await;
    for node in ["a", "b", "c"] {
        world.delete_node(node).await;
    }
    world
        .until("the others' are free", async || {
            held().await == ["10.0.0.32/27 b"]
        })
        .await;
    relay.rule(|_| Fate::Pass);
    world
        .until("and so is this, once it can be", async || {
            held().await.is_empty()
        })
        .await;
    assert_eq!(world.ip_pools().await, Vec::<String>::new());
    running.stop().await;
}
