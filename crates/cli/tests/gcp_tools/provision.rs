//! What `berth gcp provision` makes, that it makes it once, and that a run that was killed anywhere is resumed.

use std::sync::mpsc;
use std::time::Duration;

use berth_testcloud::{Fault, documented, permissions_of};
use serde_json::json;

use crate::scene::Scene;

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_is_provisioned_once_and_undone_in_reverse() {
    let scene = Scene::new("provision").await;
    let before = scene.ranges();
    let planned = scene.berth(&["provision", "--dry-run"]).await.succeeded();
    let steps: Vec<String> = planned.lines().map(words).collect();
    let expected = [
        "STEP STATE",
        "reserve internal range live (/16) planned",
        "add secondary range live: the /16 that Google chooses planned",
        "create IPPool ippool-provision: the /16 that Google chooses planned",
    ];
    assert_eq!(steps, expected);
    assert_eq!(scene.ranges(), before, "a dry run changes nothing");
    assert!(scene.pool().is_none());

    let said = scene.berth(&["provision", "--output=json"]).await;
    assert_eq!(said.json().as_array().unwrap().len(), 3, "{said}");
    let ranges = scene.ranges();
    assert_eq!(ranges[..2], before[..], "every other range is untouched");
    let live = &ranges[2].1;
    let link = live["reservedInternalRange"].as_str().unwrap();
    assert!(link.ends_with("/internalRanges/live"), "{link}");
    let pool = scene.pool().unwrap();
    assert_eq!(pool["spec"]["cidr"], live["ipCidrRange"]);
    assert_eq!(pool["spec"]["subnet"], scene.subnet_path());
    assert_eq!(pool["spec"]["secondaryRangeName"], "live");
    let counters = json!({ "capacity": 65534, "allocated": 0, "available": 65534 });
    assert_eq!(pool["status"], counters);

    let again = scene.berth(&["provision"]).await;
    assert!(again.stderr.contains("nothing is left to do"), "{again}");
    assert_eq!(again.succeeded(), "none\n");
    assert_eq!(scene.cloud.count("internalRanges.create"), 1);
    assert_eq!(scene.cloud.count("subnetworks.patch"), 1);
    assert_eq!(scene.pool().unwrap(), pool, "not written again");

    let planned = scene.berth(&["provision", "--undo", "--dry-run"]).await;
    assert!(
        planned
            .succeeded()
            .contains("delete IPPool ippool-provision")
    );
    assert!(scene.pool().is_some());
    let said = scene.berth(&["provision", "--undo", "--output=json"]).await;
    let steps = said.json();
    assert_eq!(steps[0]["step"], "delete IPPool ippool-provision", "{said}");
    assert_eq!(steps[1]["step"], "remove secondary range live");
    assert_eq!(steps[2]["step"], "release internal range live");
    assert_eq!(scene.ranges(), before);
    assert!(scene.pool().is_none());
    let again = scene.berth(&["provision", "--undo"]).await;
    assert_eq!(again.succeeded(), "none\n");
    scene.assert_described();
    // That was every kind of request that it makes: docs/gcp.md names these permissions and no others.
    let documented = documented(
        include_str!("../../../../docs/gcp.md"),
        "The provisioner, on the subnet's project",
    );
    assert_eq!(permissions_of(&scene.cloud.requests()), documented);
}

/// A line without the table's padding.
fn words(line: &str) -> String {
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Kills the command when its `nth` request to the cloud arrives; false if it ended before.
async fn kill_at(scene: &Scene, arguments: &[&str], nth: usize) -> bool {
    let (arrived, waiting) = mpsc::channel();
    let mut seen = 0;
    scene.cloud.faults(move |request| {
        if request.call == "metadata" {
            return None;
        }
        seen += 1;
        (seen == nth).then(|| {
            arrived.send(()).unwrap();
            // Longer than the command lives: it is not carried out before the kill.
            Fault::Delay(Duration::from_secs(3600))
        })
    });
    let mut child = scene.start(arguments);
    let killed = tokio::task::spawn_blocking(move || {
        loop {
            if waiting.recv_timeout(Duration::from_millis(10)).is_ok() {
                child.kill().unwrap();
                child.wait().unwrap();
                return true;
            }
            if let Some(status) = child.try_wait().unwrap() {
                assert!(status.success());
                return false;
            }
        }
    });
    let killed = killed.await.unwrap();
    scene.cloud.faults(|_| None);
    killed
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_is_killed_at_any_request_is_resumed() {
    let scene = Scene::new("killed").await;
    let mut nth = 1;
    loop {
        let killed = kill_at(&scene, &["provision"], nth).await;
        scene.berth(&["provision"]).await.succeeded();
        assert_eq!(scene.range_names(), ["pods", "services", "live"]);
        let pool = scene.pool().unwrap();
        assert_eq!(pool["spec"]["cidr"], scene.ranges()[2].1["ipCidrRange"]);
        if !killed {
            break;
        }
        // And the way back, killed at the same place.
        kill_at(&scene, &["provision", "--undo"], nth).await;
        scene.berth(&["provision", "--undo"]).await.succeeded();
        assert_eq!(scene.range_names(), ["pods", "services"]);
        assert!(scene.pool().is_none());
        nth += 1;
    }
    assert!(nth > 10, "every call of the run was interrupted: {nth}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_static_pool_is_the_ip_pool_alone() {
    let scene = Scene::new("static").await;
    let cidr = ["provision", "--method=static", "--cidr=10.128.8.0/21"];
    scene.berth(&cidr).await.succeeded();
    let pool = scene.pool().unwrap();
    assert_eq!(pool["spec"]["cidr"], "10.128.8.0/21");
    assert_eq!(pool["spec"]["secondaryRangeName"], "", "the primary range");
    assert_eq!(pool["status"]["capacity"], 2046);
    assert_eq!(scene.cloud.count("internalRanges.get"), 0);
    assert_eq!(scene.cloud.count("subnetworks.patch"), 0);
    assert_eq!(scene.berth(&cidr).await.succeeded(), "none\n");
    let undo = ["provision", "--method=static", "--undo"];
    scene.berth(&undo).await.succeeded();
    assert!(scene.pool().is_none());
    // Without a part: all of the primary range.
    scene.berth(&cidr[..2]).await.succeeded();
    assert_eq!(scene.pool().unwrap()["spec"]["cidr"], "10.128.0.0/20");
    scene.berth(&undo).await.succeeded();
}

#[tokio::test(flavor = "multi_thread")]
async fn every_setting_reaches_google() {
    let scene = Scene::new("settings").await;
    let said = scene.berth(&[
        "provision",
        "--range-name=moving",
        "--prefix-length=20",
        "--target-cidr=10.64.0.0/12",
        "--exclude-cidr=10.64.0.0/16",
        "--pool=pods-that-move",
    ]);
    said.await.succeeded();
    let create = scene.cloud.requests();
    let create = create
        .iter()
        .find(|request| request.call == "internalRanges.create")
        .unwrap();
    assert_eq!(create.body["targetCidrRange"], json!(["10.64.0.0/12"]));
    assert_eq!(create.body["excludeCidrRanges"], json!(["10.64.0.0/16"]));
    assert_eq!(scene.ranges()[2].1["ipCidrRange"], "10.65.0.0/20");
    let get = ["get", "ipp", "pods-that-move", "--output=jsonpath={.spec}"];
    let spec = String::from_utf8(scene.cluster.kubectl(&get).unwrap().stdout).unwrap();
    assert!(
        spec.contains("10.65.0.0/20") && spec.contains("moving"),
        "{spec}"
    );
    let undo = [
        "provision",
        "--undo",
        "--range-name=moving",
        "--pool=pods-that-move",
    ];
    scene.berth(&undo).await.succeeded();
}

/// Upstream overwrites labels, annotations and the cidr; here an unused pool is updated and keeps what is not Berth's.
#[tokio::test(flavor = "multi_thread")]
async fn an_unused_pool_of_other_addresses_is_updated() {
    let scene = Scene::new("updated").await;
    scene
        .put_pool("ippool-updated", "10.200.0.0/16", json!({}))
        .await;
    scene.berth(&["provision"]).await.succeeded();
    let pool = scene.pool().unwrap();
    assert_eq!(pool["metadata"]["labels"]["team"], "network");
    assert_eq!(pool["spec"]["cidr"], scene.ranges()[2].1["ipCidrRange"]);
    scene.berth(&["provision", "--undo"]).await.succeeded();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subnet_that_is_named_is_not_looked_for() {
    let scene = Scene::new("outside").await;
    let path = scene.subnet_path();
    let named = ["provision", "--dry-run", "--subnet", &path];
    scene.berth(&named).await.succeeded();
    assert_eq!(scene.cloud.count("instances.get"), 0);
    let asked = scene.cloud.requests();
    let mut asked = asked.iter().filter(|request| request.call == "metadata");
    assert!(asked.all(|request| request.path.ends_with("/token")));
}
