//! What goes wrong on nodes: nothing of it leaks an address, and nothing gives one twice.

use serde_json::json;

use crate::scene::Scene;
use crate::site::HOME;

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_killed_by_force_gives_its_address_back() {
    let scene = Scene::open("force").await;
    scene
        .network("lan", json!({ "range": "10.50.8.0/24" }))
        .await;
    scene.run("web", "lan").await;
    let address = scene.addresses("web", "net1");
    scene.kubectl(&["delete", "pod", "web", "--force", "--grace-period=0"]);
    // At once under the same name: it may take the entry over, and the old one's late DEL must not free it then.
    scene.run("web", "lan").await;
    assert_eq!(scene.pool("10.50.8.0-24").await.len(), 1);
    assert_eq!(scene.addresses("web", "net1"), address);
    tokio::time::sleep(std::time::Duration::from_secs(3)).await;
    assert_eq!(
        scene
            .holders("10.50.8.0-24")
            .await
            .into_values()
            .collect::<Vec<_>>(),
        ["web/net1"]
    );
    scene.kubectl(&["delete", "pod", "web", "--force", "--grace-period=0"]);
    scene.nothing_is_held(&["10.50.8.0-24"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_container_runtime_restarts() {
    let scene = Scene::alone("runtime").await;
    scene
        .network("lan", json!({ "range": "10.50.9.0/24" }))
        .await;
    scene.run("before", "lan").await;
    let held = scene.pool("10.50.9.0-24").await;
    scene.site.node.restart_containerd().await.unwrap();
    assert_eq!(scene.addresses("before", "net1"), ["10.50.9.1/24"]);
    scene.run("after", "lan").await;
    assert_eq!(scene.addresses("after", "net1"), ["10.50.9.2/24"]);
    assert_eq!(scene.pool("10.50.9.0-24").await["1"], held["1"]);
    scene.delete("before").await;
    scene.delete("after").await;
    scene.nothing_is_held(&["10.50.9.0-24"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_agent_is_away_while_pods_come_and_go() {
    let scene = Scene::alone("away").await;
    scene
        .network("lan", json!({ "range": "10.50.10.0/24" }))
        .await;
    scene.run("before", "lan").await;
    scene.site.kill_agent().await;
    scene.delete("before").await;
    scene.nothing_is_held(&["10.50.10.0-24"]).await;
    scene.run("meanwhile", "lan").await;
    assert_eq!(scene.addresses("meanwhile", "net1"), ["10.50.10.1/24"]);
    scene.site.start_agent().await;
    scene.run("after", "lan").await;
    assert_eq!(scene.addresses("after", "net1"), ["10.50.10.2/24"]);
    scene.delete("meanwhile").await;
    scene.delete("after").await;
    scene.nothing_is_held(&["10.50.10.0-24"]).await;
}

/// The agent has no journal of it, and no DEL will come: only the look at all pools finds it.
#[tokio::test(flavor = "multi_thread")]
async fn an_entry_put_by_hand_for_a_pod_that_does_not_exist_is_collected() {
    let scene = Scene::alone("byhand").await;
    scene
        .network("lan", json!({ "range": "10.50.11.0/24" }))
        .await;
    scene.run("lives", "lan").await;
    let ghost = format!("{}/ghost", scene.namespace);
    let entry = json!({ "id": "by-hand", "podref": ghost, "ifname": "net1" });
    let patch = json!({ "spec": { "allocations": { "7": entry } } }).to_string();
    let pool = "10.50.11.0-24";
    scene.site.kubectl(&[
        "patch",
        "ippools.whereabouts.cni.cncf.io",
        pool,
        "--namespace",
        HOME,
        "--type=merge",
        "--patch",
        &patch,
    ]);
    scene.site.kill_agent().await;
    let eager = ["--garbage-grace=1", "--garbage-interval=1"];
    scene.site.start_agent_with(&eager).await;
    scene
        .until("the entry is collected", async || {
            let held = scene.holders(pool).await;
            match held.contains_key("7") {
                true => Err(format!("{held:?}")),
                false => Ok(()),
            }
        })
        .await;
    let told = "successful cleanup of IP address [10.50.11.7] from network lan";
    scene
        .until("the collection is told", async || {
            let events = scene.events("ghost").await;
            let collected = |(reason, said): &(String, String)| {
                reason == "IPAddressGarbageCollected" && said == told
            };
            match events.iter().any(collected) {
                true => Ok(()),
                false => Err(format!("{events:?}")),
            }
        })
        .await;
    assert_eq!(scene.holders(pool).await["1"], "lives/net1");
    assert_eq!(scene.reservations().await.len(), 1);
    scene.site.kill_agent().await;
    scene.site.start_agent().await;
    scene.delete("lives").await;
    scene.nothing_is_held(&[pool]).await;
}
