//! Changes as one JSON patch with a `test` before each step.
//!
//! The tests are per address, not on the resourceVersion: writers of different addresses do not
//! disturb each other, and a writer that does test the resourceVersion (whereabouts) sees ours.
//! `test` of a value `null` holds when nothing is there. An entry is tested and changed field by
//! field, so that fields which Berth does not know neither fail the test nor get lost (I7).

use std::collections::BTreeMap;

use berth_core::{Address, Change, Prefix, Record};
use serde_json::{Value, json};

use super::base::{Notes, RESTING, Stamp, barriers};
use super::by_hand;
use super::object::{entry, key, weight};
use super::patch_steps::PatchSteps;
use berth_ledger::object::Cooldowns;

/// The API server takes 10,000 operations in a patch.
pub(super) const MOST_OPERATIONS: usize = 10_000;

pub(super) struct AddressPatch {
    pub steps: PatchSteps,
    /// By how many bytes the object grows.
    pub growth: i64,
}

/// Whether the changes surely leave the entries different from what their preconditions say: an allocation that is
/// released again in the same commit does not. Nor do fields that a definition of the kind may prune: `id` and `podref`
/// alone are in every one. If this counted a pruned field, another writer's change would be taken for ours.
pub(super) fn alters(changes: &[Change]) -> bool {
    let mut ends: BTreeMap<Address, (Option<&Record>, Option<&Record>)> = BTreeMap::new();
    for change in changes {
        let (before, after) = match change {
            Change::Allocate { record, .. } => (None, Some(record)),
            Change::Release { expected, .. } => (Some(expected), None),
            Change::Update {
                expected, record, ..
            } => (Some(expected), Some(record)),
        };
        ends.entry(change.address()).or_insert((before, None)).1 = after;
    }
    let kept = |record: &Record| {
        (
            by_hand::id(record).into_owned(),
            by_hand::podref(record).to_owned(),
        )
    };
    ends.values()
        .any(|(before, after)| before.map(kept) != after.map(kept))
}

/// The patch, or the address that can't be in a pool of that network.
pub(super) fn by_address(
    network: Prefix,
    stamp: &Stamp,
    rests: Option<&Cooldowns>,
    changes: &[Change],
) -> Result<AddressPatch, Address> {
    let mut patch = AddressPatch {
        steps: PatchSteps::with_capacity(3 * changes.len() + 4),
        growth: 0,
    };
    patch.notes(&stamp.notes, rests);
    // Claims fail if the range was moved to slices since the pool was read. One without annotations is tested for that
    // already.
    let absent = |mark: &&str| stamp.notes != Notes::Bare && !stamp.carries(mark);
    for mark in barriers(changes).filter(absent) {
        let path = ["metadata", "annotations", mark];
        patch.steps.test(&path, Value::Null);
    }
    for change in changes {
        let key = key(network, change.address()).ok_or(change.address())?;
        patch.change(&key, change);
    }
    if stamp.tracked {
        patch.steps.add(&["metadata", "managedFields"], json!([{}]));
    }
    Ok(patch)
}

impl AddressPatch {
    fn change(&mut self, key: &str, change: &Change) {
        let path = ["spec", "allocations", key];
        match change {
            Change::Allocate { record, .. } => {
                self.steps.test(&path, Value::Null);
                self.steps.add(&path, entry(record));
                self.growth += weigh(key, record);
            }
            Change::Release { expected, .. } => {
                self.expect(key, expected);
                self.steps.remove(&path);
                self.growth -= weigh(key, expected);
            }
            Change::Update {
                expected, record, ..
            } => {
                self.expect(key, expected);
                let field_path = |field| ["spec", "allocations", key, field];
                let (before, after) = (entry(expected), entry(record));
                for (field, value) in &after {
                    if before.get(field) != Some(value) {
                        self.steps.add(&field_path(field), value.clone());
                    }
                }
                for field in before.keys().filter(|field| !after.contains_key(*field)) {
                    self.steps.remove(&field_path(field));
                }
                self.growth += weigh(key, record) - weigh(key, expected);
            }
        }
    }

    fn expect(&mut self, key: &str, holder: &Record) {
        let fields = entry(holder);
        for field in ["id", "podref", "ifname"] {
            let value = fields.get(field).cloned().unwrap_or_default();
            self.steps.test(&["spec", "allocations", key, field], value);
        }
    }

    /// What rests must be what the changes were planned on, else an address could be given that
    /// was put to rest in between (I10).
    fn notes(&mut self, before: &Notes, after: Option<&Cooldowns>) {
        let annotations = ["metadata", "annotations"];
        let path = ["metadata", "annotations", RESTING];
        let before_len = match before {
            Notes::Bare => {
                self.steps.test(&annotations, Value::Null);
                0
            }
            Notes::Without => {
                self.steps.test(&path, Value::Null);
                0
            }
            Notes::Resting(text) => {
                self.steps.test(&path, text.as_str());
                text.len()
            }
        };
        let Some(after) = after else {
            return;
        };
        let after = after.text();
        self.growth += signed(after.as_ref().map_or(0, String::len)) - signed(before_len);
        match after {
            Some(text) => {
                if *before == Notes::Bare {
                    self.steps.add(&annotations, json!({}));
                }
                self.steps.add(&path, text);
            }
            None if matches!(before, Notes::Resting(_)) => self.steps.remove(&path),
            None => {}
        }
    }
}

fn weigh(key: &str, record: &Record) -> i64 {
    signed(weight(key, &Value::Object(entry(record)).to_string()))
}

fn signed(bytes: usize) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use berth_core::{Handle, Owner};

    use super::super::base::UNCHECKED;
    use super::*;

    fn mk_record(handle: &str, pod: &str, interface: &str) -> Record {
        Record::new(Owner::new(pod, interface), Handle::new(handle))
    }

    fn mk_stamp(notes: Notes) -> Stamp {
        Stamp {
            resource_version: "1".into(),
            generation: 1,
            tracked: false,
            notes,
            odd: false,
            sliced: false,
            assigned: false,
            unreserved: false,
        }
    }

    fn mk_patch(network: &str, changes: &[Change]) -> Vec<Value> {
        let stamp = mk_stamp(Notes::Bare);
        let patch = by_address(network.parse().unwrap(), &stamp, None, changes).unwrap();
        patch.steps.to_json()[1..].to_vec()
    }

    fn claim(address: &str) -> Change {
        Change::Allocate {
            address: address.parse().unwrap(),
            record: mk_record("c1", "ns/p", "net1"),
        }
    }

    #[test]
    fn a_claim_tests_for_absence() {
        assert_eq!(
            mk_patch("10.0.0.0/24", &[claim("10.0.0.5")]),
            [
                json!({ "op": "test", "path": "/spec/allocations/5", "value": null }),
                json!({ "op": "add", "path": "/spec/allocations/5",
                    "value": { "id": "c1", "podref": "ns/p", "ifname": "net1" } }),
            ]
        );
    }

    #[test]
    fn offsets_go_past_64_bits() {
        let patch = mk_patch("fd00::/32", &[claim("fd00:0:ffff::1")]);
        assert_eq!(
            patch[0]["path"],
            format!("/spec/allocations/{}", (0xffffu128 << 80) + 1)
        );
    }

    #[test]
    fn a_release_tests_every_field_of_the_holder() {
        let release = Change::Release {
            address: "10.0.0.5".parse().unwrap(),
            expected: mk_record("c1", "ns/p", ""),
            cooldown: None,
        };
        assert_eq!(
            mk_patch("10.0.0.0/24", &[release]),
            [
                json!({ "op": "test", "path": "/spec/allocations/5/id", "value": "c1" }),
                json!({ "op": "test", "path": "/spec/allocations/5/podref", "value": "ns/p" }),
                json!({ "op": "test", "path": "/spec/allocations/5/ifname", "value": null }),
                json!({ "op": "remove", "path": "/spec/allocations/5" }),
            ]
        );
    }

    #[test]
    fn an_update_touches_what_differs() {
        let update = Change::Update {
            address: "10.0.0.5".parse().unwrap(),
            expected: mk_record("c1", "ns/p", "net1"),
            record: mk_record("c2", "ns/p", ""),
        };
        assert_eq!(
            mk_patch("10.0.0.0/24", &[update])[3..],
            [
                json!({ "op": "add", "path": "/spec/allocations/5/id", "value": "c2" }),
                json!({ "op": "remove", "path": "/spec/allocations/5/ifname" }),
            ]
        );
    }

    #[test]
    fn an_address_below_the_network_is_refused() {
        let stamp = mk_stamp(Notes::Bare);
        let network = "10.0.1.0/24".parse().unwrap();
        for outside in ["10.0.0.9", "fd00::1"] {
            let refused = by_address(network, &stamp, None, &[claim(outside)]).err();
            assert_eq!(refused, Some(outside.parse().unwrap()));
        }
    }

    #[test]
    fn changes_that_cancel_out_alter_nothing() {
        let record = mk_record("c1", "ns/p", "net1");
        let release = Change::Release {
            address: "10.0.0.5".parse().unwrap(),
            expected: record.clone(),
            cooldown: None,
        };
        let update = |after: Record| Change::Update {
            address: "10.0.0.5".parse().unwrap(),
            expected: record.clone(),
            record: after,
        };
        let same = update(record.clone().with("network", "blue"));
        let moved = update(record.clone().with("node", "n1"));
        assert!(alters(&[claim("10.0.0.5")]));
        assert!(alters(std::slice::from_ref(&release)));
        assert!(!alters(&[claim("10.0.0.5"), release.clone()]));
        assert!(!alters(&[release, claim("10.0.0.5")]));
        assert!(!alters(&[same]), "no object keeps it");
        assert!(!alters(&[moved]), "a definition may prune it");
    }

    #[test]
    fn tracking_is_ended_once() {
        let mut stamp = mk_stamp(Notes::Without);
        let last = |stamp: &Stamp| {
            let network = "10.0.0.0/24".parse().unwrap();
            let patch = by_address(network, stamp, None, &[claim("10.0.0.5")]).unwrap();
            patch.steps.to_json().last().unwrap()["path"].clone()
        };
        assert_eq!(last(&stamp), "/spec/allocations/5");
        stamp.tracked = true;
        assert_eq!(last(&stamp), "/metadata/managedFields");
    }

    #[test]
    fn a_claim_fails_where_the_range_was_moved_to_slices() {
        let tested_for = |mark: &str, notes: Notes, changes: &[Change]| {
            let network = "10.0.0.0/24".parse().unwrap();
            let patch = by_address(network, &mk_stamp(notes), None, changes).unwrap();
            let path = format!("/metadata/annotations/berth.dev~1{mark}");
            let test = json!({ "op": "test", "path": path, "value": null });
            patch.steps.to_json().contains(&test)
        };
        let tested = |notes, changes: &[Change]| tested_for("sliced", notes, changes);
        let release = Change::Release {
            address: "10.0.0.5".parse().unwrap(),
            expected: mk_record("c1", "ns/p", "net1"),
            cooldown: None,
        };
        assert!(tested(Notes::Without, &[claim("10.0.0.5")]));
        assert!(!tested(Notes::Without, &[release]));
        assert!(
            !tested(Notes::Bare, &[claim("10.0.0.5")]),
            "there are no annotations at all"
        );
        let unchecked = Change::Allocate {
            address: "10.0.0.6".parse().unwrap(),
            record: mk_record("c2", "ns/q", "net1").with(UNCHECKED, "true"),
        };
        let assigned = |changes: &[Change]| tested_for("assigned", Notes::Without, changes);
        assert!(assigned(&[claim("10.0.0.5"), unchecked.clone()]));
        assert!(!assigned(&[claim("10.0.0.5")]), "its reservation guards it");
        // What slices gave without reservations is met at none.
        for change in [claim("10.0.0.5"), unchecked] {
            assert!(tested_for("unreserved", Notes::Without, &[change]));
        }
    }
}
