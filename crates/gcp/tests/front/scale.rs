//! Many pods at once, counted in operations.

use std::time::Duration;

use futures::future::join_all;

use crate::scene::{Scene, UPDATE, address, until};

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_without_such_pods_makes_no_call() {
    let scene = Scene::new(20).await;
    let node = scene.node("a").await;
    // Its pods are another network's; a few sweeps would have come by.
    scene.pod("other", &node.name, &[]).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(
        scene.cloud.requests().is_empty(),
        "{:?}",
        scene.cloud.requests()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_and_ten_pods_start_and_end() {
    let scene = Scene::new(1500).await;
    let node = scene.node("a").await;
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
    assert!(updates <= 3, "{updates} operations for 110 pods");
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
    let dels = async {
        for name in &names {
            node.del(&scene, name).await;
        }
    };
    let more: Vec<String> = (0..10).map(|n| format!("next-{n}")).collect();
    let adds = join_all(more.iter().map(|name| node.ask(scene.request("ADD", name))));
    let ((), answers) = tokio::join!(dels, adds);
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
        ending <= 6,
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
