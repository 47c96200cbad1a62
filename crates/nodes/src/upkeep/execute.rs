//! What a plan of the leader makes of a pool's object; pure.

use berth_api::nmstate::SetAside;
use berth_core::{Change, Cooldown};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::plan::{Outcome, Step};
use crate::pool::codec::{self, Holder, NodePool};
use crate::pool::{Health, Offsets};

/// The most entries of `set-aside`, and the longest value of one.
const MOST: usize = 16;
const LONGEST: usize = 4_096;

/// The object after the plan, or none if it is so already.
pub fn next(object: &Value, read: &NodePool, outcome: &Outcome, now: Timestamp) -> Option<Value> {
    let mut read = read.clone();
    for step in &outcome.steps {
        apply(&mut read, step, now);
    }
    let mut next = codec::write(object, &read, now);
    if !read.recorded.set_aside.is_empty() {
        set_aside(&mut next, &read.recorded.set_aside);
    }
    set_condition(&mut next, &outcome.health, now);
    let emptied = read.recorded.offsets == Offsets::Emptied;
    (emptied || next["status"] != object["status"]).then_some(next)
}

fn apply(read: &mut NodePool, step: &Step, now: Timestamp) {
    let change = match step {
        Step::Adopt(one) => {
            let record = Holder::new(&one.node, &one.policy, &one.capture).record();
            match read.pool.get(one.address) {
                Some(held) => Change::Update {
                    address: one.address,
                    expected: held.clone(),
                    record,
                },
                None => Change::Allocate {
                    address: one.address,
                    record,
                },
            }
        }
        Step::Undescribe(one) => Change::Update {
            address: one.address,
            expected: Holder::new(&one.node, &one.policy, &one.capture).record(),
            record: codec::unnamed(),
        },
        Step::Hold { seen, .. } => Change::Allocate {
            address: seen.address,
            record: codec::unnamed(),
        },
        Step::Release {
            address,
            holder,
            cooldown,
            ..
        } => {
            let expected = match holder {
                Some(holder) => holder.record(),
                None => codec::unnamed(),
            };
            let since = codec::moment(now);
            Change::Release {
                address: *address,
                cooldown: (!cooldown.is_zero()).then(|| Cooldown {
                    since,
                    until: since.plus(*cooldown),
                    owner: expected.owner.clone(),
                }),
                expected,
            }
        }
        _ => return,
    };
    // One whose precondition does not hold is not what was planned on: the next plan sees it (I6).
    if let Err(mismatch) = read.pool.apply(&change) {
        tracing::debug!(%mismatch, "a step of the plan is left out");
    }
}

fn set_aside(object: &mut Value, faults: &[SetAside]) {
    let known = object
        .pointer("/status/set-aside")
        .and_then(Value::as_array);
    let mut all = known.cloned().unwrap_or_default();
    for fault in faults {
        let value: String = fault.value.chars().take(LONGEST).collect();
        let entry = json!({ "field": fault.field, "value": value, "why": fault.why });
        if !all.contains(&entry) {
            all.push(entry);
        }
    }
    let skip = all.len().saturating_sub(MOST);
    object["status"]["set-aside"] = all.split_off(skip).into();
}

/// Sets the condition `Available`; its time is that of the last change of status.
fn set_condition(object: &mut Value, health: &Health, now: Timestamp) {
    let wanted = health.condition();
    let generation = object.pointer("/metadata/generation").cloned();
    let conditions = object
        .pointer("/status/conditions")
        .and_then(Value::as_array);
    let mut conditions = conditions.cloned().unwrap_or_default();
    let known = conditions.iter().position(|one| one["type"] == "Available");
    let before = known.and_then(|place| conditions.get(place));
    let same = before.filter(|one| one["status"] == wanted.status);
    let since = same.and_then(|one| one["lastTransitionTime"].as_str());
    let since = since.map_or_else(|| now.to_string(), str::to_owned);
    let condition = json!({
        "type": "Available",
        "status": wanted.status,
        "reason": wanted.reason,
        "message": wanted.message,
        "lastTransitionTime": since,
        "observedGeneration": generation,
    });
    match known.and_then(|place| conditions.get_mut(place)) {
        Some(place) => *place = condition,
        None => conditions.push(condition),
    }
    object["status"]["conditions"] = conditions.into();
}

/// The object of a pool whose spec can't be used: its condition alone is written.
pub fn invalid(object: &Value, health: &Health, now: Timestamp) -> Option<Value> {
    let mut next = object.clone();
    set_condition(&mut next, health, now);
    (next["status"] != object["status"]).then_some(next)
}
