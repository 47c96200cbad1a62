//! Slices that allocated without reservations, and another mode that relies on them: overlap checks are switched on
//! together with the mode, or off while the network is in use.

use berth_api::whereabouts::{IPPool, NodeSlicePool};
use berth_testkit::{Cluster, Part};
use serde_json::{Value, json};

use crate::allocated::Given;
use crate::cni_call::without_size;
use crate::test_cluster::World;
use crate::test_node::{Machine, Site};

fn with_checks(ipam: &Value, on: bool) -> Value {
    let mut ipam = ipam.clone();
    ipam["enable_overlapping_ranges"] = json!(on);
    ipam
}

async fn refused(machine: &Machine, world: &World<'_>, pod: &str, ipam: &Value) -> String {
    let given = machine.try_add_in(world.namespace(), pod, ipam).await;
    let (code, why) = given.unwrap_err();
    assert_eq!(code, 11, "{why}");
    why
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plain_pool_with_checks_waits_for_slices_that_allocated_without() {
    let site = Site::shared().await;
    let world = World::start(&site).await;
    let a = Machine::start(&site, "unreserved-a").await;
    let sliced = json!({ "range": "10.61.0.0/16", "network_name": "sixty-one", "node_slice_size": "/26",
        "enable_overlapping_ranges": false });
    let plain = with_checks(&without_size(&sliced), true);
    world.define("sixty-one", &sliced).await;
    let mut given = Given::default();
    given.first(&a, &world, "one", &sliced).await;
    world.run_pod("one", "unreserved-a", "sixty-one").await;
    world.define("sixty-one", &plain).await;
    world.ready("unreserved-a").await;
    let why = refused(&a, &world, "two", &plain).await;
    for word in ["10.61.0.0/16", "NodeSlicePool sixty-one", "node_slice_size"] {
        assert!(why.contains(word), "{why}");
    }
    // Sliced again, with checks: what was allocated without them is still not allocated again.
    let checked = with_checks(&sliced, true);
    world.define("sixty-one", &checked).await;
    given.add(&a, &world, "three", &checked).await;
    refused(&a, &world, "two", &plain).await;

    world.define("sixty-one", &plain).await;
    for pod in ["one", "three"] {
        let freed = a.call_in(world.namespace(), "DEL", pod, &plain).await;
        assert_eq!(freed.exit, 0);
    }
    world.delete_pod("one").await;
    let mut given = Given::default();
    given.first(&a, &world, "two", &plain).await;
    let table = site.api::<NodeSlicePool>().get_opt("sixty-one").await;
    assert!(table.unwrap().is_none());
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn assigned_slices_with_checks_wait_for_claimed_ones_that_allocated_without() {
    let cluster = Cluster::start().await.unwrap();
    let site = Site::of(&cluster).await;
    let world = World::start(&site).await;
    let (a, b) = (
        Machine::start(&site, "node-a").await,
        Machine::start(&site, "node-b").await,
    );
    let claimed = json!({ "range": "10.62.0.0/25", "network_name": "sixty-two", "fast_ipam": true, "slice_size": "/28",
        "enable_overlapping_ranges": false });
    let assigned =
        json!({ "range": "10.62.0.0/25", "network_name": "sixty-two", "node_slice_size": "/26" });
    let mut given = Given::default();
    given
        .claim_and_assign(&world, "sixty-two", (&a, &claimed), (&b, &assigned))
        .await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_claim_nothing_with_checks_where_assigned_slices_allocated_without() {
    let cluster = Cluster::start().await.unwrap();
    let site = Site::of(&cluster).await;
    let world = World::start(&site).await;
    let b = Machine::start(&site, "node-b").await;
    let assigned = json!({ "range": "10.63.0.0/25", "network_name": "sixty-three", "node_slice_size": "/26",
        "enable_overlapping_ranges": false });
    let claimed = json!({ "range": "10.63.0.0/25", "network_name": "sixty-three", "fast_ipam": true, "slice_size": "/28" });
    world.define("sixty-three", &assigned).await;
    let mut given = Given::default();
    given.first(&b, &world, "b", &assigned).await;
    world.run_pod("b", "node-b", "sixty-three").await;
    world.define("sixty-three", &claimed).await;
    let c = Machine::start(&site, "node-c").await;
    let why = refused(&c, &world, "late", &claimed).await;
    assert!(why.contains("NodeSlicePool sixty-three"), "{why}");
    // If every address has a reservation, no mode waits.
    let both = json!({ "range": "10.64.0.0/25", "network_name": "sixty-four" });
    let (mut assigned, mut claimed) = (both.clone(), both);
    assigned["node_slice_size"] = json!("/26");
    claimed["fast_ipam"] = json!(true);
    world.define("sixty-four", &assigned).await;
    let mut given = Given::default();
    given.first(&b, &world, "b4", &assigned).await;
    world.run_pod("b4", "node-b", "sixty-four").await;
    world.define("sixty-four", &claimed).await;
    given.fill(&c, &world, "c4", &claimed).await;
    assert!(given.all().len() > 10, "{:?}", given.all());
    // Without them, one of the two does.
    let why = refused(&c, &world, "late", &with_checks(&claimed, false)).await;
    assert!(why.contains("NodeSlicePool sixty-four"), "{why}");
    world.stop().await;
}

/// Checks are switched off while slices and the plain pool allocate side by side, each by its reservations.
#[tokio::test(flavor = "multi_thread")]
async fn assigned_slices_allocate_without_checks_after_the_plain_pool_is_closed() {
    let cluster = Cluster::start().await.unwrap();
    let site = Site::of(&cluster).await;
    let world = World::start(&site).await;
    let mut a = Machine::start(&site, "node-a").await;
    let sliced =
        json!({ "range": "10.65.0.0/16", "network_name": "sixty-five", "node_slice_size": "/26" });
    let plain = without_size(&sliced);
    let unchecked = with_checks(&sliced, false);
    world.define("sixty-five", &sliced).await;
    let mut given = Given::default();
    given.first(&a, &world, "sliced-0", &sliced).await;
    for n in 1..4 {
        given.add(&a, &world, &format!("plain-{n}"), &plain).await;
        given.add(&a, &world, &format!("sliced-{n}"), &sliced).await;
    }
    world.define("sixty-five", &unchecked).await;
    for n in 0..6 {
        let pod = format!("unchecked-{n}");
        given.add(&a, &world, &pod, &unchecked).await;
    }
    refused(&a, &world, "late", &plain).await;
    // That is known without the API server, by the next process too.
    a.stop().await;
    a.run().await;
    given.add(&a, &world, "again", &unchecked).await;
    cluster.kill(Part::ApiServer).unwrap();
    given.add(&a, &world, "away", &unchecked).await;
    a.stop().await;
    a.run().await;
    given.add(&a, &world, "away-again", &unchecked).await;
    cluster.restart(Part::ApiServer).await.unwrap();
    world.stop().await;
}

/// The same for slices that nodes claim: they exclude the plain pool, but may coexist with assigned slices.
#[tokio::test(flavor = "multi_thread")]
async fn claimed_slices_allocate_without_checks_after_the_range_announces_it() {
    let cluster = Cluster::start().await.unwrap();
    let site = Site::of(&cluster).await;
    let world = World::start(&site).await;
    let mut a = Machine::start(&site, "node-a").await;
    let b = Machine::start(&site, "node-b").await;
    let claimed = json!({ "range": "10.66.0.0/25", "network_name": "sixty-six", "fast_ipam": true, "slice_size": "/28" });
    let assigned =
        json!({ "range": "10.66.0.0/25", "network_name": "sixty-six", "node_slice_size": "/26" });
    let unchecked = with_checks(&claimed, false);
    let said = async || {
        let plain = site.api::<IPPool>().get("sixty-six-10.66.0.0-25").await;
        let mut annotations = plain.unwrap().metadata.annotations.unwrap();
        annotations.remove("berth.dev/sliced").unwrap()
    };
    let mut given = Given::default();
    given.add(&a, &world, "checked", &claimed).await;
    assert!(!said().await.contains("unreserved"));
    cluster.kill(Part::ApiServer).unwrap();
    // A node does nothing that the range does not announce yet.
    refused(&a, &world, "unchecked", &unchecked).await;
    cluster.restart(Part::ApiServer).await.unwrap();
    given.first(&a, &world, "unchecked", &unchecked).await;
    assert!(said().await.contains("unreserved"));
    cluster.kill(Part::ApiServer).unwrap();
    a.stop().await;
    a.run().await;
    given.add(&a, &world, "away", &unchecked).await;
    cluster.restart(Part::ApiServer).await.unwrap();
    for n in 0..70 {
        let pod = format!("unchecked-{n}");
        given.first(&a, &world, &pod, &unchecked).await;
    }
    world.define("sixty-six", &assigned).await;
    given.first(&b, &world, "b", &assigned).await;
    given.fill(&b, &world, "assigned", &assigned).await;
    world.stop().await;
}
