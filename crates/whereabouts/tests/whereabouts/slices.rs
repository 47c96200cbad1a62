//! Claims of slices: what they are found by, and Leases under their names that are none.

use berth_api::claim::{self, SLICE};
use berth_core::slice::elastic::{Claimed, Offer};
use berth_core::slice::{Epoch, NodeName};
use berth_ledger::{ClaimKey, ClaimKind, LedgerError, Records};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::json;

use crate::{Bed, cluster};
use berth_conformance::mk_record;

pub fn mk_claimed(node_uid: &str) -> Claimed {
    Claimed {
        range: "10.0.4.0/26".parse().unwrap(),
        node: NodeName::new("node-7"),
        node_uid: node_uid.to_owned(),
        epoch: Epoch(3),
        offers: Vec::new(),
        wants: Vec::new(),
        recalled: false,
    }
}

/// A claim of a slice is found by its range, its network and its node.
#[tokio::test(flavor = "multi_thread")]
async fn a_slice_is_claimed_with_what_it_is_looked_for_by() {
    let bed = Bed::new("slices").await;
    let (claim, ledger) = (mk_claimed("uid-7"), &bed.ledger);
    let (whole, other) = (
        "10.0.0.0/16".parse().unwrap(),
        "10.0.0.0/17".parse().unwrap(),
    );
    let made = ledger.claim_slice("blue", whole, &claim).await.unwrap();
    let made = made.unwrap();
    assert_eq!(made.claim, claim);
    assert!(made.is_of("blue", whole));
    let all = [made];
    let of_range = Some(("blue", whole));
    assert_eq!(ledger.slices(of_range, None).await.unwrap(), all);
    assert_eq!(ledger.slices(None, Some(&claim.node)).await.unwrap(), all);
    let beside = async |network, range| {
        let list = ledger.slices_beside(network, range).await.unwrap();
        list.complete().unwrap()
    };
    assert_eq!(beside("blue", other).await, all);
    assert_eq!(beside("blue", whole).await, []);
    assert_eq!(beside("red", other).await, []);
    let reborn = ledger
        .claim_slice("blue", whole, &mk_claimed("uid-8"))
        .await;
    assert_eq!(reborn.unwrap(), None, "another node's by now (I8)");
}

/// One of a name and a holder alone would be found by nobody who looks for it so.
#[tokio::test(flavor = "multi_thread")]
async fn a_slice_is_not_claimed_by_its_name_alone() {
    let bed = Bed::new("slice-names").await;
    let name = berth_api::names::slice("blue", "10.0.4.0/26".parse().unwrap());
    let key = ClaimKey::new(ClaimKind::Slice, name);
    let refused = bed.ledger.create(&key, &mk_record("a")).await;
    assert!(
        matches!(refused, Err(LedgerError::Rejected { .. })),
        "{refused:?}"
    );
    assert_eq!(bed.ledger.slices(None, None).await.unwrap(), []);
}

/// Somebody's Lease has the name of a slice, or a claim was edited by hand: it is said what is wrong with it, the slice is
/// nobody's to claim, and it stays as it is (I5).
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_says_nothing_of_a_slice_is_named_and_stays() {
    let bed = Bed::new("odd-slices").await;
    let client = cluster().await.client().await.unwrap();
    let leases: Api<Lease> = Api::namespaced(client, &claim::namespace(&bed.namespace));
    let whole = "10.0.0.0/16".parse().unwrap();
    let claim = mk_claimed("uid-7");
    let cases = [
        ("blue", json!({}), SLICE),
        ("red", json!({ SLICE: "10.0.4.0/26" }), "10.0.4.0/26"),
        (
            "green",
            json!({ SLICE: r#"{"range":"10.0.4.0"}"# }),
            "no CIDR",
        ),
    ];
    for (network, annotations, told) in cases {
        let name = berth_api::names::slice(network, claim.range);
        let lease = json!({
            "metadata": { "name": name, "annotations": annotations },
            "spec": { "holderIdentity": "somebody", "leaseDurationSeconds": 15 },
        });
        let lease = serde_json::from_value(lease).unwrap();
        let before = leases.create(&PostParams::default(), &lease).await.unwrap();
        let taken = bed.ledger.claim_new_slice(network, whole, &claim).await;
        assert_eq!(taken.unwrap(), None);
        let read = bed.ledger.claim_slice(network, whole, &claim).await;
        let error = read.unwrap_err();
        assert!(matches!(error, LedgerError::Unreadable { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains(&name) && text.contains(told), "{text}");
        assert_eq!(leases.get(&name).await.unwrap(), before);
    }
}

/// What a newer version says on a claim is there after every write of this one (I7).
#[tokio::test(flavor = "multi_thread")]
async fn berth_15_24_unknown_fields_of_claims_are_kept() {
    let bed = Bed::new("newer-claims").await;
    let (mut claim, ledger) = (mk_claimed("uid-7"), &bed.ledger);
    let whole = "10.0.0.0/16".parse().unwrap();
    claim.offers.push(Offer {
        range: "10.0.4.32/27".parse().unwrap(),
        node: NodeName::new("node-8"),
    });
    let made = ledger.claim_slice("blue", whole, &claim).await.unwrap();
    let name = made.unwrap().name;
    let client = cluster().await.client().await.unwrap();
    let leases: Api<Lease> = Api::namespaced(client, &claim::namespace(&bed.namespace));
    let words = async || {
        let annotations = leases.get(&name).await.unwrap().metadata.annotations;
        let text = annotations.unwrap()[SLICE].clone();
        serde_json::from_str::<serde_json::Value>(&text).unwrap()
    };
    let mut newer = words().await;
    newer["yields"] = json!(["10.0.4.0/28"]);
    newer["offers"][0]["since"] = json!(7);
    let patch = json!({ "metadata": { "annotations": { SLICE: newer.to_string() } } });
    let params = PatchParams::default();
    let patch = Patch::Merge(patch);
    leases.patch(&name, &params, &patch).await.unwrap();
    let object = ledger.slice_named(&name).await.unwrap().unwrap();
    claim.wants.push(NodeName::new("node-9"));
    let object = ledger.amend_slice(&object, &claim).await.unwrap().unwrap();
    claim.recalled = true;
    let amended = ledger.amend_slice(&object, &claim).await.unwrap();
    assert_eq!(amended.unwrap().claim, claim);
    let now = words().await;
    assert_eq!(now["yields"], newer["yields"], "{now}");
    assert_eq!(now["offers"][0]["since"], 7, "{now}");
    assert_eq!(
        (&now["wants"][0], &now["recalled"]),
        (&json!("node-9"), &json!(true))
    );
}

/// A Lease that can't be read hides no other of its node, and nobody forgets it (I5).
#[tokio::test(flavor = "multi_thread")]
async fn berth_15_24_one_unreadable_lease_hides_no_other() {
    let bed = Bed::new("one-odd-slice").await;
    let (claim, ledger) = (mk_claimed("uid-7"), &bed.ledger);
    let whole = "10.0.0.0/16".parse().unwrap();
    let odd = Claimed {
        range: "10.0.8.0/26".parse().unwrap(),
        ..claim.clone()
    };
    for one in [&claim, &odd] {
        let made = ledger.claim_slice("blue", whole, one).await.unwrap();
        assert!(made.is_some());
    }
    let client = cluster().await.client().await.unwrap();
    let leases: Api<Lease> = Api::namespaced(client, &claim::namespace(&bed.namespace));
    let patch = Patch::Merge(json!({ "metadata": { "annotations": { SLICE: "{}" } } }));
    let name = berth_api::names::slice("blue", odd.range);
    let params = PatchParams::default();
    leases.patch(&name, &params, &patch).await.unwrap();
    let list = ledger.list_slices(None, Some(&claim.node)).await.unwrap();
    assert_eq!(list.claims.len(), 1);
    assert_eq!(list.claims[0].claim, claim);
    assert_eq!(list.unreadable[0].slice, Some(odd.range));
    assert!(list.may_hide("blue", odd.range) && !list.may_hide("blue", claim.range));
    assert!(
        list.complete().is_err(),
        "those who need all of them are told"
    );
}
