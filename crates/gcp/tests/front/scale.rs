//! Many pods at once, counted in operations.

use std::time::Duration;

use futures::future::join_all;
use serde_json::json;

use crate::scene::{Scene, UPDATE, address, until};

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_without_such_pods_makes_no_call() {
    let scene = Scene::new(20).await;
    let node = scene.node("a").await;
    // Its pods are host-local's: they start, and they end, also one from before the switch.
    scene.pod("other", &node.name, &[]).await;
    let ipam = json!({ "pods": "labelled", "ranges": [[{ "subnet": "10.4.97.0/24" }]] });
    for (verb, pod) in [("ADD", "other"), ("DEL", "other"), ("DEL", "before")] {
        let answer = node.ask(scene.call(verb, pod).request(&ipam)).await;
        assert!(answer.delegate.is_some(), "{verb} {pod}: {}", answer.stdout);
    }
    let requests = scene.cloud.requests();
    assert!(requests.is_empty(), "{requests:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn another_pool_that_cant_be_read_stops_no_del() {
    let broken = Scene::with_pool(20, |pool| pool["spec"]["cidr"] = json!("10.4.0.0/33")).await;
    let scene = Scene::new(20).await;
    let node = scene.node("a").await;
    let ipam = json!({ "pods": "labelled", "ranges": [[{ "subnet": "10.4.97.0/24" }]] });
    let answer = node.ask(scene.call("DEL", "before").request(&ipam)).await;
    assert!(answer.delegate.is_some(), "{}", answer.stdout);
    assert_eq!(broken.object().await["spec"]["cidr"], "10.4.0.0/33");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_and_ten_pods_start_and_end() {
    let scene = Scene::new(1500).await;
    // Longer than the test takes on a loaded machine: no address of a pod that ended goes to another one.
    let cools = |settings: &mut berth_gcp::front::Settings| {
        settings.cooldown = Duration::from_secs(3600);
    };
    let node = scene.node_with("a", cools).await;
    let names: Vec<String> = (0..110).map(|n| format!("web-{n}")).collect();
    for name in &names {
        scene.pod(name, &node.name, &[]).await;
    }
    let asked = names
        .iter()
        .map(|name| node.ask(scene.request("ADD", name)));
    let answers = join_all(asked).await;
    let mut given: Vec<String> = answers.iter().map(address).collect();
    given.sort();
    given.dedup();
    assert_eq!(given.len(), 110);
    let updates = scene.updates();
    // How few, the benchmark says: that depends on the machine.
    assert!(updates <= 30, "{updates} operations for 110 pods");
    assert_eq!(
        scene.cloud.count("zoneOperations.wait"),
        updates,
        "one wait per operation"
    );
    assert_eq!(scene.aliases(&node.name).len(), 110);
    assert_eq!(scene.object().await["status"]["allocated"], 110);

    // All end while ten others start.
    for n in 0..10 {
        scene.pod(&format!("next-{n}"), &node.name, &[]).await;
    }
    let dels = join_all(names.iter().map(|name| node.del(&scene, name)));
    let more: Vec<String> = (0..10).map(|n| format!("next-{n}")).collect();
    let adds = join_all(more.iter().map(|name| node.ask(scene.request("ADD", name))));
    let (_, answers) = tokio::join!(dels, adds);
    let kept: Vec<String> = answers.iter().map(address).collect();
    assert!(
        kept.iter().all(|address| !given.contains(address)),
        "{kept:?}"
    );
    until("the others are gone", async || {
        scene.aliases(&node.name).len() == 10
    })
    .await;
    until("they are released", async || {
        scene.object().await["status"]["allocated"] == 10
    })
    .await;
    let ending = scene.updates() - updates;
    assert!(
        ending <= 40,
        "{ending} operations for 110 DELs among 10 ADDs"
    );
    let refused: Vec<_> = scene
        .cloud
        .requests()
        .into_iter()
        .filter(|request| request.code.is_none_or(|code| code >= 400))
        .collect();
    assert!(refused.is_empty(), "{refused:?}");
    assert_eq!(
        scene.cloud.count(UPDATE),
        scene.cloud.count("zoneOperations.wait")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn twenty_moves_between_two_nodes_share_their_operations() {
    let scene = Scene::new(1500).await;
    // A sweep comes much less often than an operation takes.
    let rare =
        |settings: &mut berth_gcp::front::Settings| settings.sweep = Duration::from_secs(3600);
    let (a, b) = (
        scene.node_with("a", rare).await,
        scene.node_with("b", rare).await,
    );
    let names: Vec<String> = (0..20).map(|n| format!("cart-{n}")).collect();
    for name in &names {
        scene.pod(name, &a.name, &[]).await;
    }
    let answers = join_all(names.iter().map(|name| a.ask(scene.request("ADD", name)))).await;
    // The destination's VM is known before.
    scene.pod("warm-up", &b.name, &[]).await;
    b.add(&scene, "warm-up").await;
    let clones: Vec<String> = names.iter().map(|name| format!("{name}-clone")).collect();
    for ((name, clone), answer) in names.iter().zip(&clones).zip(&answers) {
        scene
            .annotate(name, "live.cast.ai/move-out-ip", "true")
            .await;
        let annotations = [
            ("live.cast.ai/ip", address(answer)),
            ("live.cast.ai/original-instance", a.name.clone()),
        ];
        let annotations = annotations
            .each_ref()
            .map(|(key, value)| (*key, value.as_str()));
        scene.pod(clone, &b.name, &annotations).await;
    }
    let updates = scene.updates();
    let moved = join_all(
        clones
            .iter()
            .map(|clone| b.ask(scene.request("ADD", clone))),
    )
    .await;
    for (before, after) in answers.iter().zip(&moved) {
        assert_eq!(address(before), address(after));
        assert_eq!(scene.holder(&address(after)), b.name);
    }
    let updates = scene.updates() - updates;
    assert!(updates <= 20, "{updates} operations for 20 moves");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_warm_address_needs_no_operation() {
    let scene = Scene::new(100).await;
    let warm = |settings: &mut berth_gcp::front::Settings| {
        settings.warm = berth_gcp::nic::warm::Targets::new(3, 4).unwrap();
    };
    let node = scene.node_with("a", warm).await;
    for pod in ["first", "one", "two", "three", "four"] {
        scene.pod(pod, &node.name, &[]).await;
    }
    let first = node.add(&scene, "first").await;
    until("three are attached besides", async || {
        scene.aliases(&node.name).len() == 4
    })
    .await;
    // They are the node's, and no sweep takes them for dead pods': the sweeps that collect a dead pod's leave them.
    scene.delete_pod("first").await;
    scene.until_free(&first).await;
    assert_eq!(scene.aliases(&node.name).len(), 3);
    assert_eq!(scene.object().await["status"]["allocated"], 3);
    // The cloud refuses everything: the pods start all the same.
    let refused = berth_testcloud::ApiError::new(503, "backendError", "a test says so");
    scene.cloud.faults(move |request| {
        (request.call == UPDATE).then(|| berth_testcloud::Fault::Refuse(refused.clone()))
    });
    let mut given = Vec::new();
    for pod in ["one", "two", "three"] {
        given.push(node.add(&scene, pod).await);
        let entry = scene.entry(given.last().unwrap()).await;
        assert_eq!(entry["podName"], pod);
    }
    assert_eq!(node.add(&scene, "two").await, given[1], "a repeat");
    scene.cloud.faults(|_| None);
    until("the pool is filled again", async || {
        scene.aliases(&node.name).len() == 6
    })
    .await;
    node.del(&scene, "one").await;
    scene.until_free(&given[0]).await;
}
