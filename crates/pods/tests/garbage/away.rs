//! What happens while nobody collects: it is found by whoever is back.

use serde_json::{Value, json};

use crate::world::{POOL, World};

/// A controller that frees on the event of a pod's end alone misses what went while it was not there.
#[tokio::test(flavor = "multi_thread")]
async fn whereabouts_546_what_went_while_nobody_watched_is_found_at_the_start() {
    let world = World::new("away").await;
    let agent = world.agent("n1").await;
    for pod in ["goes", "stays"] {
        let uid = world.run_pod(&agent, pod).await;
        agent.add(&world, pod, &uid, pod).await;
    }
    world.delete_pod("goes").await;
    let running = agent.collect();
    world.until_held_by(&["stays"]).await;
    running.stop().await;
}

/// The controller was away, the pod with a static address was deleted, and no DEL came. When it was back it knew the
/// address only by pods that are there, and gave it to the next pod that asked for it, while it was still set up for
/// the first. Here the record stands until it is freed on proof (I4); whoever asks before is refused, and gets it
/// after.
#[tokio::test(flavor = "multi_thread")]
async fn kube_ovn_4304_a_static_address_waits_for_the_end_of_its_last_pod() {
    let world = World::new("static").await;
    let fixed = json!({
        "cniVersion": "1.0.0", "name": "fixed", "type": "macvlan",
        "ipam": { "type": "whereabouts", "addresses": [{ "address": "10.0.0.5/24" }] },
    });
    let local = world.node_file().await;
    let before = world.agent_in("n1", "this-boot", local.clone()).await;
    let uid = world.run_pod(&before, "first").await;
    before.add_to(&world, &fixed, "first", &uid, "c1").await;
    drop(before);
    world.delete_pod("first").await;

    let after = world.agent_in("n1", "this-boot", local).await;
    let uid = world.run_pod(&after, "second").await;
    let ask = async || {
        let asked = after.call(&world, "ADD", &fixed, "second", &uid, "c2");
        let answer = asked.await;
        let said: Value = serde_json::from_str(&answer.stdout).unwrap();
        (answer.exit, said)
    };
    let (exit, refused) = ask().await;
    assert_eq!((exit, &refused["code"]), (1, &json!(11)), "{refused}");
    assert!(refused.to_string().contains("/first"), "{refused}");
    assert_eq!(world.holders().await, ["first"]);
    let running = after.collect();
    // As a kubelet does: again and again.
    world.until("given", async || ask().await.0 == 0).await;
    let held = [("5".to_owned(), "second".to_owned(), "c2".to_owned())];
    assert_eq!(world.entries_of(POOL).await, held);
    assert_eq!(
        world.reservations().await,
        [("10.0.0.5".to_owned(), "second".to_owned())]
    );
    running.stop().await;
}
