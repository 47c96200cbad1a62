//! A NodeIPPool object as a pool of the engine, and changes of that pool as the object's next status; pure.
//!
//! Guarantees: a change that the pool's spec does not allow is refused, also if it was planned on an older spec (I1); a pool whose status
//! can't be read whole, or that is being rebuilt, takes no new owner (I5); the description of an allocation, once written, stays until the
//! leader has read an enactment that claims the address, so that an undescribed offset is never a new owner's (I1); fields of the status that are not about allocations
//! stay as they are (I7).

use std::collections::BTreeSet;

use berth_api::nmstate::{CoolingDown, NodeIPPoolSpec, NodeIPPoolStatus};
use berth_core::{Address, Change, Cooldown, Handle, Moment, NODE, Offset, Owner, Pool, Record};
use jiff::Timestamp;
use serde_json::Value;
use thiserror::Error;

use super::condition::Health;
use super::range::SpecError;
use super::space::{Place, PoolSpace};
use super::status::{Described, Offsets, Recorded, encode_whole};

/// The attribute of a record whose address an enactment names: the pool takes it back in any condition that has a usable spec.
pub const TAKEN_BACK: &str = "taken-back";

/// The owner of an address: a capture of a policy on a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Holder {
    pub node: String,
    pub policy: String,
    pub capture: String,
}

impl Holder {
    pub fn new(node: &str, policy: &str, capture: &str) -> Holder {
        Holder {
            node: node.to_owned(),
            policy: policy.to_owned(),
            capture: capture.to_owned(),
        }
    }

    /// The engine's record of it.
    pub fn record(&self) -> Record {
        let owner = Owner::new(format!("{}/{}", self.node, self.policy), &self.capture);
        Record::new(owner, Handle::new(&self.node)).with(NODE, &self.node)
    }

    fn of_owner(owner: &Owner) -> Option<Holder> {
        let (node, policy) = owner.subject.split_once('/')?;
        Some(Holder::new(node, policy, &owner.part))
    }
}

/// The record of an allocated address whose owner the status does not name.
pub fn unnamed() -> Record {
    Record::new(Owner::new("", ""), Handle::new(""))
}

/// An object, read.
#[derive(Clone, Debug)]
pub struct NodePool {
    pub space: PoolSpace,
    pub pool: Pool,
    pub recorded: Recorded,
    /// The reason of the condition `Available`; none for a pool that the leader has not reconciled yet.
    pub reason: Option<String>,
}

impl NodePool {
    /// Whether addresses may be allocated to new owners.
    pub fn allocates(&self) -> bool {
        let open = self.reason.as_deref().is_some_and(Health::reason_allocates);
        open && self.is_whole()
    }

    /// The status was read whole, and no rebuild was asked for.
    fn is_whole(&self) -> bool {
        self.recorded.set_aside.is_empty() && self.recorded.offsets != Offsets::Emptied
    }
}

/// Why changes are not written.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ChangeError {
    /// Somebody else has the address, or has it no more: load and plan again.
    #[error("{why}")]
    Mismatch { address: Address, why: String },
    #[error("the pool's condition is {reason}: it allocates nothing new")]
    Closed { reason: String },
    #[error("{address} is {} in this pool", .place.word())]
    Place { address: Address, place: Place },
    #[error("{address} is reserved for node {node}")]
    Reserved { address: Address, node: String },
    /// An allocation that no enactment claims yet must say whose it is.
    #[error(
        "the pool's status describes the most allocations that fit; the controller shortens it"
    )]
    Descriptions,
    #[error(transparent)]
    Spec(#[from] SpecError),
}

/// Reads an object.
pub fn decode(object: &Value) -> Result<NodePool, SpecError> {
    let space = space_of(object)?;
    let status = object.get("status").cloned().unwrap_or(Value::Null);
    let recorded = Recorded::read(&status, &space);
    let mut pool = Pool::new();
    let mut described: BTreeSet<u64> = BTreeSet::new();
    for one in &recorded.described {
        // A second owner of one offset is read as a rival: kept, reported, and never served.
        let holder = Holder::new(&one.node, &one.policy, &one.capture);
        pool.restore(one.address, holder.record());
        described.insert(one.offset);
    }
    for offset in recorded
        .offsets
        .iter()
        .filter(|one| !described.contains(one))
    {
        if let Some(address) = space.address(Offset(offset.into())) {
            pool.restore(address, unnamed());
        }
    }
    for (address, cooldown) in cooling(&status, &space) {
        if !pool.is_held(address) {
            pool.restore_cooldown(address, cooldown);
        }
    }
    Ok(NodePool {
        space,
        pool,
        reason: available(object).and_then(|(_, reason)| reason),
        recorded,
    })
}

/// The spec of an object.
pub fn space_of(object: &Value) -> Result<PoolSpace, SpecError> {
    let spec = object.get("spec").cloned().unwrap_or(Value::Null);
    let spec: NodeIPPoolSpec =
        serde_json::from_value(spec).map_err(|error| SpecError::Shape(error.to_string()))?;
    PoolSpace::read(&spec)
}

/// The status and the reason of the condition `Available`.
pub fn available(object: &Value) -> Option<(String, Option<String>)> {
    let conditions = object.pointer("/status/conditions")?.as_array()?;
    let one = conditions.iter().find(|one| one["type"] == "Available")?;
    let reason = one["reason"].as_str().map(str::to_owned);
    Some((one["status"].as_str()?.to_owned(), reason))
}

/// The object's next status after these changes.
pub fn apply(object: &Value, changes: &[Change], now: Timestamp) -> Result<Value, ChangeError> {
    let mut read = decode(object)?;
    for change in changes {
        match change {
            Change::Allocate { address, record } => check_claim(&read, *address, record)?,
            Change::Update {
                address, record, ..
            } if record.attribute(TAKEN_BACK).is_none() => check_claim(&read, *address, record)?,
            _ => {}
        }
        read.pool
            .apply(change)
            .map_err(|mismatch| ChangeError::Mismatch {
                address: change.address(),
                why: mismatch.to_string(),
            })?;
    }
    let (next, whole) = written(object, &read, now);
    whole.then_some(next).ok_or(ChangeError::Descriptions)
}

fn check_claim(read: &NodePool, address: Address, record: &Record) -> Result<(), ChangeError> {
    let place = read.space.place(address);
    let taken_back = record.attribute(TAKEN_BACK).is_some();
    if !read.is_whole() || (!taken_back && !read.allocates()) {
        let reason = read.reason.clone();
        let reason = reason.unwrap_or_else(|| "not set yet".to_owned());
        return Err(ChangeError::Closed { reason });
    }
    match place {
        Place::Allocatable(_) => {}
        Place::Excluded(_) | Place::Gateway(_) if taken_back => {}
        place => return Err(ChangeError::Place { address, place }),
    }
    let node = record.attribute(NODE).unwrap_or_default();
    match read.space.reserved_for(address) {
        Some(other) if other != node && !taken_back => Err(ChangeError::Reserved {
            address,
            node: other.to_owned(),
        }),
        _ => Ok(()),
    }
}

/// The object with the pool's allocations in its status.
pub fn write(object: &Value, read: &NodePool, now: Timestamp) -> Value {
    written(object, read, now).0
}

/// The same, and whether all descriptions fit.
fn written(object: &Value, read: &NodePool, now: Timestamp) -> (Value, bool) {
    let mut typed = NodeIPPoolStatus::default();
    let mut held = BTreeSet::new();
    let mut described = Vec::new();
    for (address, record) in read.pool.records() {
        let Some(offset) = offset(&read.space, address) else {
            continue;
        };
        held.insert(offset);
        if let Some(holder) = Holder::of_owner(&record.owner) {
            described.push(Described {
                offset,
                address,
                node: holder.node,
                policy: holder.policy,
                capture: holder.capture,
            });
        }
    }
    let whole = encode_whole(&mut typed, &read.space, &held, &described);
    let cooldowns = read
        .pool
        .cooldowns()
        .filter(|(_, cooldown)| cooldown.until > moment(now));
    typed.cooling_down = cooldowns
        .filter_map(|(address, cooldown)| cooling_entry(&read.space, address, cooldown))
        .collect();
    (put_status(object, &typed), whole)
}

/// Replaces the fields of the status that are about allocations; the others stay.
fn put_status(object: &Value, typed: &NodeIPPoolStatus) -> Value {
    const OURS: [&str; 8] = [
        "allocated-offsets",
        "allocated-bitmap",
        "bitmap-format",
        "allocations",
        "cooling-down",
        "total",
        "used",
        "free",
    ];
    let fresh = serde_json::to_value(typed).unwrap_or_default();
    let before = object.get("status").and_then(Value::as_object);
    let mut status = before.cloned().unwrap_or_default();
    for field in OURS {
        match fresh.get(field) {
            Some(value) => drop(status.insert(field.to_owned(), value.clone())),
            None => drop(status.shift_remove(field)),
        }
    }
    let mut object = object.clone();
    object["status"] = Value::Object(status);
    object
}

pub fn moment(now: Timestamp) -> Moment {
    Moment(u64::try_from(now.as_millisecond()).unwrap_or_default())
}

fn offset(space: &PoolSpace, address: Address) -> Option<u64> {
    u64::try_from(space.offset(address)?.0).ok()
}

fn cooling(status: &Value, space: &PoolSpace) -> Vec<(Address, Cooldown)> {
    let entries = status.get("cooling-down").and_then(Value::as_array);
    let read = |entry: &Value| {
        let entry: CoolingDown = serde_json::from_value(entry.clone()).ok()?;
        let address = space.address(Offset(u128::try_from(entry.offset).ok()?))?;
        let time = |text: &str| Some(moment(text.parse::<Timestamp>().ok()?));
        let holder = Holder::new(&entry.node, &entry.policy, &entry.capture);
        let cooldown = Cooldown {
            since: time(&entry.since)?,
            until: time(&entry.until)?,
            owner: holder.record().owner,
        };
        Some((address, cooldown))
    };
    entries.into_iter().flatten().filter_map(read).collect()
}

fn cooling_entry(space: &PoolSpace, address: Address, cooldown: &Cooldown) -> Option<CoolingDown> {
    let time = |moment: Moment| {
        let millis = i64::try_from(moment.0).ok()?;
        Some(Timestamp::from_millisecond(millis).ok()?.to_string())
    };
    let holder = Holder::of_owner(&cooldown.owner).unwrap_or_default();
    Some(CoolingDown {
        offset: i64::try_from(offset(space, address)?).ok()?,
        since: time(cooldown.since)?,
        until: time(cooldown.until)?,
        node: holder.node,
        policy: holder.policy,
        capture: holder.capture,
    })
}

#[cfg(test)]
mod tests;
