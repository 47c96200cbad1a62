//! Every request that Berth's client can make is one that Google's own discovery files describe.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeSet;
use std::time::Duration;

use berth_gcp::cloud::{
    AliasRange, Cloud, Endpoints, Metadata, RangeRequest, RequestId, SecondaryRange, TokenSource,
};
use berth_parts::Parts;
use berth_testcloud::{AliasRange as Seen, Cloud as LocalCloud, Discovery, Project};

const ZONE: &str = "us-central1-a";
const REGION: &str = "us-central1";

#[tokio::test]
async fn every_request_is_one_that_google_describes() {
    let mut project = Project::new("berth-test");
    project.operation_time = Duration::from_millis(10);
    project.add_subnetwork(REGION, "nodes", "10.128.0.0/20");
    project.add_secondary_range(REGION, "nodes", "pods", "10.4.0.0/14");
    let own = vec![Seen::of("pods", "10.4.0.0/24")];
    project.add_instance(ZONE, "node-a", (REGION, "nodes"), own);
    let local = LocalCloud::start(project).await.unwrap();
    let host = local.metadata(ZONE, "node-a").await.unwrap();
    let endpoint = local.endpoint();
    let endpoints = Endpoints::new(Some(&endpoint), Some(&endpoint)).unwrap();
    let source = TokenSource::Metadata(Metadata::new(Some(&host)));
    let cloud = Cloud::new("berth-test", endpoints, source, Duration::from_secs(10));
    call_everything(&cloud).await;

    let [compute, ranges] = Parts::find().unwrap().google_apis();
    let discovery = Discovery::load(&[&compute, &ranges]).unwrap();
    let mut called = BTreeSet::new();
    let requests = local.requests();
    for request in requests.iter().filter(|request| request.call != "metadata") {
        let id = discovery.check(request).unwrap();
        // The local cloud took it for the same method.
        assert!(id.ends_with(&request.call), "{id}: {}", request.call);
        called.insert(request.call.clone());
    }
    let expected = [
        "addresses.delete",
        "addresses.get",
        "addresses.insert",
        "instances.get",
        "instances.updateNetworkInterface",
        "internalRanges.create",
        "internalRanges.delete",
        "internalRanges.get",
        "operations.get",
        "regionOperations.wait",
        "subnetworks.get",
        "subnetworks.patch",
        "zoneOperations.wait",
    ];
    assert_eq!(called.iter().collect::<Vec<_>>(), expected);
}

async fn call_everything(cloud: &Cloud) {
    let id = RequestId::random;
    let nic = cloud.instance(ZONE, "node-a").await.unwrap();
    let nic = nic.nic("nic0").unwrap().clone();
    let place = (ZONE, "node-a");
    let mut aliases = nic.aliases.clone();
    aliases.push(AliasRange::of([10, 4, 200, 7].into(), Some("pods")));
    let begun = cloud
        .set_aliases(place, ("nic0", &nic.fingerprint), &aliases, &id())
        .await;
    cloud.wait(&begun.unwrap()).await.unwrap();
    // An empty list, really sent.
    let nic = cloud.instance(ZONE, "node-a").await.unwrap();
    let nic = nic.nic("nic0").unwrap().clone();
    let begun = cloud
        .set_aliases(place, ("nic0", &nic.fingerprint), &[], &id())
        .await;
    cloud.wait(&begun.unwrap()).await.unwrap();

    let wanted = RangeRequest {
        id: "live".to_owned(),
        network: "projects/berth-test/global/networks/default".to_owned(),
        prefix_length: 16,
        within: vec!["10.0.0.0/8".to_owned()],
        excluded: vec!["10.0.0.0/16".to_owned()],
    };
    let range = cloud.reserve_range(&wanted, &id()).await.unwrap();
    let subnet = cloud.subnetwork(REGION, "nodes").await.unwrap();
    let before = subnet.secondary.clone();
    let mut ranges = before.clone();
    ranges.push(SecondaryRange {
        name: "live".to_owned(),
        cidr: range.cidr.clone(),
        internal_range: Some(range.name.clone()),
        other: serde_json::Map::new(),
    });
    let begun = cloud.set_secondary_ranges(&subnet, &ranges, &id()).await;
    cloud.wait(&begun.unwrap()).await.unwrap();
    let subnet = cloud.subnetwork(REGION, "nodes").await.unwrap();
    let begun = cloud.set_secondary_ranges(&subnet, &before, &id()).await;
    cloud.wait(&begun.unwrap()).await.unwrap();
    cloud.release_range("live", &id()).await.unwrap();

    let name = "berth-10-128-0-77";
    let path = "projects/berth-test/regions/us-central1/subnetworks/nodes";
    let address = (name, [10, 128, 0, 77].into());
    let begun = cloud.reserve_address((REGION, path), address, &id()).await;
    cloud.wait(&begun.unwrap()).await.unwrap();
    cloud.address(REGION, name).await.unwrap();
    let begun = cloud.release_address(REGION, name, &id()).await;
    cloud.wait(&begun.unwrap()).await.unwrap();
}
