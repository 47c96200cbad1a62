//! Calls without an agent: one at a time under the lock file, by the same engine.

use std::fs::OpenOptions;
use std::os::unix::fs::MetadataExt;

use crate::scene::{Scene, address, until};

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_starts_and_ends_without_an_agent() {
    let scene = Scene::new(50).await;
    let name = scene.node("a").await.kill();
    for pod in ["one", "two"] {
        scene.pod(pod, &name, &[]).await;
    }
    let (add, other) = (scene.request("ADD", "one"), scene.request("ADD", "two"));
    let (one, two) = tokio::join!(scene.once(&name, &add), scene.once(&name, &other));
    let (one, two) = (address(&one), address(&two));
    assert_ne!(one, two);
    assert_eq!(address(&scene.once(&name, &add).await), one, "a repeat");
    assert_eq!(scene.aliases(&name).len(), 2);
    // No process is left to detach it later: it is gone when the answer comes.
    let answer = scene.once(&name, &scene.request("DEL", "one")).await;
    assert_eq!(answer.exit, 0, "{}", answer.stdout);
    assert!(scene.holders(&one).is_empty());
    assert!(scene.entry(&one).await.is_null());
    // The agent that starts then has the other one.
    let node = scene.start(&name, |_| {}).await;
    node.del(&scene, "two").await;
    scene.until_free(&two).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_starts_during_an_update_waits_for_it() {
    let scene = Scene::new(50).await;
    let name = scene.node("a").await.kill();
    scene.pod("web", &name, &[]).await;
    let lock = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(scene.lock(&name))
        .unwrap();
    lock.lock().unwrap();
    let node = scene.start(&name, |_| {}).await;
    node.begin(scene.request("ADD", "web"));
    until("this VM is known", async || {
        scene.cloud.count("instances.get") == 1
    })
    .await;
    let inode = lock.metadata().unwrap().ino();
    until("it waits for the lock", async || {
        let locks = std::fs::read_to_string("/proc/locks").unwrap();
        let waits = |line: &str| line.contains("->") && line.contains(&format!(":{inode} "));
        locks.lines().any(waits)
    })
    .await;
    assert_eq!(scene.updates(), 0, "another process has the lock");
    lock.unlock().unwrap();
    assert_eq!(node.add(&scene, "web").await, "10.111.0.2");
    assert_eq!(scene.updates(), 1);
}
