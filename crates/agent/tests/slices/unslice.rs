//! Networks that stop being sliced by a controller, or start to be, while their pods run: with a real controller.

use berth_api::slices::NETWORKS;
use berth_api::whereabouts::{IPPool, NodeSlicePool};
use berth_testkit::Cluster;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::allocated::Given;
use crate::cni_call::without_size;
use crate::test_cluster::World;
use crate::test_node::{Machine, Site, quick, until};

#[tokio::test(flavor = "multi_thread")]
async fn addresses_of_slices_are_not_allocated_by_the_plain_pool() {
    let site = Site::shared().await;
    let world = World::start(&site).await;
    let (a, b) = (
        Machine::start(&site, "plain-a").await,
        Machine::start(&site, "plain-b").await,
    );
    let sliced = json!({ "range": "10.18.0.0/16", "ipRanges": [{ "range": "fd00:18::/64" }], "network_name": "eighteen",
        "node_slice_size": "/26", "enable_overlapping_ranges": false });
    let plain = without_size(&sliced);
    world.define("eighteen", &sliced).await;
    let pod = world.namespace();
    let mut given = Given::default();
    given.first(&a, &world, "one", &sliced).await;
    given.first(&b, &world, "two", &sliced).await;
    assert_eq!(given.all().len(), 4);
    // Another definition of the network, without a size.
    let (code, why) = b.try_add_in(pod, "other", &plain).await.unwrap_err();
    assert_eq!(code, 11, "{why}");
    world.run_pod("one", "plain-a", "eighteen").await;
    world.run_pod("two", "plain-b", "eighteen").await;

    world.define("eighteen", &plain).await;
    world.ready("plain-a").await;
    world.wait_pod("three", "plain-a", "eighteen").await;
    let (code, why) = a.try_add_in(pod, "three", &plain).await.unwrap_err();
    assert_eq!(code, 11, "{why}");
    for word in ["10.18.0.0/16", "NodeSlicePool eighteen", "node_slice_size"] {
        assert!(why.contains(word), "{why}");
    }
    // By the new definition too, addresses of slices are released into their slices.
    assert_eq!(b.call_in(pod, "DEL", "two", &plain).await.exit, 0);
    world.delete_pod("two").await;
    let table = async || site.api::<NodeSlicePool>().get_opt("eighteen").await;
    until("the controller reports which pods prevent it", async || {
        let found = table().await.unwrap().ok_or("gone")?;
        let mut annotations = found.metadata.annotations.unwrap_or_default();
        let conditions = annotations.remove("berth.dev/conditions");
        let conditions = conditions.unwrap_or_default();
        let told = conditions.contains(&format!("{pod}/one")) && !conditions.contains("three");
        told.then_some(()).ok_or(conditions)
    })
    .await;
    let (code, why) = b.try_add_in(pod, "four", &plain).await.unwrap_err();
    assert_eq!(code, 11, "{why}");

    // The last one ends: a waiting pod gets an address of the plain pool, of both ranges.
    assert_eq!(a.call_in(pod, "DEL", "one", &plain).await.exit, 0);
    world.delete_pod("one").await;
    let mut given = Given::default();
    given.first(&a, &world, "three", &plain).await;
    assert!(table().await.unwrap().is_none());
    given.first(&b, &world, "four", &plain).await;
    assert_eq!(given.all().len(), 4);
    let held = given.all().iter();
    let held = held.map(|(ip, name)| (ip.clone(), format!("{pod}/{name}")));
    site.shows("nothing but what is held is published", &held.collect())
        .await;
    // And sliced again: addresses of the plain pool are not allocated by slices.
    world.define("eighteen", &sliced).await;
    for n in 0..4 {
        let again = format!("again-{n}");
        given.first(&a, &world, &again, &sliced).await;
    }
    world.stop().await;
}

/// Their reservations keep the two apart: manifests that worked still work.
#[tokio::test(flavor = "multi_thread")]
async fn with_overlap_checks_the_plain_pool_allocates_beside_slices() {
    let site = Site::shared().await;
    let world = World::start(&site).await;
    let a = Machine::start(&site, "plain-a").await;
    let sliced =
        json!({ "range": "10.19.0.0/16", "network_name": "nineteen", "node_slice_size": "/26" });
    world.define("nineteen", &sliced).await;
    let mut given = Given::default();
    for n in 0..3 {
        let pod = format!("sliced-{n}");
        given.first(&a, &world, &pod, &sliced).await;
    }
    let plain = without_size(&sliced);
    world.define("nineteen", &plain).await;
    for n in 0..3 {
        let pod = format!("plain-{n}");
        given.add(&a, &world, &pod, &plain).await;
    }
    assert_eq!(given.all().len(), 6);
    world.stop().await;
}

/// Nodes claim slices by themselves, then a controller assigns them, then nodes claim them again.
#[tokio::test(flavor = "multi_thread")]
async fn from_claimed_slices_to_assigned_ones_and_back_nothing_is_allocated_twice() {
    let cluster = Cluster::start().await.unwrap();
    let site = Site::of(&cluster).await;
    let world = World::start(&site).await;
    let (a, b) = (
        Machine::start(&site, "node-a").await,
        Machine::start(&site, "node-b").await,
    );
    let ns = world.namespace();
    let claimed = json!({ "range": "10.20.0.0/25", "network_name": "twenty", "fast_ipam": true, "slice_size": "/28",
        "enable_overlapping_ranges": false });
    let assigned = json!({ "range": "10.20.0.0/25", "network_name": "twenty", "node_slice_size": "/26",
        "enable_overlapping_ranges": false });
    let mut given = Given::default();
    given
        .claim_and_assign(&world, "twenty", (&a, &claimed), (&b, &assigned))
        .await;
    // Back: a node without an assigned slice claims none while other nodes have theirs.
    world.run_pod("b", "node-b", "twenty").await;
    world.define("twenty", &claimed).await;
    let mut settings = quick();
    settings.donor_wait = std::time::Duration::from_millis(300);
    let c = Machine::start_with(&site, "node-c", settings).await;
    let (code, why) = c.try_add_in(ns, "late", &claimed).await.unwrap_err();
    assert_eq!(code, 11, "{why}");
    assert!(why.contains("NodeSlicePool twenty"), "{why}");
    world.stop().await;
}

/// Tables that whereabouts' controller made: no process would remove them, so they close nothing until Berth's
/// controller reconciles them.
#[tokio::test(flavor = "multi_thread")]
async fn a_table_that_berth_takes_over_closes_the_plain_pool() {
    let site = Site::shared().await;
    let slices = [("taken-over", "10.70.0.0/26"), ("", "10.70.0.64/26")];
    site.assign("seventy", "10.70.0.0/24", "/26", &slices).await;
    let machine = Machine::start(&site, "taken-over").await;
    let sliced = json!({ "range": "10.70.0.0/24", "network_name": "seventy", "node_slice_size": "/26",
        "enable_overlapping_ranges": false });
    let plain = without_size(&sliced);
    let given = machine.add("one", &sliced).await;
    // What the plain pool allocates beside it is not checked, as with whereabouts alone.
    let pools = site.api::<IPPool>();
    let closed = async || {
        let pool = pools.get_opt("seventy-10.70.0.0-24").await.unwrap();
        let marks = pool.and_then(|pool| pool.metadata.annotations);
        let marks = marks.unwrap_or_default();
        ["berth.dev/assigned", "berth.dev/unreserved"]
            .iter()
            .all(|mark| marks.contains_key(*mark))
    };
    assert!(!closed().await);
    let taken = json!({ "metadata": { "annotations": { NETWORKS: r#"["ns/seventy"]"# } } });
    let tables = site.api::<NodeSlicePool>();
    let params = PatchParams::default();
    tables
        .patch("seventy", &params, &Patch::Merge(taken))
        .await
        .unwrap();
    until("the plain pool is closed", async || {
        closed()
            .await
            .then_some(())
            .ok_or_else(|| "it is open".to_owned())
    })
    .await;
    let (code, why) = machine.try_add("two", &plain).await.unwrap_err();
    assert_eq!(code, 11, "{why}");
    assert_ne!(machine.add("three", &sliced).await, given);
}
