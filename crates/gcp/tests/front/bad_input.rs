//! What is wrong with a pool, its range, the metadata or the rights: named with its value, before anything is left behind.

use berth_testcloud::{ApiError, Fault};
use serde_json::json;

use crate::scene::{REGION, Scene, TestNode, UPDATE, refusal_with_remedy, until};

/// The code, the text and the remedy of an ADD that is refused.
async fn refused(scene: &Scene, node: &TestNode) -> (u64, String, String) {
    refusal_with_remedy(&node.ask(scene.request("ADD", "web")).await)
}

async fn until_nothing_is_left(scene: &Scene, node: &TestNode) {
    until("nothing is allocated or attached", async || {
        let object = scene.object().await;
        let entries = object["spec"]["allocations"].as_object().cloned();
        entries.unwrap_or_default().is_empty() && scene.aliases(&node.name).is_empty()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cidr_that_is_not_the_ranges() {
    let scene =
        Scene::with_pool(20, |object| object["spec"]["cidr"] = json!("10.112.0.0/16")).await;
    let node = scene.node("a").await;
    scene.pod("web", &node.name, &[]).await;
    let (code, text, remedy) = refused(&scene, &node).await;
    assert!(code == 7 && text.contains("10.112.0.2"), "{code} {text}");
    assert!(remedy.contains("berth gcp check"), "{remedy}");
    until_nothing_is_left(&scene, &node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_range_that_is_deleted_underneath() {
    let scene = Scene::new(20).await;
    let node = scene.node("a").await;
    scene.pod("web", &node.name, &[]).await;
    scene
        .cloud
        .project(|project| project.drop_secondary_range(REGION, &scene.subnet, "live"));
    let (code, text, remedy) = refused(&scene, &node).await;
    assert!(
        code == 7 && text.contains("secondary range"),
        "{code} {text}"
    );
    assert!(remedy.contains("range and subnet"), "{remedy}");
    until_nothing_is_left(&scene, &node).await;
    // Made again, it is served.
    scene.cloud.project(|project| {
        project.add_secondary_range(REGION, &scene.subnet, "live", "10.111.0.0/16");
    });
    assert_eq!(node.add(&scene, "web").await, "10.111.0.2");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_that_is_too_small_and_a_page_that_is_named() {
    let scene = Scene::with_pool(20, |object| {
        object["spec"]["cidr"] = json!("10.111.0.0/31");
    })
    .await;
    let node = scene.node("a").await;
    scene.pod("web", &node.name, &[]).await;
    let (code, text, _) = refused(&scene, &node).await;
    assert!(code == 7 && text.contains("10.111.0.0/31"), "{code} {text}");
    let page = json!({ "berth.dev/page-of": json!({ "pool": "ippool-x", "cidr": "10.111.0.0/16" }).to_string() });
    scene
        .patch_pool(&json!({ "metadata": { "annotations": page } }))
        .await;
    let (code, text, remedy) = refused(&scene, &node).await;
    assert!(
        code == 7 && text.contains("is a page of IPPool ippool-x"),
        "{code} {text}"
    );
    assert!(remedy.contains("ippool-x"), "{remedy}");
    assert_eq!(scene.updates(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_cloud_says_reaches_the_runtime() {
    let scene = Scene::new(20).await;
    let missing = "Required 'compute.instances.get' permission for 'projects/berth-test'";
    for (fault, code, words, cure) in [
        (
            Fault::Refuse(ApiError::new(403, "forbidden", missing)),
            7,
            "compute.instances.get",
            "grant the node's service account compute.instances.get",
        ),
        (
            Fault::Refuse(ApiError::new(401, "authError", "Invalid Credentials")),
            7,
            "Invalid Credentials",
            "service account",
        ),
        (
            Fault::Refuse(ApiError::new(503, "backendError", "try again")),
            11,
            "try again",
            "passes by itself",
        ),
        // What the metadata server says about project or zone is not so.
        (
            Fault::Refuse(ApiError::new(
                404,
                "notFound",
                "The resource 'projects/berth-test/zones/us-central1-f/instances/a' was not found",
            )),
            7,
            "zones/us-central1-f/instances/a' was not found",
            "project, zone and name",
        ),
        (
            Fault::NotJson(502),
            11,
            "the answer is not JSON",
            "passes by itself",
        ),
        (Fault::Cut, 11, "instances.get of", "passes by itself"),
    ] {
        let which = words.len().to_string();
        let node = scene.node(&which).await;
        scene
            .cloud
            .faults(move |request| (request.call == "instances.get").then(|| fault.clone()));
        let pod = format!("web-{which}");
        scene.pod(&pod, &node.name, &[]).await;
        let answer = node.ask(scene.request("ADD", &pod)).await;
        let (found, text, remedy) = refusal_with_remedy(&answer);
        assert!(found == code && text.contains(words), "{found} {text}");
        assert!(remedy.contains(cure), "{text}: {remedy}");
        scene.cloud.faults(|_| None);
        node.add(&scene, &pod).await;
    }
    assert_eq!(scene.cloud.count(UPDATE), 6);
}

/// The definition itself refuses it: no such pool reaches an agent.
#[tokio::test(flavor = "multi_thread")]
async fn an_ipv6_pool() {
    let scene = Scene::new(20).await;
    let mut object = scene.object().await;
    object["metadata"] = json!({ "name": format!("{}-v6", scene.pool) });
    object["spec"]["cidr"] = json!("fd00::/64");
    let refused = scene.cluster.apply_object(object).await.unwrap_err();
    let text = format!("{refused:#}");
    assert!(
        text.contains("spec.cidr") && text.contains("fd00::/64"),
        "{text}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn no_pool_of_this_nodes_subnet() {
    let scene = Scene::new(20).await;
    let node = scene.node("a").await;
    scene.pod("web", &node.name, &[]).await;
    scene.delete_pool().await;
    let (code, text, remedy) = refused(&scene, &node).await;
    let missing = format!("IPPool {} does not exist", scene.pool);
    assert!(code == 7 && text.contains(&missing), "{code} {text}");
    assert!(remedy.contains("berth gcp provision"), "{remedy}");
    assert!(remedy.contains("ipam.ipPoolName"), "{remedy}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_metadata_server_is_away() {
    let scene = Scene::new(20).await;
    let away = |settings: &mut berth_gcp::front::Settings| {
        settings.metadata_host = Some("127.0.0.1:1".to_owned());
    };
    let node = scene.node_with("a", away).await;
    scene.pod("web", &node.name, &[]).await;
    let (code, text, remedy) = refused(&scene, &node).await;
    assert!(code == 11, "{code} {text}");
    assert!(text.contains("metadata server 127.0.0.1:1"), "{text}");
    assert!(remedy.contains("GCE_METADATA_HOST"), "{remedy}");
}
