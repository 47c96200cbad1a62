//! Slices that return to the node that they were cut from, and single addresses that are transferred back and forth.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::time::Duration;

use berth_api::berth::SliceCall;
use berth_slices::SliceSettings;
use futures::future::join_all;
use kube::api::DeleteParams;
use serde_json::json;

use crate::cni_call::{bare, fast_cut};
use crate::test_node::{Machine, Site, quick, until};
use crate::without_agent::{amend, claim, pass};

/// All claims, for the message of a failure.
async fn claims_of(site: &Site) -> String {
    let claims = site.claims().await.into_iter();
    let specs = claims.map(|one| format!("{:?}", one.spec));
    specs.collect::<Vec<_>>().join("\n")
}

/// A node has lent the first address of its slice, and the borrower has transferred it back: the part starts where
/// the slice starts, and both are held.
#[tokio::test(flavor = "multi_thread")]
async fn a_part_that_came_back_is_held_beside_what_it_was_cut_from() {
    let site = Site::shared().await;
    let whole = "10.19.0.0/27";
    let lent = json!([{ "range": "10.19.0.16/32", "node": "borrower" }]);
    claim(&site, whole, "10.19.0.16/28", "lender", 1, lent).await;
    claim(&site, whole, "10.19.0.16/32", "lender", 2, json!([])).await;
    claim(&site, whole, "10.19.0.0/28", "silent", 1, json!([])).await;
    let mut settings = quick();
    settings.donor_wait = Duration::from_millis(300);
    let mut machine = Machine::start_with(&site, "lender", settings).await;
    let ipam = fast_cut(whole, "/28");
    let mut given = BTreeMap::new();
    for n in 0..15 {
        if n == 8 {
            machine.stop().await;
            machine.run().await;
        }
        let pod = format!("p{n}");
        given.insert(bare(&machine.add(&pod, &ipam).await), format!("ns/{pod}"));
    }
    // .31 is the range's last.
    let expected: BTreeSet<String> = (16..31).map(|n| format!("10.19.0.{n}")).collect();
    assert_eq!(given.keys().cloned().collect::<BTreeSet<_>>(), expected);
    site.shows("published", &given).await;
    let (code, why) = machine.try_add("one-too-many", &ipam).await.unwrap_err();
    assert_eq!(code, 11, "{why}");
}

/// The first node that slices a range decides its slice size, regardless of other nodes' settings.
#[tokio::test(flavor = "multi_thread")]
async fn a_range_is_cut_as_its_annotation_says() {
    let site = Site::shared().await;
    let ipam = |size: &str| fast_cut("10.24.0.0/26", size);
    for (node, size) in [("cut-a", "/28"), ("cut-b", "/27"), ("cut-c", "/29")] {
        let machine = Machine::start(&site, node).await;
        machine.add("p", &ipam(size)).await;
    }
    let now = site.holders().await;
    let sizes: BTreeSet<&str> = now
        .keys()
        .filter_map(|range| range.rsplit('/').next())
        .collect();
    assert_eq!((now.len(), sizes), (3, BTreeSet::from(["28"])), "{now:?}");
}

/// A node had borrowed an address of a part, and lost it; then it takes over the slice that the part was cut from:
/// the address still belongs to the part's borrower.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_part_is_not_allocated_as_part_of_a_slice_taken_over() {
    let site = Site::shared().await;
    let whole = "10.22.0.0/28";
    let half = json!([{ "range": "10.22.0.8/29", "node": "other" }]);
    claim(&site, whole, whole, "", 4, half).await;
    let one = json!([{ "range": "10.22.0.14/32", "node": "unlucky" }]);
    claim(&site, whole, "10.22.0.8/29", "other", 1, one).await;
    claim(&site, whole, "10.22.0.14/32", "unlucky", 1, json!([])).await;
    let mut settings = quick();
    settings.donor_wait = Duration::from_millis(300);
    let machine = Machine::start_with(&site, "unlucky", settings).await;
    let ipam = fast_cut(whole, "/28");
    assert_eq!(bare(&machine.add("first", &ipam).await), "10.22.0.14");
    machine.del("first", &ipam).await;
    let claims = site.claim_api();
    let params = DeleteParams::default();
    claims.delete("10.22.0.14-32", &params).await.unwrap();
    amend(&site, "10.22.0.8/29", |claim| claim.offers = Vec::new()).await;
    site.create::<SliceCall>(json!({ "metadata": { "name": "unlucky" }, "spec": { "call": "1" } }))
        .await;
    until("the node knows that it was lost", async || {
        let held = machine.slices_held("10.22.0.0-28").await;
        (held == 0).then_some(()).ok_or(format!("{held}"))
    })
    .await;
    let mut given = BTreeSet::new();
    for n in 0..7 {
        given.insert(bare(&machine.add(&format!("p{n}"), &ipam).await));
    }
    let expected: BTreeSet<String> = (1..8).map(|n| format!("10.22.0.{n}")).collect();
    assert_eq!(given, expected);
    let more = machine.try_add("one-too-many", &ipam).await;
    assert_eq!(more.map_err(|(code, _)| code), Err(11));
}

/// A node transfers its slices before it has published that their pods are gone: entries of ended pods are neither
/// shown, nor held when a slice comes back.
#[tokio::test(flavor = "multi_thread")]
async fn addresses_released_last_are_not_held_when_their_slice_comes_back() {
    let site = Site::shared().await;
    let mut slow = quick();
    slow.gather = Duration::from_secs(5);
    slow.gather_busy = Duration::from_secs(5);
    slow.gather_most = Duration::from_secs(5);
    let giver = Machine::start_with(&site, "late-giver", slow).await;
    let taker = Machine::start(&site, "late-taker").await;
    let ipam = fast_cut("10.25.0.0/30", "/32");
    for pod in ["p1", "p2"] {
        giver.add(pod, &ipam).await;
    }
    until("published", async || {
        let now = site.published().await;
        (now.len() == 2).then_some(()).ok_or(format!("{now:?}"))
    })
    .await;
    for pod in ["p1", "p2"] {
        giver.del(pod, &ipam).await;
    }
    let passed = bare(&taker.add("q", &ipam).await);
    let there = BTreeMap::from([(passed, "ns/q".to_owned())]);
    site.shows("only who is there is shown", &there).await;
    taker.del("q", &ipam).await;
    for pod in ["r1", "r2"] {
        until("both are to be had again", async || {
            let got = giver.try_add(pod, &ipam).await;
            got.map(|_| ())
                .map_err(|(code, why)| format!("{code}: {why}"))
        })
        .await;
    }
}

/// A node transfers a slice to one that requested it and has stopped waiting: it is notified, and holds it.
#[tokio::test(flavor = "multi_thread")]
async fn a_late_transfer_is_noticed() {
    let site = Site::shared().await;
    let whole = "10.26.0.0/30";
    let settings = SliceSettings {
        donor_wait: Duration::from_millis(200),
        look: Duration::from_secs(600),
        ..quick()
    };
    claim(&site, whole, "10.26.0.2/32", "slow-donor", 1, json!([])).await;
    claim(&site, whole, "10.26.0.1/32", "slow-donor", 1, json!([])).await;
    let machine = Machine::start_with(&site, "passed", settings).await;
    let ipam = fast_cut(whole, "/32");
    let (code, why) = machine.try_add("p", &ipam).await.unwrap_err();
    assert_eq!(code, 11, "{why}");
    amend(&site, "10.26.0.1/32", |claim| pass(claim, "passed")).await;
    let claims = site.claim_api();
    let call = json!({ "metadata": { "name": "passed" }, "spec": { "call": "7 10.26.0.1-32" } });
    site.create::<SliceCall>(call).await;
    until("it is taken on", async || {
        let now = claims.get("10.26.0.1-32").await.unwrap();
        let taken = !now.spec.node_uid.is_empty();
        taken.then_some(()).ok_or(format!("{:?}", now.spec))
    })
    .await;
    assert_eq!(bare(&machine.add("p", &ipam).await), "10.26.0.1");
}

/// Pods of three nodes start and end where there are fewer addresses than they request: parts are lent, transferred
/// and borrowed back, and at no time two pods have one address.
#[tokio::test(flavor = "multi_thread")]
async fn an_address_that_is_transferred_repeatedly_has_one_owner() {
    let site = Site::shared().await;
    let mut settings = quick();
    settings.idle = Duration::from_millis(500);
    settings.look = Duration::from_millis(300);
    settings.offer_wait = Duration::from_millis(300);
    settings.donor_wait = Duration::from_millis(500);
    let mut machines = Vec::new();
    for node in ["hand-a", "hand-b", "hand-c"] {
        machines.push(Machine::start_with(&site, node, settings.clone()).await);
    }
    let ipam = fast_cut("10.21.0.0/29", "/30");
    let (given, times) = (Mutex::new(BTreeMap::new()), Mutex::new(0));
    let workers = (0..9).map(|worker| {
        let (machine, ipam, given, times) = (&machines[worker % 3], &ipam, &given, &times);
        async move {
            for round in 0..6 {
                let pod = format!("p{worker}-{round}");
                if let Ok(got) = machine.try_add(&pod, ipam).await {
                    let address = bare(&got[0]);
                    let other = given.lock().unwrap().insert(address.clone(), pod.clone());
                    assert_eq!(other, None, "{address} is {pod}'s too");
                    *times.lock().unwrap() += 1;
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    given.lock().unwrap().remove(&address);
                }
                machine.del(&pod, ipam).await;
            }
        }
    });
    join_all(workers).await;
    let times = times.into_inner().unwrap();
    assert!(times > 6, "{times} pods got an address");
    // Nothing leaks on the way: one node gets all of them.
    for n in 0..6 {
        let pod = format!("last-{n}");
        until("every address is to be had", async || {
            let got = machines[0].try_add(&pod, &ipam).await;
            match got {
                Ok(_) => Ok(()),
                Err((code, why)) => {
                    let claims = claims_of(&site).await;
                    let rows = join_all(machines.iter().map(Machine::rows)).await;
                    Err(format!("{code}: {why}; {claims}\n{}", rows.join("\n")))
                }
            }
        })
        .await;
    }
}
