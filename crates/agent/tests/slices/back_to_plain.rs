//! Back to the plain pool from slices of which parts were lent, while their nodes exist and after they are gone.

use std::collections::BTreeMap;
use std::time::Duration;

use berth_slices::SliceSettings;
use berth_testkit::Fate;
use serde_json::{Value, json};

use crate::cni_call::{bare, fast_cut};
use crate::test_node::{Machine, Site, quick, until};
use crate::without_agent::{Bare, claim, sliced};

/// Nothing is read unless something requests it.
fn seldom() -> SliceSettings {
    SliceSettings {
        look: Duration::from_secs(600),
        donor_wait: Duration::from_secs(20),
        ..quick()
    }
}

fn plain(whole: &str) -> Value {
    json!({ "range": whole, "enable_overlapping_ranges": false })
}

/// A controller leaves the claim of a node that is gone without a holder, because a part of it was lent.
async fn without_holder(site: &Site, whole: &str, part: &str, borrower: &str) {
    sliced(site, whole, 28).await;
    let lent = json!([{ "range": part, "node": borrower }]);
    claim(site, whole, whole, "", 4, lent).await;
}

async fn shows_no_claim(site: &Site) {
    until("no claim is left", async || {
        let now = site.holders().await;
        now.is_empty().then_some(()).ok_or(format!("{now:?}"))
    })
    .await;
}

/// The lender keeps its claim while the borrower has its part, and is notified when the part is returned.
#[tokio::test(flavor = "multi_thread")]
async fn a_lenders_claim_is_deleted_after_the_part_that_it_lent() {
    let site = Site::shared().await;
    let whole = "10.90.0.0/28";
    let lender = Machine::start_with(&site, "lender", seldom()).await;
    let borrower = Machine::start_with(&site, "borrower", seldom()).await;
    let other = Machine::start_with(&site, "plain-again", seldom()).await;
    let ipam = fast_cut(whole, "/28");
    let mut given = BTreeMap::new();
    for (machine, pod) in [(&lender, "a"), (&borrower, "b")] {
        given.insert(bare(&machine.add(pod, &ipam).await), format!("ns/{pod}"));
    }
    let holders = site.holders().await;
    assert_eq!(holders.len(), 2, "{holders:?}");
    given.insert(bare(&other.add("c", &plain(whole)).await), "ns/c".into());
    assert_eq!(given.len(), 3, "{given:?}");
    shows_no_claim(&site).await;
    site.shows("all are in the plain pool", &given).await;
    assert_eq!(site.entries("10.90.0.0-28").await.unwrap().len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_nodes_claim_is_deleted_when_no_node_has_a_part_of_it() {
    let site = Site::shared().await;
    let whole = "10.91.0.0/28";
    without_holder(&site, whole, "10.91.0.8/29", "gone-too").await;
    let machine = Machine::start_with(&site, "alone", seldom()).await;
    machine.add("p", &plain(whole)).await;
    shows_no_claim(&site).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_nodes_claim_is_deleted_after_the_part_that_it_lent() {
    let site = Site::shared().await;
    let (whole, part) = ("10.92.0.0/28", "10.92.0.8/29");
    without_holder(&site, whole, part, "lives").await;
    claim(&site, whole, part, "lives", 1, json!([])).await;
    let borrower = Machine::start_with(&site, "lives", seldom()).await;
    let other = Machine::start_with(&site, "asks", seldom()).await;
    let mut given = BTreeMap::new();
    let kept = bare(&borrower.add("a", &fast_cut(whole, "/28")).await);
    assert_eq!(kept, "10.92.0.8");
    given.insert(kept, "ns/a".to_owned());
    given.insert(bare(&other.add("b", &plain(whole)).await), "ns/b".into());
    shows_no_claim(&site).await;
    site.shows("all are in the plain pool", &given).await;
}

/// A node that was offered a part claims it while the range returns to plain: it finds that the offer is gone, and
/// holds nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_part_that_is_claimed_late_is_not_held() {
    let site = Site::shared().await;
    let (whole, part) = ("10.93.0.0/28", "10.93.0.8/29");
    without_holder(&site, whole, part, "late-taker").await;
    let taker = Bare::idle(&site, "late-taker", seldom()).await;
    taker.relay.rule(|asked| {
        let name = asked.body["metadata"]["name"].as_str();
        match asked.method == "POST" && name == Some("10.93.0.8-29") {
            true => Fate::Later(Duration::from_secs(4)),
            false => Fate::Pass,
        }
    });
    let other = Machine::start_with(&site, "earlier", seldom()).await;
    let (ipam, plain) = (fast_cut(whole, "/28"), plain(whole));
    let on_its_way = async {
        until("the part is about to be claimed", async || {
            let made = taker.made("/leases");
            let late = made
                .iter()
                .any(|(asked, _)| asked.body["metadata"]["name"] == "10.93.0.8-29");
            late.then_some(()).ok_or(format!("{made:?}"))
        })
        .await;
        other.add("p", &plain).await
    };
    let (late, given) = tokio::join!(taker.try_add("q", &ipam), on_its_way);
    match late {
        // After the plain pool was back, the range is sliced again: by a slice that excludes what the plain pool
        // allocated.
        Ok(address) => assert_ne!(address, bare(&given)),
        Err((code, why)) => assert_eq!(code, 11, "{why}"),
    }
    let now = site.holders().await;
    assert!(!now.contains_key(part), "{now:?}");
}
