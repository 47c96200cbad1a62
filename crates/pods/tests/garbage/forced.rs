//! A forced deletion removes the pod object at once, whatever runs: the address stays until its node has released it,
//! or is lost.

use kube::Api;
use kube::api::DynamicObject;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::world::{Agent, GRACE, NODE_GRACE, POOL, Running, World};

/// A pod whose container runs on the agent's node.
async fn run(world: &World, agent: &Agent, pod: &str) -> String {
    let uid = world.run_pod(agent, pod).await;
    world.start_sandbox(pod);
    agent.add(world, pod, &uid, pod).await;
    uid
}

/// Waits until the collectors had every chance to free it, by looks that began after the grace period.
async fn had_their_chance(running: &[&Running]) {
    sleep(NODE_GRACE).await;
    let sweeps = |running: &[&Running]| running.iter().map(|one| one.count("sweeps")).sum::<f64>();
    let before = sweeps(running);
    while sweeps(running) < before + 3.0 {
        sleep(GRACE / 4).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn berth_15_24_a_forced_deletion_frees_nothing_before_the_del() {
    let world = World::new("forced").await;
    let (one, two) = (world.agent("n1").await, world.agent("n2").await);
    let uid = run(&world, &one, "forced").await;
    let (a, b) = (one.collect(), two.collect());
    world.delete_pod("forced").await;
    had_their_chance(&[&a, &b]).await;
    assert_eq!(world.holders().await, ["forced"], "its container runs (I4)");
    assert_eq!(world.reservations().await.len(), 1);
    one.del(&world, "forced", &uid, "forced").await;
    assert_eq!(world.holders().await, [""; 0]);
    assert_eq!(world.reservations().await, []);
    a.stop().await;
    b.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn berth_15_24_a_forced_deletion_frees_the_address_once_the_sandbox_is_gone() {
    let world = World::new("forced-gone").await;
    let (one, two) = (world.agent("n1").await, world.agent("n2").await);
    run(&world, &one, "forced").await;
    let (a, b) = (one.collect(), two.collect());
    world.delete_pod("forced").await;
    had_their_chance(&[&a, &b]).await;
    assert_eq!(world.holders().await, ["forced"], "its container runs (I4)");
    // Its DEL never comes.
    world.stop_sandbox("forced");
    world.until_held_by(&[]).await;
    world
        .until("no reservation", async || {
            world.reservations().await.is_empty()
        })
        .await;
    a.stop().await;
    b.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn berth_15_24_a_forced_deletion_frees_the_address_once_the_node_is_lost() {
    let world = World::without_a_controller("forced-lost").await;
    let sweeper = world.agent("n3").await;
    let (deleted, off) = (world.agent("n1").await, world.agent("n2").await);
    run(&world, &deleted, "on-deleted").await;
    run(&world, &off, "on-off").await;
    let running = sweeper.collect();
    world.delete_pod("on-deleted").await;
    world.delete_pod("on-off").await;
    had_their_chance(&[&running]).await;
    let mut held = world.holders().await;
    held.sort();
    assert_eq!(held, ["on-deleted", "on-off"], "their nodes are there (I4)");
    world.delete_node(&deleted.node).await;
    world.until_held_by(&["on-off"]).await;
    world.take_out_of_service(&off.node).await;
    world.until_held_by(&[]).await;
    running.stop().await;
}

/// The entries of a large pool name no node: there is no room. Their reservations do.
#[tokio::test(flavor = "multi_thread")]
async fn berth_15_24_a_forced_deletion_frees_nothing_in_a_large_pool_before_the_node_is_lost() {
    let world = World::without_a_controller("forced-large").await;
    let sweeper = world.agent("n2").await;
    let local = world.node_file().await;
    let one = world.agent_within("n1", "this-boot", local, 2400).await;
    for pod in ["a", "b", "forced"] {
        run(&world, &one, pod).await;
    }
    let pools: Api<DynamicObject> = world.dynamic_pools();
    let pool = pools.get(POOL).await.unwrap();
    let entries = pool.data["spec"]["allocations"].as_object().unwrap();
    let of_forced = |entry: &&Value| entry["podref"].as_str().unwrap().ends_with("/forced");
    let forced = entries.values().find(of_forced).unwrap();
    assert!(forced.get("node").is_none(), "{forced}");

    let running = sweeper.collect();
    world.delete_pod("forced").await;
    had_their_chance(&[&running]).await;
    let mut held = world.holders().await;
    held.sort();
    assert_eq!(held, ["a", "b", "forced"], "its container runs (I4)");
    world.delete_node(&one.node).await;
    // The others are bound to a node that is gone.
    world.until_held_by(&[]).await;
    running.stop().await;
}

/// The entry is in a slice that its node has not published: only the reservation can be seen.
#[tokio::test(flavor = "multi_thread")]
async fn berth_15_24_a_forced_deletion_ends_no_reservation_of_a_node_that_may_run_the_pod() {
    let world = World::without_a_controller("forced-slice").await;
    let (one, sweeper) = (world.agent("n1").await, world.agent("n2").await);
    let made_by = json!({ "berth.dev/node": one.node });
    world
        .put_reservation_with("10.0.0.9", "forced", made_by)
        .await;
    world.put_reservation("10.0.0.8", "of-whereabouts").await;
    let running = sweeper.collect();
    let left = async |names: &[&str]| {
        let reservations = world.reservations().await;
        reservations.iter().map(|(name, _)| name).eq(names)
    };
    world
        .until("the other one is ended", async || left(&["10.0.0.9"]).await)
        .await;
    had_their_chance(&[&running]).await;
    assert!(left(&["10.0.0.9"]).await, "its container may run (I4)");
    world.delete_node(&one.node).await;
    world.until("it is ended", async || left(&[]).await).await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_starts_again_frees_what_stopped_meanwhile() {
    let world = World::new("forced-again").await;
    let local = world.node_file().await;
    let before = world.agent_in("n1", "this-boot", local.clone()).await;
    for pod in ["runs", "stopped"] {
        run(&world, &before, pod).await;
    }
    drop(before);
    for pod in ["runs", "stopped"] {
        world.delete_pod(pod).await;
    }
    world.stop_sandbox("stopped");
    let after = world.agent_in("n1", "this-boot", local.clone()).await;
    let running = after.collect();
    world.until_held_by(&["runs"]).await;
    had_their_chance(&[&running]).await;
    assert_eq!(world.holders().await, ["runs"], "its container runs (I4)");
    running.stop().await;
    // No container outlives its kernel, whatever files it leaves.
    let rebooted = world.agent_in("n1", "next-boot", local).await;
    let running = rebooted.collect_in("next-boot");
    world.until_held_by(&[]).await;
    running.stop().await;
}

/// The node's own sweep frees what names it and its journal lacks: a file that was lost, a machine of the same name.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_lost_its_journal_frees_its_entries_by_their_pods() {
    let world = World::new("forced-lost-file").await;
    let before = world.agent("n1").await;
    run(&world, &before, "goes").await;
    run(&world, &before, "stays").await;
    drop(before);
    world.delete_pod("goes").await;
    let after = world.agent("n1").await;
    let running = after.collect();
    world.until_held_by(&["stays"]).await;
    running.stop().await;
}
