//! The proposal's own workflows.

use berth_nodes::objects::{ENACTMENT, NODE_IP_POOL, POLICY};
use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::bed::{Bed, all_different, applied, available, message, offsets};

/// "Workflow Description (assign static address with IPPool)".
#[tokio::test(flavor = "multi_thread")]
async fn assign_static_address_with_ippool() {
    let bed = Bed::new("assign").await;
    let pool = bed.pool("traffic-1", "10.20.1.1", "10.20.1.10").await;
    let fresh = bed.until_pool(&pool, "ReconciledPool").await;
    assert_eq!(available(&fresh).2, "The pool is up to date");
    let policy = bed.policy(&[&pool]).await;
    let handlers = bed.handlers(3).await;
    let done = bed.until_policy(&policy, "Available").await;
    assert_eq!(message(&done), "3/3 nodes successfully configured");
    let addresses = bed.addresses(&policy).await;
    assert_eq!(addresses.len(), 3);
    all_different(&addresses);
    let pool = bed.get(NODE_IP_POOL, &pool).await.unwrap();
    // First fit; handlers that meet without the leader's desk are parted by a draw.
    let held = offsets(&pool);
    assert_eq!((held[0], held.len()), (0, 3));
    assert_eq!(pool["status"]["used"], 3);
    assert_eq!(pool["status"]["free"], 7);
    // The enactment, as the proposal has it, errata applied; upstream's definition drops `status.ippool`, so the annotation names it too.
    let node = bed.node(1);
    let enactment = bed.enactment(&node, &policy).await.unwrap();
    let address = &applied(&enactment)[0];
    let interface = &enactment["status"]["desiredState"]["interfaces"][0];
    assert_eq!(
        interface["ipv4"]["address"][0],
        json!({ "ip": address, "prefix-length": 24 })
    );
    let captured = &enactment["status"]["capturedStates"]["address-1"]["state"];
    assert_eq!(*captured, json!({ "ip": address, "prefix-length": 24 }));
    assert_eq!(enactment["status"]["policyGeneration"], 1);
    let annotation = enactment["metadata"]["annotations"]["berth.dev/ippool"].as_str();
    let annotation: serde_json::Value = serde_json::from_str(annotation.unwrap()).unwrap();
    assert_eq!(
        annotation["assign-traffic-1"]["allocated"],
        json!([address])
    );
    assert_eq!(enactment["metadata"]["ownerReferences"][0]["kind"], "Node");
    // The host was asked in nmstatectl's order, and its state is published.
    let calls = handlers[0].calls();
    let verbs: Vec<&str> = calls
        .lines()
        .filter_map(|line| line.split(' ').next())
        .collect();
    let apply = verbs.iter().position(|verb| *verb == "apply").unwrap();
    assert!(verbs[apply..].contains(&"commit"), "{calls}");
    assert!(calls.contains("apply --no-commit --timeout 5 "), "{calls}");
    let state = bed
        .until(crate::bed::state_kind(), &node, |state| {
            state["status"]["currentState"]
                .to_string()
                .contains(address)
        })
        .await;
    assert_eq!(
        state["metadata"]["ownerReferences"][0]["name"],
        node.as_str()
    );
}

/// "Variation (exhausted range at the NodeIPPool)", and the way out: a pool that is created again, larger, keeps the addresses.
#[tokio::test(flavor = "multi_thread")]
async fn exhausted_range_at_the_nodeippool() {
    let bed = Bed::new("exhausted").await;
    let pool = bed.pool("traffic-1", "10.20.2.1", "10.20.2.2").await;
    let policy = bed.policy(&[&pool]).await;
    let _handlers = bed.handlers(3).await;
    let full = bed.until_pool(&pool, "ExhaustedIPPool").await;
    let (status, _, told) = available(&full);
    assert_eq!(status, "False");
    assert!(
        told.starts_with(
            "The IP pool has being depleted, manual intervention needed to modify NodeIPPool."
        ),
        "{told}"
    );
    let degraded = bed.until_policy(&policy, "Degraded").await;
    let told = message(&degraded);
    assert!(
        told.starts_with("1/3 nodes failed to configure")
            && told.contains(&pool)
            && told.contains("no free address")
            && told.contains(&bed.name),
        "{told}"
    );
    let before: Vec<_> = bed.addresses(&policy).await;
    bed.delete(NODE_IP_POOL, &pool).await;
    let again = bed.pool("traffic-1", "10.20.2.1", "10.20.2.9").await;
    assert_eq!(again, pool);
    bed.until_policy(&policy, "Available").await;
    let after = bed.addresses(&policy).await;
    all_different(&after);
    for (node, addresses) in before.iter().filter(|(_, list)| !list.is_empty()) {
        let now = after.iter().find(|(one, _)| one == node).unwrap();
        assert_eq!(now.1, *addresses, "kept");
    }
    let pool = bed.until_pool(&pool, "ReconciledPool").await;
    let held = offsets(&pool);
    assert_eq!((&held[..2], held.len()), (&[0, 1][..], 3));
}

/// "Workflow Description (removing a reference to NodeIPPool by NNCP re-creation)".
#[tokio::test(flavor = "multi_thread")]
async fn removing_a_reference_by_nncp_re_creation() {
    let bed = Bed::new("recreate").await;
    let one = bed.pool("traffic-1", "10.20.3.1", "10.20.3.9").await;
    let two = bed.pool("traffic-2", "10.20.4.1", "10.20.4.9").await;
    let policy = bed.policy(&[&one, &two]).await;
    let _handlers = bed.handlers(3).await;
    bed.until_policy(&policy, "Available").await;
    // Captures can't be modified.
    let patch = json!({ "spec": { "capture": { "address-2": null } } });
    let (params, patch) = (PatchParams::default(), Patch::Merge(&patch));
    let refused = bed.api(POLICY).patch(&policy, &params, &patch).await;
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("capture"), "{refused}");
    bed.delete(POLICY, &policy).await;
    bed.policy(&[&one]).await;
    bed.until_policy(&policy, "Available").await;
    let addresses = bed.addresses(&policy).await;
    all_different(&addresses);
    assert!(addresses.iter().all(|(_, list)| list.len() == 1));
    // The pool that is no longer named has all its addresses back, once no host shows them.
    bed.until(NODE_IP_POOL, &two, |pool| offsets(pool).is_empty())
        .await;
    let one = bed.get(NODE_IP_POOL, &one).await.unwrap();
    assert_eq!(one["status"]["used"], 3);
}

/// "Workflow Description (scaling up cluster)".
#[tokio::test(flavor = "multi_thread")]
async fn scaling_up_cluster() {
    let bed = Bed::new("up").await;
    let pool = bed.pool("traffic-1", "10.20.5.1", "10.20.5.9").await;
    let policy = bed.policy(&[&pool]).await;
    let _handlers = bed.handlers(3).await;
    bed.until_policy(&policy, "Available").await;
    let before = bed.addresses(&policy).await;
    let node = bed.add_node(4).await;
    let _fourth = bed.handler(&node).await;
    bed.until_enacted(&node, &policy, "Available").await;
    let done = bed
        .until(POLICY, &policy, |policy| {
            message(policy) == "4/4 nodes successfully configured"
        })
        .await;
    assert_eq!(done["metadata"]["generation"], 1);
    let after = bed.addresses(&policy).await;
    all_different(&after);
    assert_eq!(after[..3], before[..]);
}

/// "Workflow Description (scaling down cluster)".
#[tokio::test(flavor = "multi_thread")]
async fn scaling_down_cluster() {
    let bed = Bed::new("down").await;
    let pool = bed.pool("traffic-1", "10.20.6.1", "10.20.6.9").await;
    let policy = bed.policy(&[&pool]).await;
    let mut handlers = bed.handlers(3).await;
    bed.until_policy(&policy, "Available").await;
    // Not graceful: the handler is gone first, and withdraws nothing. The garbage collector deletes what the node owned.
    handlers.pop().unwrap().kill().await;
    let node = bed.node(3);
    bed.delete_node(&node).await;
    bed.until_gone(crate::bed::state_kind(), &node).await;
    let freed = bed
        .until(NODE_IP_POOL, &pool, |pool| offsets(pool).len() == 2)
        .await;
    assert_eq!(freed["status"]["free"], 7);
    bed.until_gone(ENACTMENT, &format!("{node}.{policy}")).await;
    bed.until(POLICY, &policy, |policy| {
        message(policy) == "2/2 nodes successfully configured"
    })
    .await;
}
