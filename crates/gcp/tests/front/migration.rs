//! An address moves with its pod: the three annotations, who may use them, and what interrupts a move.

use berth_testcloud::Fault;
use serde_json::json;

use crate::scene::{Scene, TestNode, UPDATE, address, refusal, until, zone};

const IP: &str = "live.cast.ai/ip";
const FROM: &str = "live.cast.ai/original-instance";
const OUT: &str = "live.cast.ai/move-out-ip";

/// A source with one pod, a destination, and the address.
async fn moving(operation: u64) -> (Scene, TestNode, TestNode, String) {
    let scene = Scene::new(operation).await;
    let (a, b) = (scene.node("a").await, scene.node("b").await);
    scene.pod("cart", &a.name, &[]).await;
    let address = a.add(&scene, "cart").await;
    (scene, a, b, address)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_migration_flow() {
    let (scene, a, b, ip) = moving(20).await;
    scene.annotate("cart", OUT, "true").await;
    let uid = scene
        .pod("cart-clone", &b.name, &[(IP, &ip), (FROM, &a.name)])
        .await;
    let updates = scene.updates();
    let first = b.ask(scene.request("ADD", "cart-clone")).await;
    assert_eq!(address(&first), ip);
    assert_eq!(scene.updates() - updates, 2, "one detach, one attach");
    assert_eq!(scene.holder(&ip), b.name);
    let entry = scene.entry(&ip).await;
    let names = (&entry["podName"], &entry["podUID"], &entry["nodeName"]);
    assert_eq!(names, (&json!("cart-clone"), &json!(uid), &json!(b.name)));
    assert_eq!(
        b.ask(scene.request("ADD", "cart-clone")).await,
        first,
        "a repeat"
    );

    // The source's pod ends after the move.
    scene.delete_pod("cart").await;
    a.del(&scene, "cart").await;
    until("the source has forgotten it", async || {
        scene.aliases(&a.name).is_empty()
    })
    .await;
    assert_eq!(scene.holder(&ip), b.name);
    assert_eq!(scene.entry(&ip).await["podUID"], json!(uid));
    assert_eq!(scene.object().await["status"]["allocated"], 1);

    // And the destination's later.
    scene.delete_pod("cart-clone").await;
    b.del(&scene, "cart-clone").await;
    scene.until_free(&ip).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_sources_del_keeps_a_marked_address_for_the_destination() {
    let (scene, a, b, ip) = moving(20).await;
    scene.annotate("cart", OUT, &ip).await;
    until("the marker is recorded", async || {
        let object = scene.object().await;
        let text = object["metadata"]["annotations"]["berth.dev/attributes"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        text.contains("moveOutIP")
    })
    .await;
    // The Pod object is gone before its DEL.
    scene.delete_pod("cart").await;
    a.del(&scene, "cart").await;
    assert_eq!(scene.holder(&ip), a.name);
    scene
        .pod("cart-clone", &b.name, &[(IP, &ip), (FROM, &a.name)])
        .await;
    assert_eq!(b.add(&scene, "cart-clone").await, ip);
    assert_eq!(scene.holder(&ip), b.name);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_that_no_pod_takes_over_is_released() {
    let scene = Scene::new(20).await;
    let name = scene.node("a").await.kill();
    let a = scene
        .start(&name, |settings| {
            settings.move_timeout = std::time::Duration::from_millis(500)
        })
        .await;
    scene.pod("cart", &a.name, &[]).await;
    let ip = a.add(&scene, "cart").await;
    scene.annotate("cart", OUT, "true").await;
    a.del(&scene, "cart").await;
    scene.delete_pod("cart").await;
    assert_eq!(scene.holder(&ip), a.name);
    scene.until_free(&ip).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_may_not_have_the_address_gets_the_reason() {
    let (scene, a, b, ip) = moving(20).await;
    let cases = [
        (
            "unmarked",
            vec![(IP, ip.as_str()), (FROM, a.name.as_str())],
            11,
            "does not carry live.cast.ai/move-out-ip",
        ),
        (
            "outside",
            vec![(IP, "10.112.0.5")],
            7,
            "not in the pool's cidr",
        ),
        ("gateway", vec![(IP, "10.111.0.1")], 7, "gateway"),
        (
            "no-address",
            vec![(IP, "ten")],
            7,
            "'ten' is not an IPv4 address",
        ),
    ];
    for (pod, annotations, code, words) in cases {
        scene.pod(pod, &b.name, &annotations).await;
        let (found, text) = refusal(&b.ask(scene.request("ADD", pod)).await);
        assert!(
            found == code && text.contains(words),
            "{pod}: {found} {text}"
        );
    }
    scene.annotate("cart", OUT, "true").await;
    let here = b.name.clone();
    for (pod, from, words) in [
        ("lies", "node-c", "is attached to"),
        ("itself", here.as_str(), "is this node itself"),
    ] {
        scene.pod(pod, &b.name, &[(IP, &ip), (FROM, from)]).await;
        let (code, text) = refusal(&b.ask(scene.request("ADD", pod)).await);
        assert!(code == 7 && text.contains(words), "{pod}: {code} {text}");
    }
    scene.annotate("cart", OUT, "10.111.9.9").await;
    scene
        .pod("other", &b.name, &[(IP, &ip), (FROM, &a.name)])
        .await;
    let (code, text) = refusal(&b.ask(scene.request("ADD", "other")).await);
    assert!(code == 7 && text.contains("10.111.9.9"), "{code} {text}");
    assert_eq!(scene.holder(&ip), a.name);
    assert_eq!(scene.entry(&ip).await["podName"], "cart");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_free_address_is_allocated_exactly() {
    let scene = Scene::new(20).await;
    let b = scene.node("b").await;
    scene.pod("back", &b.name, &[(IP, "10.111.7.7")]).await;
    assert_eq!(b.add(&scene, "back").await, "10.111.7.7");
    b.del(&scene, "back").await;
    scene.until_free("10.111.7.7").await;
    // It cools down for its last owner.
    scene.pod("eager", &b.name, &[(IP, "10.111.7.7")]).await;
    let (code, text) = refusal(&b.ask(scene.request("ADD", "eager")).await);
    assert_eq!(code, 11, "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_that_is_gone_counts_as_detached() {
    let (scene, a, b, ip) = moving(20).await;
    scene.annotate("cart", OUT, "true").await;
    let name = a.kill();
    scene
        .cloud
        .project(|project| project.remove_instance(zone(&name), &name));
    scene
        .pod("cart-clone", &b.name, &[(IP, &ip), (FROM, &name)])
        .await;
    assert_eq!(b.add(&scene, "cart-clone").await, ip);
    assert_eq!(scene.holder(&ip), b.name);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_attach_goes_back_to_the_source() {
    let (scene, a, b, ip) = moving(20).await;
    scene.annotate("cart", OUT, "true").await;
    scene
        .pod("cart-clone", &b.name, &[(IP, &ip), (FROM, &a.name)])
        .await;
    let destination = b.name.clone();
    scene.cloud.faults(move |request| {
        let attach = request.call == UPDATE && request.path.contains(&destination);
        attach.then(|| {
            Fault::FailOperation(
                "QUOTA_EXCEEDED".to_owned(),
                "ALIASES_PER_NETWORK_GLOBAL".to_owned(),
            )
        })
    });
    let (code, text) = refusal(&b.ask(scene.request("ADD", "cart-clone")).await);
    assert!(
        code == 11 && text.contains("went back to its source"),
        "{code} {text}"
    );
    assert_eq!(scene.holder(&ip), a.name);
    assert_eq!(scene.entry(&ip).await["podName"], "cart");
    // Once the quota is raised it moves.
    scene.cloud.faults(|_| None);
    assert_eq!(b.add(&scene, "cart-clone").await, ip);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_nodes_that_want_one_address() {
    let (scene, a, b, ip) = moving(200).await;
    let c = scene.node("c").await;
    scene.annotate("cart", OUT, "true").await;
    for (node, pod) in [(&b, "clone-b"), (&c, "clone-c")] {
        scene
            .pod(pod, &node.name, &[(IP, &ip), (FROM, &a.name)])
            .await;
    }
    let (one, other) = tokio::join!(
        b.ask(scene.request("ADD", "clone-b")),
        c.ask(scene.request("ADD", "clone-c"))
    );
    let winners = [(&b, &one), (&c, &other)]
        .into_iter()
        .filter(|(_, answer)| answer.exit == 0);
    let winners: Vec<_> = winners.collect();
    assert_eq!(winners.len(), 1, "{} {}", one.stdout, other.stdout);
    assert_eq!(scene.holder(&ip), winners[0].0.name);
    assert_eq!(scene.entry(&ip).await["nodeName"], json!(winners[0].0.name));
}

#[tokio::test(flavor = "multi_thread")]
async fn moves_in_both_directions_at_once() {
    let (scene, a, b, ip) = moving(50).await;
    scene.pod("till", &b.name, &[]).await;
    let back = b.add(&scene, "till").await;
    for pod in ["cart", "till"] {
        scene.annotate(pod, OUT, "true").await;
    }
    scene
        .pod("cart-clone", &b.name, &[(IP, &ip), (FROM, &a.name)])
        .await;
    scene
        .pod("till-clone", &a.name, &[(IP, &back), (FROM, &b.name)])
        .await;
    let (there, here) = tokio::join!(b.add(&scene, "cart-clone"), a.add(&scene, "till-clone"));
    assert_eq!((there, here), (ip.clone(), back.clone()));
    assert_eq!(scene.holder(&ip), b.name);
    assert_eq!(scene.holder(&back), a.name);
}

#[tokio::test(flavor = "multi_thread")]
async fn moves_under_churn() {
    let scene = Scene::new(50).await;
    let (a, b) = (scene.node("a").await, scene.node("b").await);
    let churn = async |node: &TestNode, rounds: usize| {
        for round in 0..rounds {
            let pod = format!("churn-{}-{round}", node.name);
            scene.pod(&pod, &node.name, &[]).await;
            node.add(&scene, &pod).await;
            node.del(&scene, &pod).await;
            scene.delete_pod(&pod).await;
        }
    };
    let moves = async || {
        let mut kept = Vec::new();
        for round in 0..4 {
            let (pod, clone) = (format!("cart-{round}"), format!("cart-{round}-clone"));
            scene.pod(&pod, &a.name, &[]).await;
            let ip = a.add(&scene, &pod).await;
            scene.annotate(&pod, OUT, "true").await;
            scene
                .pod(&clone, &b.name, &[(IP, &ip), (FROM, &a.name)])
                .await;
            assert_eq!(b.add(&scene, &clone).await, ip);
            a.del(&scene, &pod).await;
            scene.delete_pod(&pod).await;
            kept.push(ip);
        }
        kept
    };
    let ((), (), kept) = tokio::join!(churn(&a, 8), churn(&b, 8), moves());
    for ip in &kept {
        assert_eq!(scene.holder(ip), b.name);
        assert_eq!(scene.entry(ip).await["nodeName"], json!(b.name));
    }
    until("the others are gone", async || {
        scene.aliases(&a.name).is_empty() && scene.aliases(&b.name).len() == kept.len()
    })
    .await;
    until("and released", async || {
        scene.object().await["status"]["allocated"] == kept.len()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clone_on_the_same_node_takes_over_without_an_operation() {
    let (scene, a, _b, ip) = moving(20).await;
    scene.annotate("cart", OUT, "true").await;
    scene.pod("cart-clone", &a.name, &[(IP, &ip)]).await;
    let updates = scene.updates();
    assert_eq!(a.add(&scene, "cart-clone").await, ip);
    assert_eq!(scene.updates(), updates);
    a.del(&scene, "cart").await;
    assert_eq!(scene.holder(&ip), a.name);
    assert_eq!(scene.entry(&ip).await["podName"], "cart-clone");
}
