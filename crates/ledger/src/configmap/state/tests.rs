//! The document's rules: hand-written states, the tables of the recovery rules, and the pool in
//! memory as the model of what a commit does.

use std::sync::Arc;

use berth_core::{
    AddressRequest, Allocate, Answer, Block, Moment, Order, Release, Request, Space, plan,
    plan::{Outcome, Selector},
};
use proptest::prelude::*;

use super::*;
use crate::configmap::repair::repair;

fn address(ip: &str) -> Address {
    ip.parse().unwrap()
}

fn members(ips: &[&str]) -> Members {
    let places = ips.iter().enumerate().map(|(n, ip)| (address(ip), n));
    Some(places.collect())
}

/// A state with these allocations (`id@ip`) and this free list.
fn mk_document(allocated: &[&str], available: &[&str]) -> Document {
    let entries = allocated.iter().map(|entry| {
        let (id, ip) = entry.split_once('@').unwrap();
        let allocation = Allocation {
            allocation_id: id.into(),
            ip: ip.into(),
            node_name: "worker".into(),
            ..Allocation::default()
        };
        (id.to_string(), allocation)
    });
    Document {
        allocated: entries.collect(),
        available: available.iter().map(ToString::to_string).collect(),
        version: 7,
        ..Document::default()
    }
}

fn record_of(id: &str) -> Record {
    Record::new(Owner::new(id, ""), Handle::new(id)).with(attribute::NODE, "worker")
}

fn claim(id: &str, ip: &str) -> Change {
    Change::Allocate {
        address: address(ip),
        record: record_of(id),
    }
}

fn release(id: &str, ip: &str) -> Change {
    Change::Release {
        address: address(ip),
        expected: record_of(id),
        cooldown: None,
    }
}

fn now() -> Timestamp {
    "2026-04-23T09:56:00Z".parse().unwrap()
}

fn free(pool: &Pool) -> Vec<String> {
    let listing = pool.listing().unwrap();
    listing.iter().map(Address::to_string).collect()
}

#[test]
fn unknown_and_doubled_free_addresses_are_dropped_by_a_repair() {
    let pool_ips = members(&["192.168.1.10", "192.168.1.11", "192.168.1.12"]);
    let mut document = mk_document(
        &["a@192.168.1.10", "foreign@10.0.0.1"],
        &["192.168.1.11", "10.0.0.2", "192.168.1.11"],
    );
    let repairs = repair(&mut document, &pool_ips, now());
    assert_eq!(document.available, ["192.168.1.11", "192.168.1.12"]);
    assert_eq!(
        document.allocated.len(),
        2,
        "what is in use stays, foreign or not"
    );
    assert_eq!(repairs.dropped, ["10.0.0.2", "192.168.1.11"]);
    assert_eq!(repairs.added, [address("192.168.1.12")]);
    assert_eq!(document.version, 8);
    assert_eq!(document.last_updated, Some(now()));
    assert!(repair(&mut document, &pool_ips, now()).is_empty());
    assert_eq!(document.version, 8, "a sound state is not written again");
}

#[test]
fn changed_settings_keep_what_is_in_use() {
    let mut document = mk_document(&["a@192.168.1.10"], &["192.168.1.11", "192.168.1.12"]);
    let changed = members(&["192.168.1.10", "192.168.1.13", "192.168.1.14"]);
    repair(&mut document, &changed, now());
    assert_eq!(document.available, ["192.168.1.13", "192.168.1.14"]);
    assert_eq!(document.allocated.len(), 1);
    assert!(document.version > 7);

    // Taken out of the settings while in use: it stays, and is not free when it is released.
    let without = members(&["192.168.1.13", "192.168.1.14"]);
    repair(&mut document, &without, now());
    apply(
        &mut document,
        &without,
        &[release("a", "192.168.1.10")],
        now(),
    )
    .unwrap();
    assert_eq!(document.available, ["192.168.1.13", "192.168.1.14"]);
    assert!(document.allocated.is_empty());
}

#[test]
fn berth_15_9_an_address_in_another_form_is_the_same_vm() {
    let pool_ips = members(&["10.9.0.2", "10.9.0.3"]);
    let mut document = mk_document(&["a@::ffff:10.9.0.2"], &["10.9.0.2", "010.9.0.3"]);
    let found = pool(&document, &pool_ips);
    assert!(found.is_held(address("10.9.0.2")));
    assert_eq!(free(&found), ["10.9.0.3"]);
    let twice = apply(&mut document, &pool_ips, &[claim("b", "10.9.0.2")], now());
    assert_eq!(twice, Err(Obstacle::Mismatch(address("10.9.0.2"))));
    apply(&mut document, &pool_ips, &[claim("b", "10.9.0.3")], now()).unwrap();
    apply(&mut document, &pool_ips, &[release("a", "10.9.0.2")], now()).unwrap();
    assert_eq!(document.available, ["10.9.0.2"]);
}

#[test]
fn a_change_names_the_stage_that_it_ends() {
    let mut document = mk_document(&["a@10.0.0.1"], &[]);
    let stage = |name: &str| record_of("a").with(berth_core::STAGE, name);
    let update = |expected: Record, record: Record| Change::Update {
        address: address("10.0.0.1"),
        expected,
        record,
    };
    apply(
        &mut document,
        &None,
        &[update(record_of("a"), stage("one"))],
        now(),
    )
    .unwrap();
    let refused = [
        update(record_of("a"), stage("two")),
        update(stage("two"), record_of("a")),
        release("a", "10.0.0.1"),
    ];
    for change in refused {
        let made = apply(&mut document, &None, &[change], now());
        assert_eq!(made, Err(Obstacle::Mismatch(address("10.0.0.1"))));
    }
    apply(
        &mut document,
        &None,
        &[update(stage("one"), record_of("a"))],
        now(),
    )
    .unwrap();
    assert_eq!(document.allocated["a"].others.get("stage"), None);
}

#[test]
fn a_repair_puts_the_free_list_into_the_order_of_the_settings() {
    let pool_ips = members(&["10.0.0.3", "10.0.0.1", "10.0.0.2"]);
    let mut document = mk_document(&[], &["10.0.0.1", "10.0.0.2", "10.0.0.3"]);
    let repairs = repair(&mut document, &pool_ips, now());
    assert!(repairs.reordered);
    assert_eq!(document.available, ["10.0.0.3", "10.0.0.1", "10.0.0.2"]);
}

#[test]
fn a_claim_of_a_held_address_fails() {
    let mut document = mk_document(&["a@10.0.0.1"], &["10.0.0.2"]);
    let held = apply(&mut document, &None, &[claim("b", "10.0.0.1")], now());
    assert_eq!(held, Err(Obstacle::Mismatch(address("10.0.0.1"))));
    let again = apply(&mut document, &None, &[claim("a", "10.0.0.1")], now());
    assert_eq!(again, Err(Obstacle::Mismatch(address("10.0.0.1"))));
    let second = apply(&mut document, &None, &[claim("a", "10.0.0.2")], now());
    assert!(
        matches!(second, Err(Obstacle::SecondAddress { .. })),
        "{second:?}"
    );
}

#[test]
fn a_release_names_its_owner() {
    let mut document = mk_document(&["a@10.0.0.1", "b@10.0.0.2"], &[]);
    for wrong in [
        release("b", "10.0.0.1"),
        release("a", "10.0.0.2"),
        release("c", "10.0.0.1"),
    ] {
        let refused = apply(&mut document, &None, std::slice::from_ref(&wrong), now());
        assert!(matches!(refused, Err(Obstacle::Mismatch(_))), "{wrong:?}");
    }
    assert_eq!(document.allocated.len(), 2);
}

#[test]
fn one_address_with_two_owners_is_free_after_the_last() {
    let mut document = mk_document(&["a@10.0.0.1", "b@10.0.0.1"], &[]);
    let pool = pool(&document, &None);
    assert_eq!(pool.duplicate_holders().count(), 1, "the double is seen");
    apply(&mut document, &None, &[release("a", "10.0.0.1")], now()).unwrap();
    assert!(document.available.is_empty());
    apply(&mut document, &None, &[release("b", "10.0.0.1")], now()).unwrap();
    assert_eq!(document.available, ["10.0.0.1"]);
}

#[test]
fn foreign_free_addresses_are_kept_and_not_given() {
    let pool_ips = members(&["10.0.0.1", "10.0.0.2"]);
    let mut document = mk_document(&[], &["10.9.9.9", "10.0.0.2", "junk"]);
    assert_eq!(free(&pool(&document, &pool_ips)), ["10.0.0.2", "10.0.0.1"]);
    apply(&mut document, &pool_ips, &[claim("a", "10.0.0.2")], now()).unwrap();
    assert_eq!(document.available, ["10.9.9.9", "junk", "10.0.0.1"]);
}

#[test]
fn an_entry_without_an_address_is_a_stray() {
    let document = mk_document(&["a@nowhere", "b@10.0.0.1"], &["10.0.0.1", "10.0.0.2"]);
    let pool = pool(&document, &None);
    assert_eq!(pool.unparsed().len(), 1);
    assert_eq!(pool.unparsed()[0].key, "a");
    assert_eq!(
        free(&pool),
        ["10.0.0.2"],
        "what is in use is not free, whatever is listed"
    );
}

#[test]
fn an_update_changes_its_own_fields_and_keeps_the_others() {
    let text = r#"{"allocatedIPs":{"a":{"allocationID":"a","ip":"10.0.0.1","nodeName":"n","podName":"p",
        "allocatedAt":null,"zone":"eu","weight":3,"quarantinedAt":"2026-01-01T00:00:00Z"}}}"#;
    let mut document = Document::decode(text).unwrap();
    let seen = pool(&document, &None)
        .get(address("10.0.0.1"))
        .unwrap()
        .clone();
    assert_eq!(seen.attribute("zone"), Some("eu"));
    let mut next = seen.clone().with("cleanupError", "no answer");
    next.attributes.remove("quarantinedAt");
    let update = Change::Update {
        address: address("10.0.0.1"),
        expected: seen,
        record: next,
    };
    apply(&mut document, &None, &[update], now()).unwrap();
    let entry = &document.allocated["a"];
    assert_eq!(entry.others["zone"], "eu");
    assert_eq!(entry.others["weight"], 3);
    assert_eq!(entry.others["cleanupError"], "no answer");
    assert!(!entry.others.contains_key("quarantinedAt"));
    assert_eq!(entry.pod_namespace, None);

    // A writer that never saw a field does not remove it.
    let blind = Change::Update {
        address: address("10.0.0.1"),
        expected: record_of("a"),
        record: record_of("a"),
    };
    apply(&mut document, &None, &[blind], now()).unwrap();
    assert_eq!(document.allocated["a"].others["zone"], "eu");
}

#[test]
fn a_new_entry_has_every_field_of_the_document() {
    let mut document = mk_document(&[], &["10.0.0.1"]);
    let record = record_of("nginx-8b317899")
        .with(attribute::POD, "nginx")
        .with(attribute::NAMESPACE, "default");
    let change = Change::Allocate {
        address: address("10.0.0.1"),
        record,
    };
    apply(&mut document, &None, &[change], now()).unwrap();
    let want = r#"{
  "allocatedIPs": {
    "nginx-8b317899": {
      "allocationID": "nginx-8b317899",
      "ip": "10.0.0.1",
      "nodeName": "worker",
      "podName": "nginx",
      "podNamespace": "default",
      "allocatedAt": "2026-04-23T09:56:00Z"
    }
  },
  "availableIPs": [],
  "lastUpdated": "2026-04-23T09:56:00Z",
  "version": 8
}"#;
    assert_eq!(document.encode().unwrap(), want);
}

fn hashed(space: &Arc<Space>, id: &str) -> Request {
    let mut want = AddressRequest::any(space.clone());
    want.order = Order::HashIndex;
    Request::Allocate(Allocate {
        record: record_of(id),
        wants: vec![want],
    })
}

/// Plans on what the document says and commits to the document.
fn commit(document: &mut Document, members: &Members, requests: &[Request]) -> Outcome {
    let mut pool = pool(document, members);
    let outcome = plan(&mut pool, requests, Moment::default());
    if !outcome.changes.is_empty() {
        apply(document, members, &outcome.changes, now()).unwrap();
    }
    outcome
}

fn granted(outcome: &Outcome) -> Vec<String> {
    let answers = outcome.answers.iter().map(|answer| match answer {
        Answer::Granted(granted) => granted[0].address.to_string(),
        other => panic!("{other:?}"),
    });
    answers.collect()
}

#[test]
fn the_hash_gives_the_addresses_that_live_pools_give() {
    let ips = ["192.168.1.10", "192.168.1.11"];
    let space = Arc::new(Space::list(ips.map(|ip| Block::single(address(ip)))));
    let mut document = mk_document(&[], &ips);
    for (id, ip) in [("test-allocation-1", ips[0]), ("test-allocation-2", ips[1])] {
        let outcome = commit(&mut document, &members(&ips), &[hashed(&space, id)]);
        assert_eq!(granted(&outcome), [ip], "{id}");
    }

    let ips: Vec<String> = (10..=15).map(|n| format!("192.168.3.{n}")).collect();
    let ips: Vec<&str> = ips.iter().map(String::as_str).collect();
    let space = Arc::new(Space::list(ips.iter().map(|ip| Block::single(address(ip)))));
    let mut document = mk_document(&[], &ips);
    for (id, last) in [
        ("pod-1", 13),
        ("pod-2", 12),
        ("pod-3", 11),
        ("pod-4", 15),
        ("pod-5", 10),
    ] {
        let outcome = commit(&mut document, &members(&ips), &[hashed(&space, id)]);
        assert_eq!(granted(&outcome), [format!("192.168.3.{last}")], "{id}");
    }
    assert_eq!(document.available, ["192.168.3.14"]);
}

fn summary(pool: &Pool) -> (Vec<(Address, String)>, Vec<Address>) {
    let records = pool.records().map(|(a, r)| (a, r.handle.to_string()));
    (records.collect(), pool.listing().unwrap().to_vec())
}

proptest! {
    /// What a commit leaves in the document is what the engine has in memory.
    #[test]
    fn a_commit_does_to_the_document_what_it_does_to_the_pool(
        held in proptest::collection::btree_map(0u8..12, 0u8..20, 0..8),
        listed in proptest::collection::vec(0u8..16, 0..16),
        steps in proptest::collection::vec((any::<bool>(), 0u8..24), 1..12),
    ) {
        let ip = |n: u8| format!("10.0.0.{n}");
        let ips: Vec<String> = (0..12).map(ip).collect();
        let ips: Vec<&str> = ips.iter().map(String::as_str).collect();
        let members = members(&ips);
        let space = Arc::new(Space::list(ips.iter().map(|ip| Block::single(address(ip)))));
        let mut unique = BTreeSet::new();
        let allocated: Vec<String> = held
            .iter()
            .filter(|(_, id)| unique.insert(**id))
            .map(|(n, id)| format!("id-{id}@{}", ip(*n)))
            .collect();
        let allocated: Vec<&str> = allocated.iter().map(String::as_str).collect();
        let listed: Vec<String> = listed.into_iter().map(ip).collect();
        let listed: Vec<&str> = listed.iter().map(String::as_str).collect();
        let mut document = mk_document(&allocated, &listed);
        let requests: Vec<Request> = steps
            .into_iter()
            .map(|(claims, id)| {
                let id = format!("id-{id}");
                if claims {
                    return hashed(&space, &id);
                }
                Request::Release(Release {
                    selector: Selector::Handle { handle: Handle::new(id), part: None },
                    cooldown: std::time::Duration::ZERO,
                })
            })
            .collect();

        let mut model = pool(&document, &members);
        let outcome = plan(&mut model, &requests, Moment::default());
        if !outcome.changes.is_empty() {
            apply(&mut document, &members, &outcome.changes, now()).unwrap();
        }
        let text = document.encode().unwrap();
        let document = Document::decode(&text).unwrap();
        prop_assert_eq!(summary(&pool(&document, &members)), summary(&model));
    }
}
