use berth_core::plan::Selector;
use berth_core::{AddressRequest, Allocate, Answer, Release, Request, Space, plan};
use serde_json::json;

use super::*;

fn object(status: Value) -> Value {
    json!({
        "metadata": { "name": "traffic-1", "uid": "u", "generation": 1, "resourceVersion": "7" },
        "spec": {
            "range": { "cidr": "10.10.10.0/24", "start": "10.10.10.1", "end": "10.10.10.10", "exclude": ["10.10.10.4"] },
            "reservations": { "node09": "10.10.10.9" },
        },
        "status": status,
    })
}

fn open() -> Value {
    object(
        json!({ "unknown": 1, "conditions": [{ "type": "Available", "status": "True", "reason": "ReconciledPool" }] }),
    )
}

fn at(text: &str) -> Address {
    text.parse().unwrap()
}

fn claim(address: &str, node: &str) -> Change {
    Change::Allocate {
        address: at(address),
        record: Holder::new(node, "static-ip", "a").record(),
    }
}

fn now() -> Timestamp {
    "2026-11-18T00:00:00Z".parse().unwrap()
}

#[test]
fn what_is_written_is_read_back_and_other_fields_stay() {
    let written = apply(&open(), &[claim("10.10.10.1", "node01")], now()).unwrap();
    assert_eq!(written["status"]["unknown"], 1);
    assert_eq!(written["status"]["allocated-offsets"], json!([0]));
    assert_eq!(
        written["status"]["allocations"],
        json!([{ "ip": "10.10.10.1", "offset": 0, "node": "node01", "policy": "static-ip", "capture": "a" }])
    );
    assert_eq!(written["status"]["free"], 8);
    let read = decode(&written).unwrap();
    let record = read.pool.get(at("10.10.10.1")).unwrap();
    assert_eq!(*record, Holder::new("node01", "static-ip", "a").record());
}

#[test]
fn a_held_address_is_a_mismatch() {
    let written = apply(&open(), &[claim("10.10.10.1", "node01")], now()).unwrap();
    let error = apply(&written, &[claim("10.10.10.1", "node02")], now()).unwrap_err();
    assert!(matches!(error, ChangeError::Mismatch { .. }), "{error}");
}

#[test]
fn what_the_spec_forbids_is_refused_whoever_planned_it() {
    for (address, node, word) in [
        ("10.10.10.4", "node01", "excluded"),
        ("10.10.10.11", "node01", "outside"),
        ("10.10.10.9", "node01", "reserved for node node09"),
    ] {
        let error = apply(&open(), &[claim(address, node)], now()).unwrap_err();
        assert!(error.to_string().contains(word), "{error}");
    }
    apply(&open(), &[claim("10.10.10.9", "node09")], now()).unwrap();
}

/// A new pool, one that is rebuilt and one that can't be read take no new owner; what an enactment names is taken back.
#[test]
fn a_pool_that_is_not_reconciled_takes_no_new_owner() {
    let closed = |reason: &str| {
        object(
            json!({ "conditions": [{ "type": "Available", "status": "False", "reason": reason }] }),
        )
    };
    let back = Change::Allocate {
        address: at("10.10.10.4"),
        record: Holder::new("node01", "static-ip", "a")
            .record()
            .with(TAKEN_BACK, "true"),
    };
    for pool in [
        object(json!({})),
        closed("ReconcilingPool"),
        closed("UnsyncronizedIPPool"),
        closed("OverlappingIPPool"),
    ] {
        let error = apply(&pool, &[claim("10.10.10.1", "node01")], now()).unwrap_err();
        assert!(matches!(error, ChangeError::Closed { .. }), "{error}");
        apply(&pool, std::slice::from_ref(&back), now()).unwrap();
    }
    for status in [
        json!({ "allocated-offsets": [] }),
        json!({ "allocated-offsets": [3, 3] }),
        json!({ "allocated-offsets": [99] }),
    ] {
        let mut pool = open();
        pool["status"]["allocated-offsets"] = status["allocated-offsets"].clone();
        let changes = [back.clone()];
        let error = apply(&pool, &changes, now()).unwrap_err();
        assert!(
            matches!(error, ChangeError::Closed { .. }),
            "{status}: {error}"
        );
    }
}

#[test]
fn a_released_address_cools_down_for_its_last_owner() {
    let written = apply(&open(), &[claim("10.10.10.1", "node01")], now()).unwrap();
    let mut pool = decode(&written).unwrap().pool;
    let record = Holder::new("node01", "static-ip", "a").record();
    let release = Request::Release(Release {
        selector: Selector::Address {
            address: at("10.10.10.1"),
            holder: record.clone(),
        },
        cooldown: std::time::Duration::from_secs(600),
    });
    let outcome = plan(&mut pool, &[release], moment(now()));
    let released = apply(&written, &outcome.changes, now()).unwrap();
    assert_eq!(released["status"].get("allocated-offsets"), None);
    assert_eq!(released["status"]["cooling-down"][0]["node"], "node01");
    let space = std::sync::Arc::new(Space::only(at("10.10.10.1")));
    let of = |node: &str| {
        let mut pool = decode(&released).unwrap().pool;
        let record = Holder::new(node, "static-ip", "a").record();
        let wants = vec![AddressRequest::any(std::sync::Arc::clone(&space))];
        plan(
            &mut pool,
            &[Request::Allocate(Allocate { record, wants })],
            moment(now()),
        )
        .answers
    };
    assert!(matches!(of("node02")[0], Answer::Refused(_)));
    assert!(matches!(of("node01")[0], Answer::Granted(_)));
}

#[test]
fn an_offset_without_a_description_is_held() {
    let mut pool = open();
    pool["status"]["allocated-offsets"] = json!([0, 2]);
    let read = decode(&pool).unwrap();
    assert_eq!(read.pool.len(), 2);
    let error = apply(&pool, &[claim("10.10.10.1", "node01")], now()).unwrap_err();
    assert!(matches!(error, ChangeError::Mismatch { .. }));
}

/// A description is what says whose an allocation is until an enactment claims it: the next ones do not push it out (I1).
#[test]
fn above_a_thousand_allocations_a_new_one_is_described() {
    let mut pool = open();
    pool["spec"] = json!({ "range": { "cidr": "10.10.0.0/16" } });
    let allocate = |from: usize, to: usize| {
        let name = |n: usize| {
            (
                format!("10.10.{}.{}", n / 200, n % 200 + 1),
                format!("node{n}"),
            )
        };
        let all = (from..to).map(name);
        all.map(|(address, node)| claim(&address, &node))
            .collect::<Vec<Change>>()
    };
    let next = apply(&pool, &allocate(0, 1_200), now()).unwrap();
    let next = apply(&next, &allocate(1_200, 1_201), now()).unwrap();
    let read = decode(&next).unwrap();
    assert_eq!(read.recorded.described.len(), 1_201);
    assert_eq!(
        read.pool.get(at("10.10.6.1")).unwrap().attribute(NODE),
        Some("node1200")
    );
    let error = apply(&pool, &allocate(0, 4_001), now()).unwrap_err();
    assert_eq!(error, ChangeError::Descriptions);
}
