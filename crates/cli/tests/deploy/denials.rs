//! Further writes that the policies deny to a stolen token, one table for each policy: all those parts of an object that
//! its owner's work does not touch.

use berth_api::claim::SliceClaimSpec;
use berth_api::whereabouts::{IPPool, OverlappingRangeIPReservation as Reservation};
use berth_testkit::Account;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Event;
use kube::api::{Api, DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::ApiResource;
use serde_json::{Value, json};

use crate::stolen::{
    Denial, claimed, denied, leases, merge, nodes, pool, pools, published_by, refused, slice,
    slice_text,
};
use crate::{CLAIMS, HOME, agents, deployed};

fn owners() -> Value {
    json!({ "metadata": { "ownerReferences": [
        { "apiVersion": "v1", "kind": "ConfigMap", "name": "gone", "uid": "gone" },
    ] } })
}

fn finalizers() -> Value {
    json!({ "metadata": { "finalizers": ["example.com/never"] } })
}

fn labels(key: &str, value: impl Into<Value>) -> Value {
    json!({ "metadata": { "labels": { key: value.into() } } })
}

fn annotations(key: &str, value: impl Into<Value>) -> Value {
    json!({ "metadata": { "annotations": { key: value.into() } } })
}

/// Merges a patch into an object, as a client that may only update does it.
fn merged(object: &mut Value, patch: &Value) {
    let (Some(into), Some(from)) = (object.as_object_mut(), patch.as_object()) else {
        object.clone_from(patch);
        return;
    };
    for (key, value) in from {
        merged(into.entry(key.clone()).or_insert(Value::Null), value);
    }
}

async fn updated(api: &Api<Lease>, name: &str, patch: &Value) -> Result<Lease, kube::Error> {
    let mut lease = serde_json::to_value(api.get(name).await?).unwrap();
    merged(&mut lease, patch);
    let lease = serde_json::from_value(lease).unwrap();
    api.replace(name, &PostParams::default(), &lease).await
}

#[tokio::test]
async fn a_stolen_token_writes_no_metadata_of_the_leases_that_all_agents_share() {
    let (thief, _) = nodes().await;
    let home = leases(&thief, HOME).await;
    let words = ("berth-agents-leases", "nothing of its metadata");
    for patch in [owners(), finalizers(), labels("app", "other")] {
        denied(merge(&home, "berth-turns", patch.clone()).await, words);
        let mut sweep = patch;
        sweep["spec"] = json!({ "holderIdentity": "node-a" });
        denied(updated(&home, "berth-sweep", &sweep).await, words);
    }
    let sweep = json!({ "spec": { "holderIdentity": "node-b" } });
    denied(
        updated(&home, "berth-sweep", &sweep).await,
        ("berth-agents-leases", "sweeps in its own name only"),
    );
}

#[tokio::test]
async fn a_stolen_token_writes_no_metadata_of_another_nodes_slice() {
    let (thief, owner, name) = claimed("10.1.3.0/26").await;
    let words = ("berth-agents-slices", "may only say that it wants a part");
    // Of another file, it would be refused by its own node.
    let file = annotations("berth.dev/file", "another");
    merge(&owner, &name, annotations("berth.dev/file", "own"))
        .await
        .unwrap();
    for patch in [
        file,
        annotations("berth.dev/file", Value::Null),
        annotations("example.com/any", "thing"),
        finalizers(),
        owners(),
        labels("berth.dev/range", Value::Null),
        labels("berth.dev/node", "node-a"),
        json!({ "spec": { "renewTime": "2026-01-01T00:00:00.000000Z" } }),
        json!({ "spec": { "holderIdentity": null } }),
    ] {
        denied(merge(&thief, &name, patch).await, words);
    }
}

#[tokio::test]
async fn a_stolen_token_makes_nothing_of_its_own_slice_that_stops_others() {
    let (other, owner, name) = claimed("10.1.3.64/26").await;
    let words = ("berth-agents-slices", "is not what Berth writes there");
    for text in [
        "",
        "broken",
        r#"{"range":"10.1.3.64/26","recalled":1}"#,
        r#"{"range":"10.1.4.0/26"}"#,
    ] {
        let broken = annotations("berth.dev/slice", text);
        denied(merge(&owner, &name, broken).await, words);
    }
    let removed = annotations("berth.dev/slice", Value::Null);
    denied(merge(&owner, &name, removed).await, words);
    let passed = |node: &str| {
        let mut passed = slice_text(SliceClaimSpec {
            range: "10.1.3.64/26".into(),
            node: node.into(),
            epoch: 1,
            ..SliceClaimSpec::default()
        });
        passed["metadata"]["labels"] = json!({ "berth.dev/node": node });
        passed
    };
    let words = ("berth-agents-slices", "may only say that it wants a part");
    denied(merge(&owner, &name, passed("node-c")).await, words);
    // A slice without a holder: for itself, not for a third node.
    let admin: Api<Lease> = Api::namespaced(deployed().await.client().await.unwrap(), CLAIMS);
    merge(&admin, &name, json!({ "spec": { "holderIdentity": null } }))
        .await
        .unwrap();
    denied(merge(&other, &name, passed("node-c")).await, words);
    merge(&other, &name, passed("node-a")).await.unwrap();
}

/// Labels and annotations of other programs, and Berth's own that belong to published pools, on a shared pool.
#[tokio::test]
async fn a_stolen_token_writes_nothing_on_a_shared_pool_that_is_not_for_it() {
    let (thief, owner) = nodes().await;
    let (thief, owner) = (pools(&thief).await, pools(&owner).await);
    let name = "10.3.2.0-24";
    let made = pool(name, "10.3.2.0/24", json!({}));
    owner.create(&PostParams::default(), &made).await.unwrap();
    let resource = ApiResource::erase::<IPPool>(&());
    let admin = deployed().await.client().await.unwrap();
    let admin: Api<DynamicObject> = Api::namespaced_with(admin, HOME, &resource);
    let foreign = json!({ "metadata": {
        "labels": { "example.com/team": "red" }, "annotations": { "example.com/note": "ours" },
    } });
    merge(&admin, name, foreign).await.unwrap();
    let words = ("berth-agents-pools", "leave all others");
    for patch in [
        annotations("berth.dev/file", "another"),
        annotations("example.com/note", Value::Null),
        annotations("example.com/note", "theirs"),
        labels("berth.dev/slot", "1"),
        labels("example.com/team", Value::Null),
        labels("example.com/team", "blue"),
    ] {
        denied(merge(&thief, name, patch).await, words);
    }
}

/// A pool that a node publishes stays published: as a shared one, any agent would write it.
#[tokio::test]
async fn a_stolen_token_unpublishes_no_pool_not_even_its_own() {
    let (_, owner) = nodes().await;
    let owner = pools(&owner).await;
    let name = "node-b-10.2.1.0-26";
    let made = pool(name, "10.2.1.0/26", published_by("node-b"));
    owner.create(&PostParams::default(), &made).await.unwrap();
    let words = ("berth-agents-pools", "the pool is published by node node-b");
    for becomes in [Value::Null, json!(""), json!("node-a")] {
        let patch = annotations("berth.dev/published-by", becomes);
        denied(merge(&owner, name, patch).await, words);
    }
}

fn reservation(name: &str, node: &str) -> Reservation {
    serde_json::from_value(json!({
        "apiVersion": "whereabouts.cni.cncf.io/v1alpha1", "kind": "OverlappingRangeIPReservation",
        "metadata": { "name": name, "annotations": { "berth.dev/node": node } },
        "spec": { "containerid": "c", "podref": "ns/p", "ifname": "net1" },
    }))
    .unwrap()
}

async fn reservations(account: &Account) -> Api<Reservation> {
    Api::namespaced(account.client().await.unwrap(), HOME)
}

#[tokio::test]
async fn a_stolen_token_hands_no_reservation_to_a_third_node_and_ties_none_to_another_object() {
    let (thief, owner) = nodes().await;
    let (thief, owner) = (reservations(&thief).await, reservations(&owner).await);
    let (name, params) = ("10.6.5.1", PostParams::default());
    let theirs = reservation(name, "node-b");
    owner.create(&params, &theirs).await.unwrap();
    let third = annotations("berth.dev/node", "node-c");
    let words = (
        "berth-agents-reservations",
        "reserves nothing for node node-c",
    );
    denied(merge(&thief, name, third.clone()).await, words);
    denied(merge(&owner, name, third).await, words);
    let words = (
        "berth-agents-reservations",
        "who takes it over says so on it",
    );
    let changed = json!({ "spec": { "podref": "ns/other" } });
    let nobodys = annotations("berth.dev/node", Value::Null);
    denied(merge(&owner, name, nobodys).await, words);
    denied(
        merge(&thief, name, changed).await,
        (
            "berth-agents-reservations",
            "reserves nothing for node node-b",
        ),
    );
    let words = ("berth-agents-reservations", "no owners and no finalizers");
    for mut patch in [owners(), finalizers()] {
        denied(merge(&owner, name, patch.clone()).await, words);
        merged(&mut patch, &annotations("berth.dev/node", "node-a"));
        denied(merge(&thief, name, patch.clone()).await, words);
        let mut made = serde_json::to_value(reservation("10.6.5.2", "node-a")).unwrap();
        merged(&mut made, &patch);
        let made = serde_json::from_value(made).unwrap();
        denied(thief.create(&params, &made).await, words);
    }
    let words = (
        "berth-agents-reservations",
        "the reservation is of node node-b, not of node",
    );
    let deleted = thief.delete(name, &DeleteParams::default()).await;
    denied(deleted, words);
}

async fn claims(account: &Account) -> Api<DynamicObject> {
    let resource = ApiResource::erase::<berth_api::cncf::IPAMClaim>(&());
    Api::namespaced_with(account.client().await.unwrap(), "default", &resource)
}

async fn claim(name: &str) {
    let claim = json!({
        "apiVersion": "k8s.cni.cncf.io/v1alpha1", "kind": "IPAMClaim",
        "metadata": { "name": name, "namespace": "default" },
        "spec": { "network": "blue", "interface": "net1" },
    });
    deployed().await.apply_object(claim).await.unwrap();
}

async fn set_status(
    claims: &Api<DynamicObject>,
    name: &str,
    status: Value,
) -> Result<DynamicObject, kube::Error> {
    let patch = Patch::Merge(json!({ "status": status }));
    let params = PatchParams::default();
    claims.patch_status(name, &params, &patch).await
}

#[tokio::test]
async fn a_stolen_token_writes_no_condition_of_a_claim() {
    claim("conditions").await;
    let (thief, _) = nodes().await;
    let thief = claims(&thief).await;
    let condition = json!({ "ips": ["10.4.0.7/24"], "conditions": [{ "type": "IPsAllocated", "status": "False",
        "reason": "Forged", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z" }] });
    let words = ("berth-agents-ipamclaims", "no conditions");
    denied(set_status(&thief, "conditions", condition).await, words);
}

/// One that `kubectl create token` made, or an old Secret's: of everything that agents write.
#[tokio::test]
async fn a_token_without_a_node_writes_nothing() {
    let (_, owner) = nodes().await;
    agents().await;
    let loose = deployed().await.account(HOME, "berth-agent").await.unwrap();
    let params = PostParams::default();
    let how = DeleteParams::default();

    let words = ("berth-agents-slices", "a token that is bound to its node");
    let mut own = slice("node-b", "10.1.2.0/26");
    let held = leases(&owner, CLAIMS).await;
    held.create(&params, &own).await.unwrap();
    let slices = leases(&loose, CLAIMS).await;
    denied(slices.delete("10.1.2.0-26", &how).await, words);
    let touched = annotations("berth.dev/written", "1");
    denied(merge(&slices, "10.1.2.0-26", touched).await, words);
    own.metadata.name = Some("10.1.2.64-26".into());
    denied(slices.create(&params, &own).await, words);

    let words = ("berth-agents-leases", "a token that is bound to its node");
    let home = leases(&loose, HOME).await;
    let turn = annotations("berth.dev/turn", "1");
    denied(merge(&home, "berth-turns", turn).await, words);
    let sweep = json!({ "spec": { "holderIdentity": "" } });
    denied(updated(&home, "berth-sweep", &sweep).await, words);

    // A shared pool is under two policies: which of them answers is not said.
    let words = ("", "a token that is bound to its node");
    let name = "10.5.0.0-24";
    let object = pool(name, "10.5.0.0/24", json!({}));
    let loose_pools = pools(&loose).await;
    denied(loose_pools.create(&params, &object).await, words);
    let held = pools(&owner).await;
    held.create(&params, &object).await.unwrap();
    let entry = json!({ "spec": { "allocations": { "1": { "id": "c", "podref": "ns/p" } } } });
    denied(merge(&loose_pools, name, entry).await, words);
    let name = "node-b-10.2.2.0-26";
    let object = pool(name, "10.2.2.0/26", published_by("node-b"));
    held.create(&params, &object).await.unwrap();
    let words = ("berth-agents-pools", "a token that is bound to its node");
    let returned = labels("berth.dev/given-back", "true");
    denied(merge(&loose_pools, name, returned).await, words);

    let words = (
        "berth-agents-reservations",
        "a token that is bound to its node",
    );
    let loose_reservations = reservations(&loose).await;
    let unnamed = reservation("10.5.0.1", "");
    let made = loose_reservations.create(&params, &unnamed).await;
    denied(made, words);
    let held = reservations(&owner).await;
    let named = reservation("10.5.0.2", "node-b");
    held.create(&params, &named).await.unwrap();
    denied(loose_reservations.delete("10.5.0.2", &how).await, words);
    let unnamed = annotations("berth.dev/node", Value::Null);
    denied(merge(&loose_reservations, "10.5.0.2", unnamed).await, words);

    claim("loose").await;
    let words = (
        "berth-agents-ipamclaims",
        "a token that is bound to its node",
    );
    let loose_claims = claims(&loose).await;
    let status = json!({ "ips": ["10.5.0.3/24"] });
    denied(set_status(&loose_claims, "loose", status).await, words);

    let events: Api<Event> = Api::namespaced(loose.client().await.unwrap(), "default");
    let event: Event = serde_json::from_value(json!({
        "metadata": { "generateName": "forged-", "namespace": "default" },
        "involvedObject": { "kind": "Pod", "name": "p" },
        "source": { "component": "berth-agent", "host": "" },
    }))
    .unwrap();
    let words = ("berth-agents-events", "in the name of Berth on that node");
    denied(events.create(&params, &event).await, words);
}

/// The policy on entries denies a token without a node by itself, where the one on pools does not apply: on a cluster of
/// its own, without that binding.
#[tokio::test]
async fn a_token_without_a_node_writes_no_entry() {
    let cluster = berth_testkit::Cluster::start().await.unwrap();
    for crd in berth_api::crds().unwrap() {
        cluster.apply_object(crd).await.unwrap();
    }
    let namespace = cluster.namespace("entries").await.unwrap();
    cluster.agents(&namespace).await.unwrap();
    let binding = "validatingadmissionpolicybinding/berth-agents-pools";
    crate::kubectl(&cluster, &["delete", binding]);
    let loose = cluster.account(&namespace, "berth-agent").await.unwrap();
    let resource = ApiResource::erase::<IPPool>(&());
    let api: Api<DynamicObject> =
        Api::namespaced_with(loose.client().await.unwrap(), &namespace, &resource);
    let by: Denial<'_> = ("berth-agents-entries", "a token that is bound to its node");
    let object = pool("10.5.1.0-24", "10.5.1.0/24", json!({}));
    let begun = std::time::Instant::now();
    let outcome = loop {
        let outcome = api.create(&PostParams::default(), &object).await;
        match &outcome {
            // That a binding is gone is noticed by watch.
            Err(kube::Error::Api(status))
                if status.message.contains("'berth-agents-pools'")
                    && begun.elapsed() < std::time::Duration::from_secs(60) =>
            {
                tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            }
            _ => break outcome,
        }
    };
    refused(outcome, 403, by, "a new pool");
}
