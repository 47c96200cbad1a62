//! The document as a pool, and a pool's changes on the document.
//!
//! Guarantees: a change is made only if its precondition holds in this document (I1, I6); what a
//! change does not speak of stays as it was (I7), entries that make no sense among it. An address
//! that is no longer a member is not listed as free again when it is released.

use std::collections::{BTreeMap, BTreeSet};

use berth_core::{Address, Change, Handle, Owner, Pool, Record};
use jiff::Timestamp;
use serde_json::Value;

use super::document::{Allocation, Document};

/// Attributes of a record that have a field of their own in the document.
pub mod attribute {
    pub const NODE: &str = "nodeName";
    pub const POD: &str = "podName";
    pub const NAMESPACE: &str = "podNamespace";
    /// RFC 3339.
    pub const ALLOCATED_AT: &str = "allocatedAt";
}

/// The owner's fields, written only where the owner is not simply the allocation ID.
const OWNER: &str = "owner";
const OWNER_PART: &str = "ownerPart";
/// Names that an attribute can't have, because the document means something else by them.
const OWN_FIELDS: [&str; 4] = ["allocationID", "ip", OWNER, OWNER_PART];

/// The addresses that the settings list for a pool, in their order. Without them every address of
/// the document counts.
pub(super) type Members = Option<BTreeMap<Address, usize>>;

/// The pool that a document describes. Free are, in this order: what it lists, as far as that is
/// a member and not allocated; then members that it does not mention at all.
pub(super) fn pool(document: &Document, members: &Members) -> Pool {
    let held: BTreeSet<Address> = document
        .allocated
        .values()
        .filter_map(|allocation| parse(&allocation.ip))
        .collect();
    let mut seen = held.clone();
    let mut free: Vec<Address> = Vec::with_capacity(document.available.len());
    for address in document.available.iter().filter_map(|ip| parse(ip)) {
        if is_member(members, address) && seen.insert(address) {
            free.push(address);
        }
    }
    // An entry without an address may mean one that is mentioned nowhere: it is held with the next write.
    let is_stray = |allocation: &Allocation| parse(&allocation.ip).is_none();
    if !document.allocated.values().any(is_stray) {
        free.extend(unmentioned(members, &seen));
    }
    let mut pool = Pool::with_listing(free);
    for (id, allocation) in &document.allocated {
        match parse(&allocation.ip) {
            Some(address) => pool.restore(address, record(id, allocation)),
            None => pool.restore_unparsed(berth_core::Unparsed {
                key: id.clone(),
                why: format!("ip {:?} is no address", allocation.ip),
            }),
        }
    }
    pool
}

/// An address as other programs write it: `::ffff:10.0.0.1` is 10.0.0.1, and the same VM.
pub(super) fn parse(ip: &str) -> Option<Address> {
    Address::parse_lenient(ip)
}

fn is_member(members: &Members, address: Address) -> bool {
    members.as_ref().is_none_or(|of| of.contains_key(&address))
}

/// Members that are not in `seen`, in the order of the settings.
pub(super) fn unmentioned(members: &Members, seen: &BTreeSet<Address>) -> Vec<Address> {
    let missing = members.iter().flatten().filter(|(a, _)| !seen.contains(a));
    let mut missing: Vec<(usize, Address)> = missing.map(|(a, place)| (*place, *a)).collect();
    missing.sort_unstable();
    missing.into_iter().map(|(_, address)| address).collect()
}

fn record(id: &str, allocation: &Allocation) -> Record {
    let text = |key| allocation.others.get(key).and_then(Value::as_str);
    let owner = Owner::new(
        text(OWNER).unwrap_or(id),
        text(OWNER_PART).unwrap_or_default(),
    );
    let mut record = Record::new(owner, Handle::new(id));
    let mut put = |key: &str, value: &str| {
        record.attributes.insert(key.into(), value.into());
    };
    put(attribute::NODE, &allocation.node_name);
    put(attribute::POD, &allocation.pod_name);
    if let Some(namespace) = &allocation.pod_namespace {
        put(attribute::NAMESPACE, namespace);
    }
    if let Some(time) = allocation.allocated_at {
        put(attribute::ALLOCATED_AT, &time.to_string());
    }
    for (key, value) in &allocation.others {
        if let Value::String(text) = value
            && !OWN_FIELDS.contains(&key.as_str())
        {
            put(key, text);
        }
    }
    record
}

/// Writes a record's attributes into an entry. Of what the entry had, only attributes that the
/// writer saw (`expected`) and left out are removed: the rest belongs to others (I7).
fn write_record(allocation: &mut Allocation, expected: Option<&Record>, record: &Record) {
    for key in expected.into_iter().flat_map(|seen| seen.attributes.keys()) {
        if record.attribute(key).is_none() {
            allocation.others.remove(key);
        }
    }
    let owner = &record.owner;
    let named = (owner.subject != record.handle.as_str()).then_some(&owner.subject);
    let part = (!owner.part.is_empty()).then_some(&owner.part);
    for (key, value) in [(OWNER, named), (OWNER_PART, part)] {
        match value {
            Some(value) => allocation
                .others
                .insert(key.into(), Value::String(value.clone())),
            None => allocation.others.remove(key),
        };
    }
    for (key, value) in &record.attributes {
        match key.as_str() {
            attribute::NODE => allocation.node_name.clone_from(value),
            attribute::POD => allocation.pod_name.clone_from(value),
            attribute::NAMESPACE => allocation.pod_namespace = Some(value.clone()),
            attribute::ALLOCATED_AT => {
                allocation.allocated_at = value.parse().ok().or(allocation.allocated_at);
            }
            own if OWN_FIELDS.contains(&own) => {}
            _ => {
                let value = Value::String(value.clone());
                allocation.others.insert(key.clone(), value);
            }
        }
    }
}

/// Why a change can't be made on this document.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Obstacle {
    /// Its precondition does not hold here.
    Mismatch(Address),
    /// The document has one entry per allocation ID, and the ID has another address.
    SecondAddress { id: String, holds: String },
}

/// Makes all changes, or says which can't be made; the document is then half changed and must be
/// discarded.
pub(super) fn apply(
    document: &mut Document,
    members: &Members,
    changes: &[Change],
    now: Timestamp,
) -> Result<(), Obstacle> {
    let mut holders: BTreeMap<Address, usize> = BTreeMap::new();
    for allocation in document.allocated.values() {
        if let Some(address) = parse(&allocation.ip) {
            *holders.entry(address).or_default() += 1;
        }
    }
    // Members that the document does not mention become visible with the first write.
    let mut seen: BTreeSet<Address> = holders.keys().copied().collect();
    seen.extend(document.available.iter().filter_map(|ip| parse(ip)));
    let added = unmentioned(members, &seen);
    document
        .available
        .extend(added.iter().map(Address::to_string));

    let mut taken: BTreeSet<Address> = BTreeSet::new();
    for change in changes {
        let address = change.address();
        match change {
            Change::Allocate { record, .. } => {
                let id = record.handle.as_str();
                if let Some(other) = document.allocated.get(id) {
                    return Err(if parse(&other.ip) == Some(address) {
                        Obstacle::Mismatch(address)
                    } else {
                        Obstacle::SecondAddress {
                            id: id.into(),
                            holds: other.ip.clone(),
                        }
                    });
                }
                if holders.contains_key(&address) {
                    return Err(Obstacle::Mismatch(address));
                }
                let mut allocation = Allocation {
                    allocation_id: id.into(),
                    ip: address.to_string(),
                    pod_namespace: Some(String::new()),
                    allocated_at: Some(now),
                    ..Allocation::default()
                };
                write_record(&mut allocation, None, record);
                document.allocated.insert(id.into(), allocation);
                holders.insert(address, 1);
                taken.insert(address);
            }
            Change::Release { expected, .. } => {
                take_out(document, address, expected)?;
                let left = holders.entry(address).or_default();
                *left = left.saturating_sub(1);
                if *left == 0 {
                    holders.remove(&address);
                    taken.remove(&address);
                    if is_member(members, address) {
                        document.available.retain(|ip| parse(ip) != Some(address));
                        document.available.push(address.to_string());
                    }
                }
            }
            Change::Update {
                expected, record, ..
            } => {
                let mut allocation = take_out(document, address, expected)?;
                let id = record.handle.as_str();
                if document.allocated.contains_key(id) {
                    return Err(Obstacle::Mismatch(address));
                }
                allocation.allocation_id = id.into();
                write_record(&mut allocation, Some(expected), record);
                document.allocated.insert(id.into(), allocation);
            }
        }
    }
    if !taken.is_empty() {
        let is_taken = |ip: &String| parse(ip).is_some_and(|address| taken.contains(&address));
        document.available.retain(|ip| !is_taken(ip));
    }
    document.version = document.version.saturating_add(1);
    document.last_updated = Some(now);
    Ok(())
}

/// Removes the entry that the holder has under this address, or says that it has none (I6).
fn take_out(
    document: &mut Document,
    address: Address,
    holder: &Record,
) -> Result<Allocation, Obstacle> {
    let id = holder.handle.as_str();
    let holds = |found: &Allocation| {
        parse(&found.ip) == Some(address) && record(id, found).same_holder(holder)
    };
    if !document.allocated.get(id).is_some_and(holds) {
        return Err(Obstacle::Mismatch(address));
    }
    document
        .allocated
        .remove(id)
        .ok_or(Obstacle::Mismatch(address))
}

#[cfg(test)]
mod tests;
