//! Claims in a node's name that it may not hold: left by a CREATE from before a crash.

use std::collections::{BTreeMap, BTreeSet};

use berth_testkit::Fate;
use serde_json::json;

use crate::cni_call::{bare, fast_cut};
use crate::test_node::{Machine, Site, quick, until};
use crate::without_agent::{Bare, claim};

/// A CREATE that was sent before a crash arrives when the slice that the part was offered from has no holder any
/// more: the node that claims that slice has all of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_part_of_no_slice_is_not_adopted() {
    let site = Site::shared().await;
    let whole = "10.20.0.0/28";
    claim(&site, whole, "10.20.0.8/29", "late", 1, json!([])).await;
    let machine = Machine::start(&site, "late").await;
    let ipam = fast_cut(whole, "/28");
    machine.add("p", &ipam).await;
    let now = site.holders().await;
    let expected = BTreeMap::from([(whole.to_owned(), "late".to_owned())]);
    assert_eq!(now, expected);
}

/// A CREATE from before the range was cut differently arrives late: other nodes have slices in it.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_larger_than_the_cut_is_not_adopted() {
    let site = Site::shared().await;
    let whole = "10.23.0.0/27";
    let ipam = fast_cut(whole, "/28");
    let other = Machine::start(&site, "narrow").await;
    let first = bare(&other.add("p", &ipam).await);
    claim(&site, whole, whole, "wide", 1, json!([])).await;
    let machine = Machine::start(&site, "wide").await;
    let mut given = BTreeSet::from([first]);
    for n in 0..15 {
        let address = bare(&machine.add(&format!("p{n}"), &ipam).await);
        assert!(
            given.insert(address.clone()),
            "{address} is allocated twice"
        );
    }
    let now = site.holders().await;
    assert!(!now.contains_key(whole), "{now:?}");
}

/// The node deletes it; if another process has written it meanwhile, at the next pass.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_could_not_be_deleted_is_tried_again() {
    let site = Site::shared().await;
    let whole = "10.36.0.0/27";
    let ipam = fast_cut(whole, "/28");
    claim(&site, whole, whole, "stubborn", 1, json!([])).await;
    let node = Bare::start(&site, "stubborn", quick()).await;
    let mut written = false;
    node.relay.rule(move |asked| {
        let ends = asked.method == "DELETE" && asked.path.ends_with("/10.36.0.0-27");
        if ends && !std::mem::replace(&mut written, true) {
            return Fate::Refuse {
                code: 409,
                retry_after: None,
            };
        }
        Fate::Pass
    });
    node.add("p", &ipam).await;
    until("it is gone", async || {
        let now = site.holders().await;
        let gone = !now.contains_key(whole);
        gone.then_some(()).ok_or(format!("{now:?}"))
    })
    .await;
    let mut ends = node.relay.seen();
    ends.retain(|(asked, _)| asked.method == "DELETE");
    let codes: Vec<Option<u16>> = ends.iter().map(|(_, code)| *code).collect();
    assert_eq!(codes, [Some(409), Some(200)]);
}
