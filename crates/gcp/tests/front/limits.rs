//! What is used up: the pool's addresses, a quota, the alias ranges of a NIC; and what each version of CNI gets.

use berth_cni::wire::Request;
use berth_testcloud::{AliasRange, Fault};
use serde_json::{Value, json};

use crate::scene::{Scene, UPDATE, refusal, refusal_with_remedy, until, zone};

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_is_exhausted_at_available_one() {
    let scene =
        Scene::with_pool(20, |object| object["spec"]["cidr"] = json!("10.111.0.0/29")).await;
    let node = scene.node("a").await;
    for n in 2..=6 {
        let name = format!("web-{n}");
        scene.pod(&name, &node.name, &[]).await;
        let answer = node.ask(scene.request("ADD", &name)).await;
        let given = berth_testkit::answered_addresses(&answer).unwrap();
        assert_eq!(given, [format!("10.111.0.{n}/29")]);
    }
    let counters = json!({ "capacity": 6, "allocated": 5, "available": 1 });
    assert_eq!(scene.object().await["status"], counters);
    scene.pod("last", &node.name, &[]).await;
    let (code, text) = refusal(&node.ask(scene.request("ADD", "last")).await);
    assert!(code == 11 && text.contains("is exhausted"), "{code} {text}");
    assert!(text.contains("10.111.0.1"), "the gateway: {text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quota_and_a_full_nic_are_named() {
    let scene = Scene::new(20).await;
    let node = scene.node("a").await;
    scene.pod("web", &node.name, &[]).await;
    scene.cloud.faults(|request| {
        let text = "Quota 'ALIASES_PER_NETWORK_GLOBAL' exceeded.";
        (request.call == UPDATE)
            .then(|| Fault::FailOperation("QUOTA_EXCEEDED".to_owned(), text.to_owned()))
    });
    let answer = node.ask(scene.request("ADD", "web")).await;
    let (code, text, remedy) = refusal_with_remedy(&answer);
    assert!(
        code == 11 && text.contains("ALIASES_PER_NETWORK_GLOBAL"),
        "{code} {text}"
    );
    assert!(remedy.contains("quota"), "{remedy}");
    scene.cloud.faults(|_| None);
    until("nothing is left", async || {
        scene.object().await["status"]["allocated"] == 0 && scene.aliases(&node.name).is_empty()
    })
    .await;
    // 150 alias ranges of somebody else.
    let all = (0..150).map(|n| AliasRange::of("pods", &format!("10.5.0.{n}/32")));
    let all: Vec<AliasRange> = all.collect();
    let set = |aliases: Vec<AliasRange>| {
        scene
            .cloud
            .project(|project| project.set_aliases(zone(&node.name), &node.name, aliases));
    };
    set(all.clone());
    let answer = node.ask(scene.request("ADD", "web")).await;
    let (code, text, _) = refusal_with_remedy(&answer);
    assert!(code == 11 && text.contains("150"), "{code} {text}");
    set(all[1..].to_vec());
    node.add(&scene, "web").await;
}

fn of_version(mut request: Request, version: &str) -> Request {
    let mut network: Value = serde_json::from_str(&request.stdin).unwrap();
    network["cniVersion"] = json!(version);
    request.stdin = network.to_string();
    request
}

#[tokio::test(flavor = "multi_thread")]
async fn each_version_of_cni_gets_its_own_form() {
    let scene = Scene::new(20).await;
    let node = scene.node("a").await;
    let versions = ["0.3.1", "0.4.0", "1.0.0", "1.1.0"];
    for (at, version) in versions.into_iter().enumerate() {
        let name = format!("web-{at}");
        scene.pod(&name, &node.name, &[]).await;
        let ask = async |verb: &str| {
            let request = of_version(scene.request(verb, &name), version);
            node.ask(request).await
        };
        let answer = ask("ADD").await;
        let result: Value = serde_json::from_str(&answer.stdout).unwrap();
        assert_eq!(result["cniVersion"], version);
        let mut ip =
            json!({ "address": format!("10.111.0.{}/16", at + 2), "gateway": "10.111.0.1" });
        if version.starts_with("0.") {
            ip["version"] = json!("4");
        }
        assert_eq!(result["ips"], json!([ip]), "{version}");
        assert_eq!(result["routes"], json!([{ "dst": "0.0.0.0/0" }]));
        // What a version does not have is refused; a DEL never is.
        for (verb, since) in [("CHECK", 1), ("GC", 3), ("STATUS", 3)] {
            let answer = ask(verb).await;
            if at < since {
                let (code, text, remedy) = refusal_with_remedy(&answer);
                assert!(code == 1 && text.contains(verb), "{version}: {code} {text}");
                assert!(remedy.contains("1.1.0"), "{remedy}");
                let body: Value = serde_json::from_str(&answer.stdout).unwrap();
                assert_eq!(body["cniVersion"], version);
            } else if verb != "GC" {
                assert_eq!(answer.exit, 0, "{version} {verb}: {}", answer.stdout);
            }
        }
        assert_eq!(ask("DEL").await.exit, 0);
    }
    // The form of a result before 0.3.1 has no place for the routes.
    scene.pod("old", &node.name, &[]).await;
    let old = of_version(scene.request("ADD", "old"), "0.2.0");
    let (code, text) = refusal(&node.ask(old).await);
    assert!(code == 1 && text.contains("0.2.0"), "{code} {text}");
}
