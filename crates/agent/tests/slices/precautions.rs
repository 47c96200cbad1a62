//! Precautions that the model showed to be needed (docs/decisions/0006-slices.md, "The engine did less than the text"),
//! each in the state in which it counts. Those of what was lost are in `hands`, that of a part of nothing in
//! `leftovers`.
//!
//! The range is one slice, 10.x.0.0/27, with 30 usable addresses; a part of it was lent.

use std::collections::BTreeSet;
use std::time::Duration;

use berth_slices::SliceSettings;
use berth_testkit::Fate;
use serde_json::{Value, json};

use crate::cni_call::fast_cut;
use crate::test_node::{Site, quick, until};
use crate::without_agent::{Bare, amend, answered, claim, pass, want};

fn ipam(whole: &str) -> Value {
    fast_cut(whole, "/27")
}

fn lent(part: &str, node: &str) -> Value {
    json!([{ "range": part, "node": node }])
}

/// Nothing is read unless something requests it.
fn seldom() -> SliceSettings {
    SliceSettings {
        look: Duration::from_secs(600),
        donor_wait: Duration::from_millis(300),
        ..quick()
    }
}

/// Allocates for so many pods; returns the last bytes of their addresses.
async fn fill(node: &Bare, name: &str, count: u8, ipam: &Value) -> BTreeSet<u8> {
    let mut given = BTreeSet::new();
    for n in 0..count {
        let address = node.add(&format!("{name}{n}"), ipam).await;
        let last = address.rsplit('.').next().unwrap().parse().unwrap();
        assert!(given.insert(last), "{address} twice");
    }
    given
}

/// `EmptyFirst`: a node that has lent a part of a part takes over the slice around it. What it has lent is set aside
/// at every moment, under the part that it was lent as: other nodes allocate from it while this node allocates.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_lent_stays_set_aside_while_the_slice_around_it_is_taken_over() {
    let site = Site::shared().await;
    let whole = "10.30.0.0/27";
    let (part, inner) = ("10.30.0.16/29", "10.30.0.20/30");
    claim(&site, whole, whole, "", 4, lent(part, "heir")).await;
    claim(&site, whole, part, "heir", 1, lent(inner, "other")).await;
    claim(&site, whole, inner, "other", 1, json!([])).await;
    let node = Bare::start(&site, "heir", seldom()).await;
    assert_eq!(
        fill(&node, "a", 4, &ipam(whole)).await,
        (16..20).collect::<BTreeSet<u8>>()
    );
    node.local.watch(whole, inner, &[inner]);
    // .0 is the network's own, .31 its last.
    let rest: BTreeSet<u8> = (1..16).chain(24..31).collect();
    assert_eq!(fill(&node, "b", 22, &ipam(whole)).await, rest);
    let more = node.try_add("one-too-many", &ipam(whole)).await;
    assert_eq!(more.map_err(|(code, _)| code), Err(11));
    assert_eq!(node.local.breaches(), [""; 0]);
}

/// The same with the slice inside: its lender, which allocates from the slice around it, takes it over from a lost
/// node that has lent a part of it.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_lent_stays_set_aside_while_its_own_slice_is_taken_over() {
    let site = Site::shared().await;
    let whole = "10.31.0.0/27";
    let (part, inner) = ("10.31.0.16/29", "10.31.0.20/30");
    claim(&site, whole, whole, "owner", 1, lent(part, "gone")).await;
    claim(&site, whole, part, "", 4, lent(inner, "other")).await;
    claim(&site, whole, inner, "other", 1, json!([])).await;
    let node = Bare::start(&site, "owner", seldom()).await;
    let first: BTreeSet<u8> = (1..16).chain(24..31).collect();
    assert_eq!(fill(&node, "a", 22, &ipam(whole)).await, first);
    let out: BTreeSet<u8> = last_bytes(&node, whole, inner).await;
    assert_eq!(out, BTreeSet::new(), "as all of {part} until then");
    node.local.watch(whole, inner, &[part, inner]);
    assert_eq!(
        fill(&node, "b", 4, &ipam(whole)).await,
        (16..20).collect::<BTreeSet<u8>>()
    );
    assert_eq!(
        last_bytes(&node, whole, inner).await,
        (20..24).collect::<BTreeSet<u8>>()
    );
    let more = node.try_add("one-too-many", &ipam(whole)).await;
    assert_eq!(more.map_err(|(code, _)| code), Err(11));
    assert_eq!(node.local.breaches(), [""; 0]);
}

/// Last bytes of the addresses that are set aside for that part.
async fn last_bytes(node: &Bare, whole: &str, part: &str) -> BTreeSet<u8> {
    let rows = node
        .local
        .out_of_use(whole.parse().unwrap())
        .await
        .into_iter();
    let rows = rows.filter(|(_, of)| of == part);
    let last = |address: String| address.rsplit('.').next().unwrap().parse().unwrap();
    rows.map(|(address, _)| last(address.to_string())).collect()
}

/// `OfferAgain`: a part that was transferred back is in use, but the node could not record that it holds it. Another
/// node requests a part of the slice around it, in which nothing else is free: a part that is already offered is not
/// offered twice.
#[tokio::test(flavor = "multi_thread")]
async fn a_part_that_came_back_and_is_not_held_yet_is_not_offered_again() {
    let site = Site::shared().await;
    let (whole, part) = ("10.32.0.0/27", "10.32.0.16/29");
    claim(&site, whole, whole, "lender", 1, lent(part, "borrower")).await;
    claim(&site, whole, part, "borrower", 1, json!([])).await;
    let settings = SliceSettings {
        donor_wait: Duration::from_secs(30),
        ..seldom()
    };
    let node = Bare::start(&site, "lender", settings).await;
    fill(&node, "a", 22, &ipam(whole)).await;
    node.local.refuse_holdings();
    let (refused, ()) = tokio::join!(
        async { node.try_add("late", &ipam(whole)).await },
        pass_on(&site, part, "lender")
    );
    assert!(refused.is_err(), "{refused:?}");
    assert_eq!(node.local.refused(), Some(Vec::new()), "it is in use");
    want(&site, whole, "asker", "lender").await;
    let before = [(part.to_owned(), "borrower".to_owned())];
    assert_eq!(answered(&site, whole).await, before);
    assert_eq!(
        fill(&node, "b", 8, &ipam(whole)).await,
        (16..24).collect::<BTreeSet<u8>>()
    );
}

/// Answers a request for a part by transferring it, as its node does.
async fn pass_on(site: &Site, part: &str, taker: &str) {
    let claims = site.claim_api();
    let name = part.replace('/', "-");
    until("asked", async || {
        let now = claims.get(&name).await.unwrap().spec;
        let asked = now.wants.iter().any(|want| want == taker);
        asked.then_some(()).ok_or(format!("{now:?}"))
    })
    .await;
    amend(site, part, |claim| pass(claim, taker)).await;
}

/// `KeepClosed`: an address that came back is about to be transferred: it is set aside in the slice around it, and
/// its holding could not be removed. It is still held, so it is allocated again.
#[tokio::test(flavor = "multi_thread")]
async fn a_slice_that_could_not_be_transferred_is_allocated_from_again() {
    let site = Site::shared().await;
    let (whole, part) = ("10.33.0.0/27", "10.33.0.20/32");
    claim(&site, whole, whole, "keeper", 1, lent(part, "borrower")).await;
    claim(&site, whole, part, "keeper", 2, json!([])).await;
    let node = Bare::start(&site, "keeper", seldom()).await;
    let first: BTreeSet<u8> = (1..11).collect();
    assert_eq!(fill(&node, "a", 10, &ipam(whole)).await, first);
    node.local.refuse_holdings();
    want(&site, part, "asker", "keeper").await;
    let out = until("it does not get out", async || {
        let refused = node.local.refused();
        refused.ok_or("not asked yet".to_owned())
    })
    .await;
    assert_eq!(out, [("10.33.0.20".parse().unwrap(), part.to_owned())]);
    let all: BTreeSet<u8> = (11..31).collect();
    let mut given = fill(&node, "b", 19, &ipam(whole)).await;
    let last = until("the last one is allocated", async || {
        let last = node.try_add("last", &ipam(whole)).await;
        last.map_err(|refused| format!("{refused:?}"))
    })
    .await;
    given.insert(last.rsplit('.').next().unwrap().parse().unwrap());
    assert_eq!(given, all);
}

/// `OuterFirst`: a part of a part that came back was set aside, and the offer of it was never written. The slice
/// around both still offers all of the part, to a node that has returned it: that offer is irrelevant here.
#[tokio::test(flavor = "multi_thread")]
async fn an_offer_that_was_never_made_is_checked_on_the_smallest_slice() {
    let site = Site::shared().await;
    let (whole, part) = ("10.34.0.0/27", "10.34.0.16/29");
    claim(&site, whole, whole, "inner", 1, lent(part, "borrower")).await;
    claim(&site, whole, part, "inner", 2, json!([])).await;
    let node = Bare::start(&site, "inner", seldom()).await;
    let first: BTreeSet<u8> = (1..6).collect();
    assert_eq!(fill(&node, "a", 5, &ipam(whole)).await, first);
    let mut cut = false;
    node.relay.rule(move |asked| {
        let words = asked.body["metadata"]["annotations"]["berth.dev/slice"].as_str();
        let offers = words.is_some_and(|words| words.contains("offers"));
        let is_offer = asked.method == "PATCH" && asked.path.ends_with("10.34.0.16-29") && offers;
        if is_offer && !std::mem::replace(&mut cut, true) {
            return Fate::Cut;
        }
        Fate::Pass
    });
    want(&site, part, "asker", "inner").await;
    until("the offer is lost on its way", async || {
        let seen = node.relay.seen().into_iter();
        let mut lost = seen.filter(|(asked, code)| asked.method == "PATCH" && code.is_none());
        lost.next().map(|_| ()).ok_or("not made yet".to_owned())
    })
    .await;
    until("nothing is out of use", async || {
        let out = node.local.out_of_use(whole.parse().unwrap()).await;
        out.is_empty().then_some(()).ok_or(format!("{out:?}"))
    })
    .await;
    let rest: BTreeSet<u8> = (6..31).collect();
    assert_eq!(fill(&node, "b", 25, &ipam(whole)).await, rest);
}
