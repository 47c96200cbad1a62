use berth_api::nmstate::{NodeIPPoolSpec, Range};
use proptest::prelude::*;
use serde_json::json;

use super::*;

fn space(cidr: &str, start: &str, end: &str) -> PoolSpace {
    let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let range = Range {
        cidr: cidr.to_owned(),
        start: some(start),
        end: some(end),
        ..Range::default()
    };
    PoolSpace::read(&NodeIPPoolSpec {
        range,
        ..Default::default()
    })
    .unwrap()
}

fn written(space: &PoolSpace, held: &BTreeSet<u64>, described: &[Described]) -> Value {
    let mut status = NodeIPPoolStatus::default();
    encode(&mut status, space, held, described);
    serde_json::to_value(status).unwrap()
}

fn mk_described(space: &PoolSpace, offset: u64, node: &str) -> Described {
    Described {
        offset,
        address: space.address(Offset(offset.into())).unwrap(),
        node: node.to_owned(),
        policy: "static-ip".to_owned(),
        capture: "address-from-traffic-1".to_owned(),
    }
}

#[test]
fn absent_is_not_emptied() {
    let space = space("10.10.10.0/24", "", "");
    let offsets = |status: Value| Recorded::read(&status, &space).offsets;
    assert_eq!(offsets(json!({})), Offsets::Absent);
    assert_eq!(offsets(Value::Null), Offsets::Absent);
    assert_eq!(
        offsets(json!({ "allocated-offsets": [] })),
        Offsets::Emptied
    );
    // In the other form too: the list that a person wrote counts.
    let bitmap =
        json!({ "allocated-offsets": [], "allocated-bitmap": "AQ==", "bitmap-format": LSB_FIRST });
    assert_eq!(offsets(bitmap), Offsets::Emptied);
    assert_eq!(
        written(&space, &BTreeSet::new(), &[]).get("allocated-offsets"),
        None
    );
}

#[test]
fn the_list_is_that_of_the_proposal() {
    let space = space("10.10.10.0/24", "10.10.10.1", "10.10.10.10");
    let held = BTreeSet::from([0, 1, 2, 4, 5, 7]);
    let status = written(&space, &held, &[]);
    assert_eq!(status["allocated-offsets"], json!([0, 1, 2, 4, 5, 7]));
    assert_eq!(
        (
            status["total"].clone(),
            status["used"].clone(),
            status["free"].clone()
        ),
        (json!(10), json!(6), json!(4))
    );
}

#[test]
fn above_4096_offsets_a_bitmap_replaces_the_list() {
    let space = space("10.0.0.0/16", "", "");
    let list = written(&space, &(0..4096).collect(), &[]);
    assert!(list.get("allocated-offsets").is_some() && list.get("allocated-bitmap").is_none());
    let bitmap = written(&space, &(0..4097).collect(), &[]);
    assert_eq!(bitmap.get("allocated-offsets"), None);
    let bytes = STANDARD
        .decode(bitmap["allocated-bitmap"].as_str().unwrap())
        .unwrap();
    // Lowest bit first, nothing after the last set bit.
    assert_eq!((bytes.len(), bytes[0], bytes[512]), (513, 0xff, 0x01));
}

#[test]
fn offsets_far_apart_stay_a_list() {
    let space = space("fd00::/64", "", "");
    let held: BTreeSet<u64> = (0..5000u64).map(|n| n << 40).collect();
    let status = written(&space, &held, &[]);
    assert!(status.get("allocated-bitmap").is_none());
    assert_eq!(Recorded::read(&status, &space).offsets, Offsets::Held(held));
}

/// The figure of the issue: an object that a write still carries.
#[test]
fn a_million_offsets_half_full_stay_under_300_kb() {
    let space = space("10.0.0.0/11", "10.0.0.1", "10.16.64.64");
    assert!(space.offsets() >= 1 << 20);
    let held: BTreeSet<u64> = (0..1u64 << 20).filter(|n| n % 2 == 0).collect();
    let name = "n".repeat(63);
    let described: Vec<Described> = held
        .iter()
        .take(2000)
        .map(|n| mk_described(&space, *n, &name))
        .collect();
    let status = written(&space, &held, &described);
    let size = status.to_string().len();
    assert!(size <= 300_000, "{size} bytes");
    assert!(!status["allocations"].as_array().unwrap().is_empty());
    assert_eq!(Recorded::read(&status, &space).offsets, Offsets::Held(held));
}

#[test]
fn what_can_not_be_read_is_set_aside_and_the_others_count() {
    let space = space("10.10.10.0/24", "10.10.10.1", "10.10.10.10");
    let cases = [
        (
            json!({ "allocated-offsets": [0, 4, 4] }),
            vec![0, 4],
            "[4]",
            "listed twice",
        ),
        (
            json!({ "allocated-offsets": [0, 10, 99] }),
            vec![0],
            "[10,99]",
            "last offset is 9",
        ),
        (
            json!({ "allocated-offsets": [0, -1, "x"] }),
            vec![0],
            r#"[-1,"x"]"#,
            "no offsets",
        ),
        (
            json!({ "allocated-offsets": "many" }),
            vec![],
            "many",
            "no list",
        ),
        (
            json!({ "allocated-bitmap": "AQ==", "bitmap-format": "roaring/1" }),
            vec![],
            "AQ==",
            "roaring/1",
        ),
        (
            json!({ "allocated-bitmap": "AQ==" }),
            vec![],
            "AQ==",
            "none",
        ),
        (
            json!({ "allocated-bitmap": "A", "bitmap-format": LSB_FIRST }),
            vec![],
            "A",
            "base64",
        ),
        (
            json!({ "allocated-bitmap": "AQQ=", "bitmap-format": LSB_FIRST }),
            vec![0],
            "[10]",
            "last offset is 9",
        ),
        (
            json!({ "allocated-offsets": [0], "allocations": [{ "ip": "10.10.10.2", "offset": 0, "node": "n", "policy": "p", "capture": "c" }] }),
            vec![0],
            "10.10.10.2",
            "the offset of 10.10.10.2 is 1",
        ),
        (
            json!({ "allocated-offsets": [0], "allocations": [{ "ip": "10.10.10.2", "offset": 1, "node": "n", "policy": "p", "capture": "c" }] }),
            vec![0],
            "10.10.10.2",
            "not allocated",
        ),
    ];
    for (status, held, value, why) in cases {
        let read = Recorded::read(&status, &space);
        assert_eq!(
            read.offsets,
            Offsets::Held(held.into_iter().collect()),
            "{status}"
        );
        assert_eq!(read.set_aside.len(), 1, "{status}");
        assert!(
            read.set_aside[0].value.contains(value),
            "{status}: {:?}",
            read.set_aside
        );
        assert!(
            read.set_aside[0].why.contains(why),
            "{status}: {:?}",
            read.set_aside
        );
    }
}

#[test]
fn a_thousand_allocations_are_described_and_no_more() {
    let space = space("10.0.0.0/16", "", "");
    let held: BTreeSet<u64> = (0..1500).collect();
    let described: Vec<Described> = held
        .iter()
        .rev()
        .map(|n| mk_described(&space, *n, "n"))
        .collect();
    let status = written(&space, &held, &described);
    let list = status["allocations"].as_array().unwrap().clone();
    assert_eq!((list.len(), list[0]["offset"].clone()), (1000, json!(0)));
    let read = Recorded::read(&status, &space);
    assert_eq!(read.set_aside, []);
    assert_eq!(read.described.len(), 1000);
}

proptest! {
    #[test]
    fn what_is_written_is_read(held in proptest::collection::btree_set(0u64..20_000, 0..6000)) {
        let space = space("10.0.0.0/15", "", "");
        let described: Vec<Described> = held.iter().take(50).map(|n| mk_described(&space, *n, "node")).collect();
        let read = Recorded::read(&written(&space, &held, &described), &space);
        let expected = if held.is_empty() { Offsets::Absent } else { Offsets::Held(held) };
        prop_assert_eq!(read, Recorded { offsets: expected, described, set_aside: Vec::new() });
    }
}
