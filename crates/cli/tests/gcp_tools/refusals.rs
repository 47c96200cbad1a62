//! Bad input to `berth gcp provision`: refused before the first step, with a message that says what would be right.

use berth_testcloud::{ApiError, Fault};
use berth_testkit::Cluster;
use serde_json::json;

use crate::scene::{Said, Scene, bare, entry, project};

/// Nothing was changed anywhere.
fn assert_untouched(scene: &Scene) {
    for call in ["internalRanges.create", "subnetworks.patch"] {
        assert_eq!(scene.cloud.count(call), 0, "{call}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_range_name_that_is_taken_is_refused() {
    let mut project = project("taken");
    project.add_secondary_range("us-central1", "taken", "live", "10.50.0.0/16");
    let scene = Scene::with("taken", project).await;
    for direction in [&["provision"][..], &["provision", "--undo"]] {
        let message = scene.berth(direction).await.failed(4);
        assert!(
            message.contains("'live' is 10.50.0.0/16") && message.contains("--range-name"),
            "{message}"
        );
    }
    assert_untouched(&scene);
    assert!(scene.pool().is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_free_block_nothing_is_left_half_done() {
    let mut project = project("full");
    project.add_secondary_range("us-central1", "full", "everything", "10.32.0.0/11");
    let scene = Scene::with("full", project).await;
    let message = scene
        .berth(&["provision", "--target-cidr=10.32.0.0/11"])
        .await;
    let message = message.failed(4);
    assert!(
        message.contains("no /16 could be reserved in 10.32.0.0/11")
            && message.contains("--target-cidr"),
        "{message}"
    );
    assert_eq!(scene.cloud.count("subnetworks.patch"), 0);
    assert!(scene.pool().is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_with_live_allocations_is_not_changed() {
    let scene = Scene::new("in-use").await;
    let held = json!({ "10.200.0.7": entry("p", "u", "node-a") });
    scene.put_pool("ippool-in-use", "10.200.0.0/16", held).await;
    let before = scene.pool().unwrap();
    let message = scene.berth(&["provision"]).await.failed(4);
    assert!(
        message.contains("ippool-in-use has cidr 10.200.0.0/16 and 1 allocations"),
        "{message}"
    );
    let message = scene.berth(&["provision", "--undo"]).await.failed(4);
    assert!(message.contains("delete their pods first"), "{message}");
    let message = scene
        .berth(&["provision", "--method=static"])
        .await
        .failed(4);
    assert!(message.contains("10.128.0.0/20"), "{message}");
    assert_untouched(&scene);
    assert_eq!(scene.pool().unwrap(), before);
    scene.delete_pool();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_permission_is_named() {
    for (call, permission) in [
        ("instances.get", "compute.instances.get"),
        ("subnetworks.get", "compute.subnetworks.get"),
        (
            "internalRanges.get",
            "networkconnectivity.internalRanges.get",
        ),
        (
            "internalRanges.create",
            "networkconnectivity.internalRanges.create",
        ),
        ("subnetworks.patch", "compute.subnetworks.update"),
        ("regionOperations.wait", "compute.regionOperations.get"),
    ] {
        let scene = Scene::new("denied").await;
        scene.cloud.faults(move |request| {
            let denied = || Fault::Refuse(ApiError::new(403, "forbidden", "The caller may not."));
            (request.call == call).then(denied)
        });
        let message = scene.berth(&["provision"]).await.failed(6);
        assert!(message.contains(permission), "{call}: {message}");
        assert!(scene.pool().is_none());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_metadata_server_that_is_away_or_another_is_named() {
    let scene = Scene::new("away").await;
    let mut command = scene.command(&["provision"]);
    command.env("GCE_METADATA_HOST", "127.0.0.1:1");
    let said = tokio::task::spawn_blocking(move || Said::of(command));
    let message = said.await.unwrap().failed(5);
    assert!(
        message.contains("metadata server 127.0.0.1:1") && message.contains("--subnet"),
        "{message}"
    );
    scene.cloud.faults(|request| {
        let token = request.call == "metadata" && request.path.ends_with("/token");
        token.then_some(Fault::NotJson(503))
    });
    let message = scene.berth(&["provision"]).await.failed(5);
    assert!(message.contains("metadata server"), "{message}");
    assert_untouched(&scene);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_token_is_said_to_be_refused() {
    let scene = Scene::new("refused").await;
    scene.cloud.faults(|request| {
        let wrong = || Fault::Refuse(ApiError::new(401, "authError", "Invalid Credentials"));
        (request.call != "metadata").then(wrong)
    });
    let message = scene.berth(&["provision"]).await.failed(6);
    assert!(message.contains("the token was refused"), "{message}");
    // Renewed once, not for ever.
    assert_eq!(scene.cloud.count("instances.get"), 2);
}

/// Without the definition the IPPool could not be created: known before anything is reserved.
#[tokio::test(flavor = "multi_thread")]
async fn without_the_definition_nothing_is_reserved() {
    let scene = Scene::new("undefined").await;
    let empty = Cluster::start().await.unwrap();
    let command = scene.command_on(&empty, &["provision"]);
    let said = tokio::task::spawn_blocking(move || Said::of(command));
    let message = said.await.unwrap().failed(6);
    assert!(message.contains("deploy/gcp/crds"), "{message}");
    assert_untouched(&scene);
}

#[test]
fn a_wrong_flag_is_refused_with_what_would_be_right() {
    for (flags, expected) in [
        (&["--prefix-length=30"][..], "8..=29"),
        (&["--range-name=Live"], "a letter first"),
        (&["--pool=A_b"], "a-z"),
        (&["--target-cidr=10.0.0.0"], "--target-cidr"),
        (&["--target-cidr=fd00::/8"], "--target-cidr"),
        (
            &["--target-cidr=10.0.0.0/24"],
            "smaller than --prefix-length 16",
        ),
        (&["--cidr=10.0.0.0/24"], "--method static"),
        (&["--subnet=nodes"], "projects/PROJECT/regions"),
        (&["--method=forwarding"], "secondary, static"),
    ] {
        let mut command = bare();
        command.args(["gcp", "provision"]).args(flags);
        let message = Said::of(command).failed(2);
        assert!(message.contains(expected), "{flags:?}: {message}");
    }
}
