//! "Manual NodeIPPool clean up" and "manual NNCP/NNCE allocated ips clean up", and what is collected without a request.

use std::sync::{Arc, Mutex};

use berth_nodes::objects::{self, ENACTMENT, NODE_IP_POOL, POLICY};
use futures::StreamExt;
use k8s_openapi::api::core::v1 as core;
use kube::api::{Api, ListParams, Patch, PatchParams};
use kube::runtime::watcher::{self, Event};
use serde_json::json;

use crate::bed::{Bed, all_different, available, offsets, state_kind};

const RESET: &str = "nmstate.io/reset-ippool";

fn has_reset(object: &serde_json::Value) -> bool {
    object["metadata"]["annotations"].get(RESET).is_some()
}

impl Bed {
    /// Adds an offset to a pool's status that nothing claims.
    pub async fn add_stale(&self, pool: &str, offset: u64) {
        let object = self.get(NODE_IP_POOL, pool).await.unwrap();
        let mut list = offsets(&object);
        list.push(offset);
        let patch = json!({ "status": { "allocated-offsets": list } });
        let (params, patch) = (PatchParams::default(), Patch::Merge(&patch));
        let api = self.api(NODE_IP_POOL);
        api.patch_status(pool, &params, &patch).await.unwrap();
    }

    /// Status and reason of a pool's condition, of every version from now on.
    async fn watch_conditions(&self, pool: &str) -> Arc<Mutex<Vec<(String, String)>>> {
        let config = watcher::Config::default().fields(&format!("metadata.name={pool}"));
        let mut events = Box::pin(watcher::watcher(self.api(NODE_IP_POOL), config));
        while !matches!(events.next().await, Some(Ok(Event::InitDone))) {}
        let seen = Arc::new(Mutex::new(Vec::new()));
        let all = Arc::clone(&seen);
        tokio::spawn(async move {
            while let Some(event) = events.next().await {
                if let Ok(Event::Apply(object)) = event {
                    let (status, reason, _) = available(&objects::value(&object));
                    all.lock().unwrap().push((status, reason));
                }
            }
        });
        seen
    }

    pub async fn events(&self, of: &str) -> Vec<core::Event> {
        let events: Api<core::Event> = Api::namespaced(self.admin.clone(), "default");
        let params = ListParams::default().fields(&format!("involvedObject.name={of}"));
        events.list(&params).await.unwrap().items
    }
}

/// The pool is annotated: a stale offset is free at once, the addresses in use stay, and the annotation goes when it is done.
#[tokio::test(flavor = "multi_thread")]
async fn manual_clean_up_of_the_pool() {
    let bed = Bed::new("cleanpool").await;
    let pool = bed.pool("traffic-1", "10.21.1.1", "10.21.1.9").await;
    let policy = bed.policy(&[&pool]).await;
    let _handlers = bed.handlers(3).await;
    bed.until_policy(&policy, "Available").await;
    let before = bed.addresses(&policy).await;
    let held = offsets(&bed.get(NODE_IP_POOL, &pool).await.unwrap());
    let stale = (0..9).find(|offset| !held.contains(offset)).unwrap();
    bed.add_stale(&pool, stale).await;
    let conditions = bed.watch_conditions(&pool).await;
    bed.annotate(NODE_IP_POOL, &pool, RESET, "").await;
    let done = bed
        .until(NODE_IP_POOL, &pool, |pool| {
            !has_reset(pool) && !offsets(pool).contains(&stale)
        })
        .await;
    assert_eq!(offsets(&done).len(), 3);
    let done = bed.until_pool(&pool, "ReconciledPool").await;
    assert_eq!(available(&done).0, "True");
    assert_eq!(bed.addresses(&policy).await, before, "addresses stay");
    until_reconciling(&conditions).await;
}

/// The condition was Unknown, ReconcilingPool.
async fn until_reconciling(conditions: &Mutex<Vec<(String, String)>>) {
    let reconciling = ("Unknown".to_owned(), "ReconcilingPool".to_owned());
    let begun = std::time::Instant::now();
    loop {
        let seen = conditions.lock().unwrap().clone();
        if seen.contains(&reconciling) {
            return;
        }
        assert!(begun.elapsed().as_secs() < 60, "only {seen:?}");
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
}

/// The same on the policy and on one enactment, with the pool's name; another pool's name is an event.
#[tokio::test(flavor = "multi_thread")]
async fn manual_clean_up_of_nncp_and_nnce() {
    let bed = Bed::new("cleannnce").await;
    let pool = bed.pool("traffic-1", "10.21.2.1", "10.21.2.9").await;
    let policy = bed.policy(&[&pool]).await;
    let _handlers = bed.handlers(3).await;
    bed.until_policy(&policy, "Available").await;
    let before = bed.addresses(&policy).await;
    let conditions = bed.watch_conditions(&pool).await;
    bed.annotate(POLICY, &policy, RESET, &pool).await;
    bed.until(POLICY, &policy, |policy| !has_reset(policy))
        .await;
    until_reconciling(&conditions).await;
    bed.until_pool(&pool, "ReconciledPool").await;
    let conditions = bed.watch_conditions(&pool).await;
    let enactment = format!("{}.{policy}", bed.node(1));
    bed.annotate(ENACTMENT, &enactment, RESET, &pool).await;
    bed.until(ENACTMENT, &enactment, |one| !has_reset(one))
        .await;
    until_reconciling(&conditions).await;
    bed.until_pool(&pool, "ReconciledPool").await;
    assert_eq!(bed.addresses(&policy).await, before, "addresses stay");
    // A pool that does not exist.
    for (kind, name) in [(POLICY, &policy), (ENACTMENT, &enactment)] {
        bed.annotate(kind, name, RESET, "no-such-pool").await;
        bed.until_event(name, "UnknownIPPool", vec!["`no-such-pool`"])
            .await;
    }
}

/// "The field `status.allocated-offsets` can be set with an empty list triggering a pool reconstruction."
#[tokio::test(flavor = "multi_thread")]
async fn an_emptied_list_of_offsets_is_rebuilt() {
    let bed = Bed::new("emptied").await;
    let pool = bed.pool("traffic-1", "10.21.3.1", "10.21.3.9").await;
    let policy = bed.policy(&[&pool]).await;
    let _handlers = bed.handlers(3).await;
    bed.until_policy(&policy, "Available").await;
    let before = bed.addresses(&policy).await;
    let held = offsets(&bed.get(NODE_IP_POOL, &pool).await.unwrap());
    let patch = json!({ "status": { "allocated-offsets": [] } });
    let (params, patch) = (PatchParams::default(), Patch::Merge(&patch));
    let api = bed.api(NODE_IP_POOL);
    api.patch_status(&pool, &params, &patch).await.unwrap();
    bed.until(NODE_IP_POOL, &pool, |pool| {
        offsets(pool) == held
            && pool["status"]["allocations"]
                .as_array()
                .is_some_and(|all| all.len() == 3)
    })
    .await;
    bed.until_pool(&pool, "ReconciledPool").await;
    assert_eq!(bed.addresses(&policy).await, before);
}

/// Offsets that are listed twice, or past the end: the readable part counts, the rest is kept aside, the pool is rebuilt.
#[tokio::test(flavor = "multi_thread")]
async fn a_status_that_can_not_be_read_is_set_aside_and_rebuilt() {
    let bed = Bed::new("unsynced").await;
    let pool = bed.pool("traffic-1", "10.21.4.1", "10.21.4.9").await;
    let policy = bed.policy(&[&pool]).await;
    let _handlers = bed.handlers(2).await;
    bed.until_policy(&policy, "Available").await;
    let before = bed.addresses(&policy).await;
    let held = offsets(&bed.get(NODE_IP_POOL, &pool).await.unwrap());
    let patch = json!({ "status": { "allocated-offsets": [held[0], held[0], 99] } });
    let (params, patch) = (PatchParams::default(), Patch::Merge(&patch));
    let api = bed.api(NODE_IP_POOL);
    api.patch_status(&pool, &params, &patch).await.unwrap();
    let told = bed
        .until(NODE_IP_POOL, &pool, |pool| {
            pool["status"].get("set-aside").is_some() && available(pool).1 == "ReconciledPool"
        })
        .await;
    let aside = told["status"]["set-aside"].to_string();
    assert!(
        aside.contains("99") && aside.contains("listed twice"),
        "{aside}"
    );
    assert_eq!(offsets(&told), held);
    assert_eq!(bed.addresses(&policy).await, before);
    let reasons = bed.events(&pool).await;
    let told = reasons
        .iter()
        .any(|event| event.reason.as_deref() == Some("UnsyncronizedIPPool"));
    assert!(told, "an event says so");
}

/// The same where the status is a bitmap: in a format that is not known, and emptied.
#[tokio::test(flavor = "multi_thread")]
async fn a_bitmap_is_set_aside_or_emptied_and_the_pool_rebuilt() {
    let bed = Bed::new("bitmap").await;
    let pool = bed.pool("traffic-1", "10.21.8.1", "10.21.8.9").await;
    let policy = bed.policy(&[&pool]).await;
    let _handlers = bed.handlers(2).await;
    bed.until_policy(&policy, "Available").await;
    let before = bed.addresses(&policy).await;
    let held = offsets(&bed.get(NODE_IP_POOL, &pool).await.unwrap());
    // All nine offsets.
    let bitmap = |format: &str, list: serde_json::Value| json!({ "status": { "allocated-offsets": list, "allocated-bitmap": "/wE=", "bitmap-format": format } });
    for (status, reason) in [
        (bitmap("roaring/1", json!(null)), "UnsyncronizedIPPool"),
        (bitmap("lsb-first/1", json!([])), "ReconcilingPool"),
    ] {
        let conditions = bed.watch_conditions(&pool).await;
        let (params, patch) = (PatchParams::default(), Patch::Merge(&status));
        let api = bed.api(NODE_IP_POOL);
        api.patch_status(&pool, &params, &patch).await.unwrap();
        let rebuilt = bed
            .until(NODE_IP_POOL, &pool, |pool| {
                offsets(pool) == held && pool["status"].get("allocated-bitmap").is_none()
            })
            .await;
        if reason == "UnsyncronizedIPPool" {
            let aside = rebuilt["status"]["set-aside"].to_string();
            assert!(
                aside.contains("/wE=") && aside.contains("roaring/1"),
                "{aside}"
            );
            bed.until_event(&pool, reason, vec!["roaring/1", "lsb-first/1"])
                .await;
        } else {
            until_reconciling(&conditions).await;
        }
        bed.until_pool(&pool, "ReconciledPool").await;
    }
    assert_eq!(bed.addresses(&policy).await, before);
}

/// Claims that no pool has, or that can't be read: an event of the pool, or of the enactment.
#[tokio::test(flavor = "multi_thread")]
async fn claims_that_can_not_be_taken_in_are_events() {
    let bed = Bed::new("claims").await;
    let pool = bed.pool("traffic-1", "10.21.9.1", "10.21.9.9").await;
    bed.until_pool(&pool, "ReconciledPool").await;
    let node = bed.add_node(1).await;
    let outside = json!({ pool.as_str(): { "captures": { "a": "10.21.9.200" } } });
    let name = format!("{node}.outside");
    bed.claiming_enactment(&name, &node, "outside", &outside)
        .await;
    let parts = vec![node.as_str(), "policy outside", "10.21.9.200"];
    bed.until_event(&pool, "ForeignClaim", parts).await;
    let unreadable = json!({ pool.as_str(): { "captures": { "a": "10.21.9.300" } } });
    let name = format!("{node}.unreadable");
    bed.claiming_enactment(&name, &node, "unreadable", &unreadable)
        .await;
    let parts = vec![
        "berth.dev/ippool",
        "captures.a",
        "10.21.9.300",
        "is no address",
    ];
    bed.until_event(&name, "UnreadableClaim", parts).await;
    let pool = bed.get(NODE_IP_POOL, &pool).await.unwrap();
    assert!(offsets(&pool).is_empty());
}

/// A policy is deleted: the hosts' addresses are withdrawn, then the offsets are free. What an enactment claims or a host shows stays held, and
/// the pool says where.
#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_policy_frees_what_no_host_shows() {
    let bed = Bed::new("deleted").await;
    let pool = bed.pool("traffic-1", "10.21.5.1", "10.21.5.9").await;
    let policy = bed.policy(&[&pool]).await;
    let mut handlers = bed.handlers(3).await;
    bed.until_policy(&policy, "Available").await;
    let before = bed.addresses(&policy).await;
    all_different(&before);
    // Two handlers are dead: nothing takes their addresses off the interfaces. Of the third node the enactment is gone, too.
    handlers.pop().unwrap().kill().await;
    handlers.pop().unwrap().kill().await;
    let (node, shown) = &before[2];
    let state = bed.until(state_kind(), node, |state| {
        state.to_string().contains(&shown[0])
    });
    state.await;
    bed.delete(POLICY, &policy).await;
    bed.delete(ENACTMENT, &format!("{node}.{policy}")).await;
    let told = bed
        .until(NODE_IP_POOL, &pool, |pool| {
            offsets(pool).len() == 2 && available(pool).2.contains("stays held")
        })
        .await;
    let text = available(&told).2;
    assert!(
        text.contains(&shown[0]) && text.contains(node) && text.contains("eth1"),
        "{text}"
    );
    let parts = vec![shown[0].as_str(), node.as_str(), "interface eth1"];
    bed.until_event(&pool, "AddressStillInUse", parts).await;
    // One handler returns and withdraws its address; the other host shows its address no more.
    let _back = bed.handler(&bed.node(2)).await;
    bed.until(NODE_IP_POOL, &pool, |pool| offsets(pool).len() == 1)
        .await;
    bed.delete(state_kind(), node).await;
    bed.until(NODE_IP_POOL, &pool, |pool| offsets(pool).is_empty())
        .await;
    bed.until_gone(ENACTMENT, &format!("{}.{policy}", bed.node(2)))
        .await;
}

/// A node that a policy no longer selects gives its address back.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_no_longer_selected_gives_its_address_back() {
    let bed = Bed::new("unselect").await;
    let pool = bed.pool("traffic-1", "10.21.6.1", "10.21.6.9").await;
    let policy = bed.policy(&[&pool]).await;
    let _handlers = bed.handlers(2).await;
    bed.until_policy(&policy, "Available").await;
    let nodes: Api<k8s_openapi::api::core::v1::Node> = Api::all(bed.admin.clone());
    let patch = json!({ "metadata": { "labels": { "bed": "another" } } });
    let (params, patch) = (PatchParams::default(), Patch::Merge(&patch));
    nodes.patch(&bed.node(2), &params, &patch).await.unwrap();
    bed.until(NODE_IP_POOL, &pool, |pool| offsets(pool).len() == 1)
        .await;
    bed.until_gone(ENACTMENT, &format!("{}.{policy}", bed.node(2)))
        .await;
}

/// An enactment is edited to claim a free address: the node moves to it, and its old address is free.
#[tokio::test(flavor = "multi_thread")]
async fn an_edited_claim_leaves_no_address_behind() {
    let bed = Bed::new("edited").await;
    let pool = bed.pool("traffic-1", "10.21.7.1", "10.21.7.9").await;
    let policy = bed.policy(&[&pool]).await;
    let mut handlers = bed.handlers(1).await;
    bed.until_policy(&policy, "Available").await;
    handlers.pop().unwrap().kill().await;
    let claim = json!({ pool.as_str(): { "captures": { "address-1": "10.21.7.6" } } });
    let node = bed.node(1);
    let name = format!("{node}.{policy}");
    bed.annotate(ENACTMENT, &name, "berth.dev/ippool", &claim.to_string())
        .await;
    // The host still shows the old address: the pool keeps it until the handler has moved.
    bed.until(NODE_IP_POOL, &pool, |pool| {
        offsets(pool) == [0, 5] && available(pool).2.contains("stays held")
    })
    .await;
    let _back = bed.handler(&node).await;
    bed.until(NODE_IP_POOL, &pool, |pool| offsets(pool) == [5])
        .await;
    bed.until_enacted(&node, &policy, "Available").await;
    let address = "10.21.7.6".to_owned();
    assert_eq!(bed.addresses(&policy).await, [(node, vec![address])]);
}
