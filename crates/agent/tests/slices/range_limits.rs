//! Two networks of one range, and two ranges of one network, each have their own limits.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::{Value, json};

use crate::cni_call::{bare, fast_cut};
use crate::test_node::{Machine, Site, quick};
use crate::without_agent::claim;

fn between(ipam: &Value, first: &str, last: &str) -> Value {
    let mut ipam = ipam.clone();
    ipam["range_start"] = json!(first);
    ipam["range_end"] = json!(last);
    ipam
}

/// A slice is claimed for the range that needs one: of four that fit the first range, one.
#[tokio::test(flavor = "multi_thread")]
async fn two_ranges_of_one_cidr_get_a_slice_each() {
    let site = Site::shared().await;
    let whole = "10.81.0.0/24";
    let mut ipam = between(&fast_cut(whole, "/28"), "10.81.0.1", "10.81.0.63");
    ipam["ipRanges"] =
        json!([{ "range": whole, "range_start": "10.81.0.200", "range_end": "10.81.0.203" }]);
    let machine = Machine::start(&site, "two-ranges").await;
    for n in 0..4 {
        let given = machine.try_add(&format!("p{n}"), &ipam).await.unwrap();
        let last = |place: usize| -> u8 {
            bare(&given[place])
                .rsplit('.')
                .next()
                .unwrap()
                .parse()
                .unwrap()
        };
        assert!((1..64).contains(&last(0)), "{given:?}");
        assert!((200..204).contains(&last(1)), "{given:?}");
    }
    let slots = site.holders().await;
    assert_eq!(slots.len(), 2, "{slots:?}");
    // The second one is full: no slice of the first one helps.
    let (code, why) = machine.try_add("one-too-many", &ipam).await.unwrap_err();
    assert_eq!(code, 11, "{why}");
    let slots = site.holders().await;
    assert_eq!(slots.len(), 2, "{slots:?}");
}

/// A network with narrow limits takes over a slice of which a part is another node's: a network of the same range
/// without limits allocates nothing of that part either.
#[tokio::test(flavor = "multi_thread")]
async fn a_part_of_another_node_is_excluded_for_every_network_of_the_range() {
    let site = Site::shared().await;
    let (whole, part) = ("10.82.0.0/28", "10.82.0.8/29");
    let lent = json!([{ "range": part, "node": "other" }]);
    claim(&site, whole, whole, "", 4, lent).await;
    claim(&site, whole, part, "other", 1, json!([])).await;
    let mut settings = quick();
    settings.donor_wait = Duration::from_millis(300);
    let machine = Machine::start_with(&site, "narrow-heir", settings).await;
    let wide = fast_cut(whole, "/28");
    let narrow = between(&wide, "10.82.0.1", "10.82.0.6");
    let mut given = BTreeSet::from([bare(&machine.add("narrow", &narrow).await)]);
    for n in 0..6 {
        given.insert(bare(&machine.add(&format!("p{n}"), &wide).await));
    }
    let expected: BTreeSet<String> = (1..8).map(|n| format!("10.82.0.{n}")).collect();
    assert_eq!(given, expected);
    let (code, why) = machine.try_add("one-too-many", &wide).await.unwrap_err();
    assert_eq!(code, 11, "{why}");
}

/// An address that one network would allocate is requested by name through another one, which excludes it.
#[tokio::test(flavor = "multi_thread")]
async fn a_named_address_is_allocated_only_by_the_node_with_its_slice() {
    let site = Site::shared().await;
    let whole = "10.83.0.0/24";
    let wide = fast_cut(whole, "/28");
    let machine = Machine::start(&site, "namer").await;
    machine.add("first", &wide).await;
    let slots: BTreeMap<String, String> = site.holders().await;
    let held: Vec<berth_core::Prefix> = slots.keys().map(|slot| slot.parse().unwrap()).collect();
    let is_held = |address: &str| {
        let address = address.parse().unwrap();
        held.iter().any(|slot| slot.contains(address))
    };
    let mut inside = (20..250).map(|n| format!("10.83.0.{n}"));
    let elsewhere = inside.find(|address| !is_held(address)).unwrap();
    let mut narrow = between(&wide, "10.83.0.1", "10.83.0.3");
    narrow["addresses"] = json!([{ "address": format!("{elsewhere}/24") }]);
    let (_, why) = machine.try_add("named", &narrow).await.unwrap_err();
    assert!(why.contains("in no slice of 10.83.0.0/24"), "{why}");
}
