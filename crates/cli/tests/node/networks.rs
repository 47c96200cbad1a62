//! Pods and their networks: what they get, what a user sees of it, and that all of it comes back.

use serde_json::json;

use crate::scene::Scene;
use crate::site::HOME;

#[tokio::test(flavor = "multi_thread")]
async fn one_network() {
    let scene = Scene::open("one").await;
    let ns = &scene.namespace;
    scene
        .network("lan", json!({ "range": "10.50.1.0/24" }))
        .await;
    scene.run("web", "lan").await;

    assert_eq!(scene.addresses("web", "net1"), ["10.50.1.1/24"]);
    let told = (
        format!("{ns}/lan"),
        "net1".to_owned(),
        vec!["10.50.1.1".to_owned()],
    );
    assert_eq!(scene.status("web").await, [told]);
    let pool = scene.pool("10.50.1.0-24").await;
    let holder = &pool["1"];
    assert_eq!(
        (pool.len(), &holder.podref, holder.ifname.as_str()),
        (1, &format!("{ns}/web"), "net1")
    );
    assert_eq!(holder.id.len(), 64, "{holder:?}");
    assert_eq!(scene.reservations().await["10.50.1.1"], "web/net1");

    let listed = scene.site.kubectl(&["get", "ippools", "--namespace", HOME]);
    assert!(listed.starts_with("NAME "), "{listed}");
    assert!(listed.contains("\n10.50.1.0-24 "), "{listed}");
    let listed = scene.site.kubectl(&[
        "get",
        "overlappingrangeipreservations.whereabouts.cni.cncf.io",
        "--namespace",
        HOME,
    ]);
    assert!(listed.contains("\n10.50.1.1 "), "{listed}");
    let events = scene.events("web").await;
    let added = format!("Add net1 [10.50.1.1/24] from {ns}/lan");
    assert!(
        events
            .iter()
            .any(|(reason, said)| reason == "AddedInterface" && *said == added),
        "{events:?}"
    );

    scene.delete("web").await;
    scene.nothing_is_held(&["10.50.1.0-24"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn three_networks_one_of_them_twice() {
    let scene = Scene::open("three").await;
    scene
        .network("blue", json!({ "range": "10.50.2.0/25" }))
        .await;
    scene
        .network(
            "green",
            json!({ "range": "10.50.2.128/25", "gateway": "10.50.2.129" }),
        )
        .await;
    scene.run("web", "blue,green,green").await;
    assert_eq!(scene.addresses("web", "net1"), ["10.50.2.1/25"]);
    assert_eq!(scene.addresses("web", "net2"), ["10.50.2.130/25"]);
    assert_eq!(scene.addresses("web", "net3"), ["10.50.2.131/25"]);
    let held = scene.holders("10.50.2.128-25").await.into_values();
    assert_eq!(held.collect::<Vec<_>>(), ["web/net2", "web/net3"]);
    assert_eq!(scene.reservations().await.len(), 3);
    scene.delete("web").await;
    scene
        .nothing_is_held(&["10.50.2.0-25", "10.50.2.128-25"])
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dual_stack() {
    let scene = Scene::open("dual").await;
    let ranges = json!({ "ipRanges": [{ "range": "10.50.3.0/24" }, { "range": "fd50:3::/64" }] });
    scene.network("lan", ranges).await;
    scene.create("a", "lan").await;
    scene.run("b", "lan").await;
    scene.running("a").await;
    let of_b = scene.addresses("b", "net1");
    assert!(
        of_b[0].starts_with("10.50.3.") && of_b[1].starts_with("fd50:3::"),
        "{of_b:?}"
    );
    for address in &of_b {
        scene.ping("a", address);
    }
    assert_eq!(scene.reservations().await.len(), 4);
    scene.delete("a").await;
    let mut left: Vec<_> = scene.holders("10.50.3.0-24").await.into_values().collect();
    left.extend(scene.holders("fd50-3---64").await.into_values());
    assert_eq!(left, ["b/net1", "b/net1"]);
    scene.delete("b").await;
    scene
        .nothing_is_held(&["10.50.3.0-24", "fd50-3---64"])
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn overlapping_ranges_share_no_address_and_named_networks_may() {
    let scene = Scene::open("overlap").await;
    scene
        .network("wide", json!({ "range": "10.50.4.0/24" }))
        .await;
    scene
        .network("narrow", json!({ "range": "10.50.4.0/28" }))
        .await;
    scene
        .network(
            "apart",
            json!({ "range": "10.50.4.0/24", "network_name": "apart" }),
        )
        .await;
    scene.run("a", "wide,apart").await;
    scene.run("b", "narrow,apart").await;
    assert_eq!(scene.addresses("a", "net1"), ["10.50.4.1/24"]);
    assert_eq!(scene.addresses("b", "net1"), ["10.50.4.2/28"]);
    // Another network, whatever its addresses look like.
    assert_eq!(scene.addresses("a", "net2"), ["10.50.4.1/24"]);
    assert_eq!(scene.addresses("b", "net2"), ["10.50.4.2/24"]);
    let apart = scene.holders("apart-10.50.4.0-24").await.into_values();
    assert_eq!(apart.collect::<Vec<_>>(), ["a/net2", "b/net2"]);
    let reserved = scene.reservations().await.into_keys();
    assert_eq!(
        reserved.collect::<Vec<_>>(),
        [
            "10.50.4.1",
            "10.50.4.2",
            "apart-10.50.4.1",
            "apart-10.50.4.2"
        ]
    );
    scene.delete("a").await;
    scene.delete("b").await;
    scene
        .nothing_is_held(&["10.50.4.0-24", "10.50.4.0-28", "apart-10.50.4.0-24"])
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_pod_without_an_address_says_why_and_gets_the_one_that_is_freed() {
    let scene = Scene::open("small").await;
    scene
        .network("lan", json!({ "range": "10.50.5.10-10.50.5.11/24" }))
        .await;
    scene.run("a", "lan").await;
    scene.run("b", "lan").await;
    scene.create("c", "lan").await;
    scene
        .until("the third pod says why it waits", async || {
            let events = scene.events("c").await;
            let told = |(reason, said): &(String, String)| {
                reason == "FailedCreatePodSandBox"
                    && said.contains("Could not allocate IP in range")
            };
            match events.iter().any(told) {
                true => Ok(()),
                false => Err(format!("{events:?}")),
            }
        })
        .await;
    let freed = scene.addresses("a", "net1");
    scene.delete("a").await;
    scene.running("c").await;
    assert_eq!(scene.addresses("c", "net1"), freed);
    assert_eq!(scene.pool("10.50.5.0-24").await.len(), 2);
    scene.delete("b").await;
    scene.delete("c").await;
    scene.nothing_is_held(&["10.50.5.0-24"]).await;
}

/// The selection element's `ips`, which Multus hands on as the capability of that name.
#[tokio::test(flavor = "multi_thread")]
async fn a_pod_chooses_its_address_and_no_second_one_gets_it() {
    let scene = Scene::open("chosen").await;
    scene
        .network_with(
            "lan",
            json!({ "capabilities": { "ips": true } }),
            json!({ "range": "10.50.12.0/24" }),
        )
        .await;
    let chosen = json!([{ "name": "lan", "ips": ["10.50.12.77/24"] }]).to_string();
    scene.run("first", &chosen).await;
    assert_eq!(scene.addresses("first", "net1"), ["10.50.12.77/24"]);
    assert_eq!(scene.holders("10.50.12.0-24").await["77"], "first/net1");
    assert_eq!(scene.reservations().await["10.50.12.77"], "first/net1");
    scene.create("second", &chosen).await;
    scene
        .until("the second pod says why it waits", async || {
            let events = scene.events("second").await;
            let told = |(reason, said): &(String, String)| {
                reason == "FailedCreatePodSandBox" && said.contains("10.50.12.77 is held by")
            };
            match events.iter().any(told) {
                true => Ok(()),
                false => Err(format!("{events:?}")),
            }
        })
        .await;
    scene.delete("first").await;
    scene.running("second").await;
    assert_eq!(scene.addresses("second", "net1"), ["10.50.12.77/24"]);
    scene.delete("second").await;
    scene.nothing_is_held(&["10.50.12.0-24"]).await;
}
