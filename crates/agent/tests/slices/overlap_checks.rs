//! Slices with overlap checks on: the reservation is the claim, for both families, with and without the API server.

use std::collections::BTreeSet;

use berth_api::whereabouts::{IPPool, OverlappingRangeIPReservation};
use berth_testkit::{Cluster, Part};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, ListParams, PostParams};
use serde_json::json;

use crate::test_node::{Machine, Site, until};

async fn reservations(site: &Site) -> BTreeSet<(String, String)> {
    let list = site
        .api::<OverlappingRangeIPReservation>()
        .list(&ListParams::default())
        .await
        .unwrap();
    let one = |held: OverlappingRangeIPReservation| (held.metadata.name.unwrap(), held.spec.podref);
    list.into_iter().map(one).collect()
}

fn set(pairs: &[(&str, &str)]) -> BTreeSet<(String, String)> {
    let one = |(name, pod): &(&str, &str)| ((*name).to_owned(), (*pod).to_owned());
    pairs.iter().map(one).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn both_families_are_reserved_and_an_address_of_another_network_is_skipped() {
    let site = Site::shared().await;
    let machine = Machine::start(&site, "both").await;
    // Whichever slice the node gets, its first two addresses are another network's.
    let ipam = json!({ "range": "10.17.0.0/28", "fast_ipam": true, "slice_size": "/28",
        "ipRanges": [{ "range": "fd00:17::/124" }] });
    for (name, pod) in [("10.17.0.1", "ns/foreign"), ("fd00-17--1", "ns/foreign")] {
        site.create::<OverlappingRangeIPReservation>(json!({
            "apiVersion": "whereabouts.cni.cncf.io/v1alpha1", "kind": "OverlappingRangeIPReservation",
            "metadata": { "name": name }, "spec": { "podref": pod, "ifname": "net1" },
        }))
        .await;
    }
    let given = machine.try_add("a", &ipam).await.unwrap();
    assert_eq!(given, ["10.17.0.2/28", "fd00:17::2/124"]);
    assert_eq!(machine.try_add("a", &ipam).await.unwrap(), given);
    let both = set(&[
        ("10.17.0.1", "ns/foreign"),
        ("10.17.0.2", "ns/a"),
        ("fd00-17--1", "ns/foreign"),
        ("fd00-17--2", "ns/a"),
    ]);
    assert_eq!(reservations(&site).await, both);
    until("published", async || {
        let now = site.published().await;
        let own = |address: &str| now.get(address).map(String::as_str) == Some("ns/a");
        (own("10.17.0.2") && own("fd00:17::2"))
            .then_some(())
            .ok_or(format!("{now:?}"))
    })
    .await;
    machine.del("a", &ipam).await;
    let foreign = set(&[("10.17.0.1", "ns/foreign"), ("fd00-17--1", "ns/foreign")]);
    assert_eq!(reservations(&site).await, foreign);
}

#[tokio::test(flavor = "multi_thread")]
async fn elastic_slices_without_the_api_server_report_that_the_check_can_not_be_made() {
    let cluster = Cluster::start().await.unwrap();
    let site = Site::of(&cluster).await;
    let proved = json!({
        "metadata": { "name": "berth-networks" },
        "data": { "disjoint.json": r#"{"10.18.0.0-24":"10.18.0.0/24"}"# },
    });
    let maps = site.api::<ConfigMap>();
    let proved = serde_json::from_value(proved).unwrap();
    maps.create(&PostParams::default(), &proved).await.unwrap();
    let mut machine = Machine::start(&site, "checked").await;
    let checked = json!({ "range": "10.18.0.0/24", "fast_ipam": true });
    let later = json!({ "range": "10.18.0.0/24", "fast_ipam": true, "reserve_later": true });
    let unproved = json!({ "range": "10.19.0.0/24", "fast_ipam": true, "reserve_later": true });
    let first = machine.add("first", &later).await;
    machine.add("second", &unproved).await;
    let pool = site.api::<IPPool>().get("10.18.0.0-24").await.unwrap();
    let mark = &pool.metadata.annotations.unwrap()["berth.dev/sliced"];
    assert!(
        mark.contains(r#""unreserved":true"#),
        "a reservation may be late, and others have to know: {mark}"
    );
    // Killed, not paused: a request that waits in a server which goes on would be carried out after all, and leave the
    // refused pod's reservation on the address that the other gets, until a collector finds it.
    cluster.kill(Part::ApiServer).unwrap();
    for ipam in [&checked, &unproved] {
        let (code, why) = machine.try_add("refused", ipam).await.unwrap_err();
        assert_eq!(code, 11, "{why}");
        assert!(why.contains("overlap"), "{why}");
    }
    // The proof is in the node's file, with the slice.
    machine.stop().await;
    machine.run().await;
    let given = machine.add("later", &later).await;
    assert_ne!(given, first);
    cluster.restart(Part::ApiServer).await.unwrap();
    let name = given.split('/').next().unwrap();
    until("reserved after all", async || {
        let now = reservations(&site).await;
        now.contains(&(name.to_owned(), "ns/later".to_owned()))
            .then_some(())
            .ok_or(format!("{now:?}"))
    })
    .await;
    // A withdrawn proof no longer counts: the watch reports that.
    maps.delete("berth-networks", &DeleteParams::default())
        .await
        .unwrap();
    machine.del("later", &later).await;
    until("the reservation goes with its pod", async || {
        let now = reservations(&site).await;
        (!now.iter().any(|(_, pod)| pod == "ns/later"))
            .then_some(())
            .ok_or(format!("{now:?}"))
    })
    .await;
}
