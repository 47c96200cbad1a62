//! An agent that is stopped at any point: what it began is resumed by its successor, or by the other node's agent.

use std::time::Duration;

use berth_testcloud::Recorded;

use crate::scene::{Scene, until};

const IP: &str = "live.cast.ai/ip";
const FROM: &str = "live.cast.ai/original-instance";
const OUT: &str = "live.cast.ai/move-out-ip";

fn compute(request: &&Recorded) -> bool {
    request.call.starts_with("instances") || request.call.starts_with("zoneOperations")
}

/// Waits until so many requests of the Compute API were made.
async fn until_requests(scene: &Scene, count: usize) {
    until("the requests are made", async || {
        scene.cloud.requests().iter().filter(compute).count() >= count
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_add_is_resumed_or_undone() {
    // Where this VM is, the NIC, the update, its operation.
    for stop in 1..=4 {
        let scene = Scene::new(100).await;
        let node = scene.node("a").await;
        scene.pod("web", &node.name, &[]).await;
        node.begin(scene.request("ADD", "web"));
        until_requests(&scene, stop).await;
        let name = node.kill();
        let next = scene.start(&name, |_| {}).await;
        if stop % 2 == 0 {
            // The runtime asks again: the same address, attached once.
            assert_eq!(
                next.add(&scene, "web").await,
                "10.111.0.2",
                "stopped after {stop}"
            );
            assert_eq!(scene.holder("10.111.0.2"), name);
            assert_eq!(scene.object().await["status"]["allocated"], 1);
        } else {
            // It gives up.
            next.del(&scene, "web").await;
            scene.delete_pod("web").await;
            scene.until_free("10.111.0.2").await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_del_that_was_answered_is_carried_out() {
    // The answer itself, the read, the update, its operation.
    for stop in 0..=3 {
        let scene = Scene::new(100).await;
        let node = scene.node("a").await;
        scene.pod("web", &node.name, &[]).await;
        node.add(&scene, "web").await;
        let before = scene.cloud.requests().iter().filter(compute).count();
        node.del(&scene, "web").await;
        scene.delete_pod("web").await;
        until_requests(&scene, before + stop).await;
        let name = node.kill();
        // A successor alone: no call, no sweep is needed.
        let _next = scene
            .start(&name, |settings| settings.sweep = Duration::from_secs(3600))
            .await;
        scene.until_free("10.111.0.2").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_move_is_resumed_by_the_sources_agent() {
    // Read, detach, its operation, read, attach, its operation.
    for stop in 1..=6 {
        let scene = Scene::new(100).await;
        let (a, b) = (scene.node("a").await, scene.node("b").await);
        scene.pod("cart", &a.name, &[]).await;
        let ip = a.add(&scene, "cart").await;
        // The destination's VM is known before the move begins.
        scene.pod("warm-up", &b.name, &[]).await;
        b.add(&scene, "warm-up").await;
        scene.annotate("cart", OUT, "true").await;
        scene
            .pod("cart-clone", &b.name, &[(IP, &ip), (FROM, &a.name)])
            .await;
        let before = scene.cloud.requests().iter().filter(compute).count();
        b.begin(scene.request("ADD", "cart-clone"));
        until_requests(&scene, before + stop).await;
        let name = b.kill();
        until("the move is over", async || {
            scene.entry(&ip).await["nodeName"] == name.as_str() && scene.holder(&ip) == name
        })
        .await;
        // The runtime asks again.
        let next = scene.start(&name, |_| {}).await;
        assert_eq!(
            next.add(&scene, "cart-clone").await,
            ip,
            "stopped after {stop}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_move_is_resumed_by_its_destination_alone_which_nobody_asks() {
    // Where this VM is, then as above. The clone is the node's first pod: nothing else says that it has one.
    for stop in 2..=7 {
        let scene = Scene::new(100).await;
        let (a, b) = (scene.node("a").await, scene.node("b").await);
        scene.pod("cart", &a.name, &[]).await;
        let ip = a.add(&scene, "cart").await;
        scene.annotate("cart", OUT, "true").await;
        scene
            .pod("cart-clone", &b.name, &[(IP, &ip), (FROM, &a.name)])
            .await;
        let before = scene.cloud.requests().iter().filter(compute).count();
        b.begin(scene.request("ADD", "cart-clone"));
        until_requests(&scene, before + stop).await;
        let (name, _) = (b.kill(), a.kill());
        let next = scene.start(&name, |_| {}).await;
        until(
            &format!("the move is over, stopped after {stop}"),
            async || {
                scene.entry(&ip).await["nodeName"] == name.as_str() && scene.holder(&ip) == name
            },
        )
        .await;
        // The runtime never asks again, and the pod goes without a DEL.
        scene.delete_pod("cart-clone").await;
        scene.until_free(&ip).await;
        drop(next);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_was_away_during_the_move_does_not_take_the_address_back() {
    let scene = Scene::new(20).await;
    let (a, b) = (scene.node("a").await, scene.node("b").await);
    scene.pod("cart", &a.name, &[]).await;
    let ip = a.add(&scene, "cart").await;
    scene.annotate("cart", OUT, "true").await;
    let name = a.kill();
    scene
        .pod("cart-clone", &b.name, &[(IP, &ip), (FROM, &name)])
        .await;
    assert_eq!(b.add(&scene, "cart-clone").await, ip);
    let updates = scene.updates();
    let next = scene.start(&name, |_| {}).await;
    next.del(&scene, "cart").await;
    scene.pod("web", &name, &[]).await;
    next.add(&scene, "web").await;
    assert_eq!(scene.holder(&ip), b.name);
    assert_eq!(scene.updates() - updates, 1, "the new pod's alone");
}
