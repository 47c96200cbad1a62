//! The ordinary end of a network: its definition is deleted after its last pod.

use std::time::{Duration, Instant};

use berth_api::berth::SliceCall;
use berth_api::whereabouts::NodeSlicePool;
use berth_testkit::Cluster;
use k8s_openapi::api::core::v1::Event;
use kube::api::ListParams;
use serde_json::json;

use crate::allocated::Given;
use crate::errors;
use crate::test_cluster::World;
use crate::test_node::{Machine, Site, until};
use crate::without_agent::call_node;

/// Grace periods, and pauses between periodic reads, that no test waits for.
const LONG: Duration = Duration::from_secs(3600);

/// Grace period and periodic looks are [`LONG`] here, so only the deletion itself can lead to the end. The one wait
/// that is left is the pause after a recall (10 s): the bound lies below it, and far enough above the work for a
/// machine that is busy with other tests.
const AT_ONCE: Duration = Duration::from_secs(5);

#[tokio::test(flavor = "multi_thread")]
async fn berth_15_20_a_nodeslicepool_is_deleted_at_once_when_no_pod_requests_its_network() {
    let cluster = Cluster::start().await.unwrap();
    let site = Site::of(&cluster).await;
    errors::watch();
    let world = World::start_resyncing(&site, LONG, LONG).await;
    let ipam = json!({ "range": "10.156.0.0/24", "network_name": "ends", "node_slice_size": "/26",
        "enable_overlapping_ranges": false });
    let (a, b) = (
        Machine::start(&site, "ends-a").await,
        Machine::start(&site, "ends-b").await,
    );
    let table = async || site.api::<NodeSlicePool>().get_opt("ends").await.unwrap();
    let pod = world.namespace();
    let mut rows = None;
    for round in 0..2 {
        world.define("ends", &ipam).await;
        let mut given = Given::default();
        for (machine, name) in [(&a, "pod-a"), (&b, "pod-b")] {
            given.first(machine, &world, name, &ipam).await;
            world.run_pod(name, &machine.node, "ends").await;
        }
        let status = table().await.unwrap().status;
        let now = serde_json::to_value(status).unwrap();
        // A network that is created again at once is cut as it was.
        assert_eq!(*rows.get_or_insert_with(|| now.clone()), now, "{round}");
        // While a pod requests it, it stays.
        assert_eq!(a.call_in(pod, "DEL", "pod-a", &ipam).await.exit, 0);
        world.delete_pod("pod-a").await;
        world.undefine("ends").await;
        until("the controller reports why it stays", async || {
            let found = table().await.ok_or("gone")?;
            let annotations = found.metadata.annotations.unwrap_or_default();
            let told = annotations.get("berth.dev/conditions").cloned();
            let told = told.unwrap_or_default();
            told.contains("pod-b").then_some(()).ok_or(told)
        })
        .await;
        world.define("ends", &ipam).await;
        assert_eq!(b.call_in(pod, "DEL", "pod-b", &ipam).await.exit, 0);
        world.delete_pod("pod-b").await;
        until("it is wanted again", async || {
            let found = table().await.ok_or("gone")?;
            let annotations = found.metadata.annotations.unwrap_or_default();
            let told = annotations.get("berth.dev/conditions").cloned();
            let told = told.unwrap_or_default();
            (!told.contains("pod-b")).then_some(()).ok_or(told)
        })
        .await;
        world.undefine("ends").await;
        let deleted = Instant::now();
        until(
            "no periodic read or grace period is waited for",
            async || {
                let found = table().await;
                found.is_none().then_some(()).ok_or(format!("{found:?}"))
            },
        )
        .await;
        let took = deleted.elapsed();
        // For docs/figures.md.
        eprintln!("the table was gone after {} ms", took.as_millis());
        assert!(took < AT_ONCE, "gone after {took:?}");
        // An agent that allocates before it notices would lose a slice with a live address, and report it.
        for machine in [&a, &b] {
            until("the agent has noticed", async || {
                let held = machine.slices_held("ends-10.156.0.0-24").await;
                (held == 0).then_some(()).ok_or(held.to_string())
            })
            .await;
        }
    }
    let errors = errors::mentioning(&["ends-a", "ends-b", "10.156.0."]);
    assert!(errors.is_empty(), "{errors:?}");
    let events: kube::Api<Event> = kube::Api::all(site.client.clone());
    let events = events.list(&ListParams::default()).await.unwrap();
    let warnings = events.into_iter().filter(|event| {
        let source = event.source.as_ref();
        let ours = source.and_then(|source| source.component.as_deref());
        ours.unwrap_or_default().starts_with("berth") && event.type_.as_deref() == Some("Warning")
    });
    let warnings: Vec<Event> = warnings.collect();
    assert!(warnings.is_empty(), "{warnings:?}");
    world.stop().await;
}

/// A pod still waits for an address of the network when its definition is deleted: the pool is deleted with the pod,
/// not a grace period later.
#[tokio::test(flavor = "multi_thread")]
async fn berth_15_20_a_pod_that_only_waits_holds_the_pool_until_it_is_gone() {
    let cluster = Cluster::start().await.unwrap();
    let site = Site::of(&cluster).await;
    let world = World::start_with(&site, LONG).await;
    let ipam = json!({ "range": "10.157.0.0/24", "network_name": "waits", "node_slice_size": "/26",
        "enable_overlapping_ranges": false });
    site.register("waits-a").await;
    // On a healthy kubelet, a pod without an interface has no address.
    world.ready("waits-a").await;
    world.define("waits", &ipam).await;
    let table = async || site.api::<NodeSlicePool>().get_opt("waits").await.unwrap();
    until("it is there", async || {
        table().await.map(|_| ()).ok_or("no table".to_owned())
    })
    .await;
    world.wait_pod("waiting", "waits-a", "waits").await;
    world.undefine("waits").await;
    // Long enough for a controller that misses the pod: it would delete the pool at once.
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(table().await.is_some(), "a pod asks for it");
    world.delete_pod("waiting").await;
    until("it is gone", async || {
        let found = table().await;
        found.is_none().then_some(()).ok_or(format!("{found:?}"))
    })
    .await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn berth_15_23_notifications_of_nodes_that_are_gone_are_deleted() {
    let site = Site::shared().await;
    site.register("called-there").await;
    for node in ["called-there", "called-nowhere"] {
        call_node(&site, node).await;
    }
    let world = World::start(&site).await;
    let calls = site.api::<SliceCall>();
    until("it is deleted", async || {
        let found = calls.get_opt("called-nowhere").await.unwrap();
        found.is_none().then_some(()).ok_or(format!("{found:?}"))
    })
    .await;
    assert!(calls.get_opt("called-there").await.unwrap().is_some());
    world.stop().await;
}
