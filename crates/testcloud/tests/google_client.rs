//! Google's own Go client passes its scenarios on the local cloud: what it accepts as Google Cloud, Berth's client
//! may accept too.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::process::Command;
use std::time::Duration;

use berth_parts::Parts;
use berth_testcloud::{AliasRange, Cloud, Discovery, Project};

const REGION: &str = "us-central1";
const ZONE: &str = "us-central1-a";

#[tokio::test(flavor = "multi_thread")]
async fn googles_own_client_passes_its_scenarios() {
    let mut project = Project::new("berth-test");
    project.operation_time = Duration::from_millis(30);
    project.add_subnetwork(REGION, "nodes", "10.128.0.0/20");
    project.add_secondary_range(REGION, "nodes", "pods", "10.4.0.0/14");
    let own = vec![AliasRange::of("pods", "10.4.0.0/24")];
    project.add_instance(ZONE, "node-a", (REGION, "nodes"), own);
    let cloud = Cloud::start(project).await.unwrap();
    let parts = Parts::find().unwrap();
    let mut command = Command::new(parts.google_client());
    command
        .env_clear()
        .arg(cloud.endpoint())
        .arg(cloud.token())
        .args(["berth-test", REGION, "nodes", ZONE, "node-a"]);
    let output = tokio::task::spawn_blocking(move || command.output().unwrap());
    let output = output.await.unwrap();
    let output_text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{output_text}");
    let passed = String::from_utf8(output.stdout).unwrap();
    let expected = [
        "instances",
        "conflicts",
        "empty list",
        "repeats",
        "addresses",
        "ranges",
    ];
    let expected: Vec<String> = expected.iter().map(|name| format!("ok {name}")).collect();
    assert_eq!(passed.lines().collect::<Vec<_>>(), expected);
    // The server's name of each request is the one in Google's description.
    let [compute, ranges] = parts.google_apis();
    let discovery = Discovery::load(&[&compute, &ranges]).unwrap();
    for mut request in cloud.requests() {
        // Of Google's own client: how the answer shall be written.
        request
            .query
            .retain(|(name, _)| name != "alt" && name != "prettyPrint");
        let id = discovery.check(&request).unwrap();
        assert!(id.ends_with(&request.call), "{id}: {}", request.call);
    }
    let aliases = cloud.project(|project| project.aliases(ZONE, "node-a"));
    assert_eq!(aliases.unwrap(), [AliasRange::of("pods", "10.4.0.0/24")]);
}
