//! Nodes that are gone, or only reported as gone, and return with what they had (I8): a real controller reclaims
//! their slices.

use std::collections::BTreeMap;
use std::pin::pin;
use std::time::Duration;

use berth_api::whereabouts::IPPool;
use berth_testkit::Cluster;
use futures::StreamExt;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, DeleteParams, ListParams, WatchEvent, WatchParams};
use serde_json::{Value, json};

use crate::cni_call::{bare, fast_cut};
use crate::test_cluster::World;
use crate::test_node::{Machine, Site, quick, until};

const TIMEOUT: Duration = Duration::from_secs(180);

async fn delete_node(site: &Site, node: &str) {
    let nodes: Api<Node> = Api::all(site.client.clone());
    nodes.delete(node, &DeleteParams::default()).await.unwrap();
}

/// An address, as soon as the node has a slice.
async fn given(machine: &Machine, pod: &str, ipam: &Value) -> String {
    until("an address is allocated", async || {
        let given = machine.try_add(pod, ipam).await;
        given
            .map(|given| bare(&given[0]))
            .map_err(|refused| format!("{refused:?}"))
    })
    .await
}

/// A node returned under its name between the controller's read and the cleanup, which freed what the node had
/// allocated meanwhile. Here a Node is deleted whose agent keeps running, and its kubelet registers it again after
/// the controller's read: the agent has noticed the recall by then, and continues after it has written its claim.
#[tokio::test(flavor = "multi_thread")]
async fn calico_3589_6244_a_claim_is_recalled_before_it_is_taken_from_a_running_agent() {
    let site = Site::shared().await;
    // The pause after a recall is half of it.
    let world = World::start_with(&site, Duration::from_secs(8)).await;
    let whole = "10.40.0.0/28";
    let ipam = fast_cut(whole, "/28");
    world.define("forty", &ipam).await;
    let machine = Machine::start(&site, "deleted-alive").await;
    machine.add("before", &ipam).await;
    machine.del("before", &ipam).await;
    let claims = site.claim_api();
    let claim = async || claims.get_opt("10.40.0.0-28").await.unwrap();
    let version = claim().await.unwrap().metadata.resource_version.unwrap();
    let only = WatchParams::default().fields("metadata.name=10.40.0.0-28");
    // A watch shows every state in order: however slow this machine is, the recall is noticed.
    let mut states = pin!(claims.watch(&only, &version).await.unwrap());
    delete_node(&site, "deleted-alive").await;
    loop {
        let next = tokio::time::timeout(TIMEOUT, states.next());
        match next.await.expect("never recalled").unwrap().unwrap() {
            WatchEvent::Added(now) | WatchEvent::Modified(now) if now.spec.recalled => break,
            WatchEvent::Added(_) | WatchEvent::Modified(_) | WatchEvent::Bookmark(_) => {}
            other => panic!("taken with no recall: {other:?}"),
        }
    }
    until("the agent has noticed it", async || {
        let held = machine.slices_held("10.40.0.0-28").await;
        (held == 0).then_some(()).ok_or(format!("{held}"))
    })
    .await;
    let refused = machine.try_add("between", &ipam).await;
    assert_eq!(refused.map_err(|(code, _)| code), Err(11));
    site.register("deleted-alive").await;
    let address = given(&machine, "after", &ipam).await;
    assert!(address.starts_with("10.40.0."), "{address}");
    let now = claim().await.unwrap().spec;
    assert_eq!((now.node.as_str(), now.recalled), ("deleted-alive", false));
    world.stop().await;
}

/// The same, after the controller has reclaimed the claim: while its Node does not exist the agent claims nothing,
/// although it knew the Node when it started.
#[tokio::test(flavor = "multi_thread")]
async fn berth_15_19_an_agent_whose_node_was_deleted_claims_nothing() {
    let site = Site::shared().await;
    let world = World::start(&site).await;
    let ipam = fast_cut("10.157.0.0/28", "/28");
    world.define("nineteen", &ipam).await;
    let machine = Machine::start(&site, "claims-nothing").await;
    machine.add("before", &ipam).await;
    machine.del("before", &ipam).await;
    delete_node(&site, "claims-nothing").await;
    until("the claim is taken", async || {
        let now = site.holders().await;
        now.is_empty().then_some(()).ok_or(format!("{now:?}"))
    })
    .await;
    for _ in 0..3 {
        let (code, why) = machine.try_add("between", &ipam).await.unwrap_err();
        assert_eq!(code, 11, "{why}");
    }
    assert!(site.holders().await.is_empty());
    site.register("claims-nothing").await;
    let address = given(&machine, "after", &ipam).await;
    assert!(address.starts_with("10.157.0."), "{address}");
    world.stop().await;
}

/// The node was lost, its claim reclaimed and claimed by another; it returns with its old disk.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_returns_with_its_old_disk_allocates_nothing_of_what_it_claimed() {
    let site = Site::shared().await;
    let world = World::start(&site).await;
    let ipam = fast_cut("10.41.0.0/30", "/30");
    world.define("forty-one", &ipam).await;
    let mut old = Machine::start(&site, "old-claim").await;
    let first = bare(&old.add("web-0", &ipam).await);
    old.stop().await;
    delete_node(&site, "old-claim").await;
    let new = Machine::start(&site, "new-claim").await;
    assert_eq!(given(&new, "other", &ipam).await, first);
    assert_eq!(new.add("other-2", &ipam).await, "10.41.0.2/30");
    site.register("old-claim").await;
    old.run().await;
    returns(&site, &old, &new, &ipam, &first).await;
    world.stop().await;
}

/// The same with a slice that the controller has assigned, and assigns to another.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_returns_with_its_old_disk_allocates_nothing_of_what_it_was_assigned() {
    let cluster = Cluster::start().await.unwrap();
    let site = Site::of(&cluster).await;
    let world = World::start(&site).await;
    let ipam = json!({ "range": "10.42.0.0/30", "node_slice_size": "/31", "network_name": "two",
        "enable_overlapping_ranges": false });
    world.define("two", &ipam).await;
    let mut old = Machine::start_with(&site, "old-row", quick()).await;
    let first = given(&old, "web-0", &ipam).await;
    assert_eq!(first, "10.42.0.1");
    site.register("filler").await;
    old.stop().await;
    delete_node(&site, "old-row").await;
    let new = Machine::start(&site, "new-row").await;
    assert_eq!(given(&new, "other", &ipam).await, first);
    site.register("old-row").await;
    old.run().await;
    returns(&site, &old, &new, &ipam, &first).await;
    world.stop().await;
}

/// Neither a new pod nor the earlier one, recreated under its name, gets an address of the lost slice, and the DEL of
/// the earlier one does no harm.
async fn returns(site: &Site, old: &Machine, new: &Machine, ipam: &Value, first: &str) {
    for pod in ["new-pod", "web-0"] {
        let answer = old.call("ADD", pod, "container-of-now", ipam).await;
        let said: Value = serde_json::from_str(&answer.stdout).unwrap();
        assert_eq!(
            (answer.exit, &said["code"]),
            (1, &json!(11)),
            "{pod}: {said}"
        );
    }
    old.del("web-0", ipam).await;
    let pools = async || {
        let pools = site.api::<IPPool>().list(&ListParams::default()).await;
        let entries = pools.unwrap().into_iter().flat_map(|pool| {
            let name = pool.metadata.name.unwrap();
            let held = pool.spec.allocations.into_values();
            held.map(move |held| (held.podref, name.clone()))
        });
        entries.collect::<BTreeMap<String, String>>()
    };
    until("only the new holder's entries", async || {
        let now = pools().await;
        let ours = now.values().all(|pool| pool.contains(&new.node));
        let shown = ours && now.contains_key("ns/other");
        shown.then_some(()).ok_or(format!("{now:?}"))
    })
    .await;
    assert_eq!(bare(&new.add("other", ipam).await), first);
}
