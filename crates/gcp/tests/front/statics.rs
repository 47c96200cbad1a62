//! Pools in the subnet's primary range: a reservation is made once and released once, whatever interrupts it.

use berth_cni::wire::{Answer, Request};
use berth_testcloud::{ApiError, Fault, Recorded, permissions_of};
use serde_json::json;

use crate::permissions::agents_permissions;
use crate::scene::{Scene, UPDATE, until, zone};

const INSERT: &str = "addresses.insert";
const DELETE: &str = "addresses.delete";
const IP: &str = "10.128.8.2";

async fn scene() -> Scene {
    Scene::with_pool(100, |object| {
        object["spec"]["cidr"] = json!("10.128.8.0/24")
    })
    .await
}

fn request(scene: &Scene, verb: &str, pod: &str) -> Request {
    scene
        .call(verb, pod)
        .request(&json!({ "method": "static" }))
}

fn assert_has_ip(answer: &Answer) {
    let given = berth_testkit::answered_addresses(answer).unwrap();
    assert_eq!(given, [format!("{IP}/24")]);
}

fn reservations(scene: &Scene) -> Vec<String> {
    scene.cloud.project(|project| project.reservations())
}

/// The requestIds of a call, in the order of its requests.
fn ids(scene: &Scene, call: &str) -> Vec<String> {
    let id = |request: &Recorded| {
        let found = request.query.iter().find(|(name, _)| name == "requestId");
        found.unwrap().1.clone()
    };
    let made = scene.cloud.requests();
    let made = made.iter().filter(|request| request.call == call);
    made.map(id).collect()
}

async fn until_nothing_is_left(scene: &Scene) {
    scene.until_free(IP).await;
    assert_eq!(reservations(scene), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_move_keeps_the_reservation() {
    let scene = scene().await;
    let (a, b) = (scene.node("a").await, scene.node("b").await);
    scene.pod("cart", &a.name, &[]).await;
    assert_has_ip(&a.ask(request(&scene, "ADD", "cart")).await);
    scene
        .annotate("cart", "live.cast.ai/move-out-ip", "true")
        .await;
    scene
        .pod("clone", &b.name, &[("live.cast.ai/ip", IP)])
        .await;
    assert_has_ip(&b.ask(request(&scene, "ADD", "clone")).await);
    assert_eq!(scene.holder(IP), b.name);
    assert_eq!(a.ask(request(&scene, "DEL", "cart")).await.exit, 0);
    assert_eq!(reservations(&scene), [IP]);
    assert_eq!(
        (scene.cloud.count(INSERT), scene.cloud.count(DELETE)),
        (1, 0)
    );
    assert_eq!(b.ask(request(&scene, "DEL", "clone")).await.exit, 0);
    until_nothing_is_left(&scene).await;
    // That was every kind of request that an agent makes: docs/gcp.md names no permission that it does not need.
    let used = permissions_of(&scene.cloud.requests());
    assert_eq!(used, agents_permissions());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_leader_releases_the_reservation_of_a_node_that_is_gone() {
    let scene = scene().await;
    let node = scene.node("a").await;
    scene.pod("web", &node.name, &[]).await;
    assert_has_ip(&node.ask(request(&scene, "ADD", "web")).await);
    let gone = node.kill();
    scene.delete_pod("web").await;
    scene.delete_node(&gone).await;
    scene
        .cloud
        .project(|project| project.remove_instance(zone(&gone), &gone));
    let _leader = scene.leader().await;
    until_nothing_is_left(&scene).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_between_reservation_and_attach() {
    let scene = scene().await;
    let node = scene.node("a").await;
    scene.pod("web", &node.name, &[]).await;
    node.begin(request(&scene, "ADD", "web"));
    until("it is being reserved", async || {
        scene.cloud.count(INSERT) > 0
    })
    .await;
    let name = node.kill();
    assert_eq!(scene.updates(), 0);
    let next = scene.start(&name, |_| {}).await;
    assert_has_ip(&next.ask(request(&scene, "ADD", "web")).await);
    assert_eq!(scene.holder(IP), name);
    assert_eq!(reservations(&scene), [IP]);
    let ids = ids(&scene, INSERT);
    assert!(
        ids.iter().all(|id| ids.len() > 2 || *id == ids[0]),
        "{ids:?}"
    );
    assert_eq!(next.ask(request(&scene, "DEL", "web")).await.exit, 0);
    until_nothing_is_left(&scene).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_whose_answer_is_lost_is_repeated_under_its_id() {
    let scene = scene().await;
    let node = scene.node("a").await;
    scene.pod("web", &node.name, &[]).await;
    let mut lost = std::collections::BTreeSet::new();
    scene.cloud.faults(move |request| {
        let first =
            [INSERT, DELETE].contains(&request.call.as_str()) && lost.insert(request.call.clone());
        first.then_some(Fault::LoseAnswer)
    });
    let failed = node.ask(request(&scene, "ADD", "web")).await;
    assert_eq!(failed.exit, 1, "{}", failed.stdout);
    // What the failed ADD left is released, or taken over by the next one.
    assert_has_ip(&node.ask(request(&scene, "ADD", "web")).await);
    assert_eq!(scene.holder(IP), node.name);
    assert_eq!(reservations(&scene), [IP]);
    assert_eq!(node.ask(request(&scene, "DEL", "web")).await.exit, 0);
    until_nothing_is_left(&scene).await;
    // Whatever was repeated had the id of the first one before it had another.
    for call in [INSERT, DELETE] {
        let ids = ids(&scene, call);
        assert!(ids.len() < 2 || ids[0] == ids[1], "{call}: {ids:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_is_reserved_again_after_an_attach_that_was_refused() {
    let scene = scene().await;
    let node = scene.node("a").await;
    scene.pod("web", &node.name, &[]).await;
    for _ in 0..2 {
        let refused = ApiError::new(400, "invalid", "a test says so");
        scene.cloud.faults(move |request| {
            (request.call == UPDATE).then(|| Fault::Refuse(refused.clone()))
        });
        assert_eq!(node.ask(request(&scene, "ADD", "web")).await.exit, 1);
        scene.cloud.faults(|_| None);
        until_nothing_is_left(&scene).await;
    }
    // An operation that failed stays failed under its id, and the next one has another.
    let mut failing = 2;
    scene.cloud.faults(move |request| {
        let fails = request.call == INSERT && failing > 0;
        failing -= usize::from(fails);
        fails.then(|| Fault::FailOperation("QUOTA_EXCEEDED".to_owned(), "ADDRESSES".to_owned()))
    });
    let mut answer = node.ask(request(&scene, "ADD", "web")).await;
    while answer.exit != 0 {
        answer = node.ask(request(&scene, "ADD", "web")).await;
    }
    assert_has_ip(&answer);
    assert_eq!(
        reservations(&scene),
        [IP],
        "it is there, not only its answer"
    );
    assert_eq!(scene.holder(IP), node.name);
}
