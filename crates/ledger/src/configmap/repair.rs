//! Repairs a document that can be read: its free list, and entries that are no allocation.
//!
//! Guarantees: nothing in use is touched; an entry without an address is kept where a person can read it, never
//! destroyed (I5), and no VM that it may have meant is free because of that (I4).

use std::collections::BTreeSet;

use berth_core::Address;
use jiff::Timestamp;
use serde_json::{Map, Value};

use super::document::Document;
use super::salvage::held_entry;
use super::state::{Members, parse, unmentioned};

/// What [`repair`] found and repaired.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Repairs {
    /// Free entries that were no members, no addresses, in use, or listed twice.
    pub dropped: Vec<String>,
    /// Members that were mentioned nowhere.
    pub added: Vec<Address>,
    /// Whether the free list was in another order than the settings.
    pub reordered: bool,
}

impl Repairs {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Rebuilds the free list: the members in their order, without those in use. Nothing in use is
/// touched: an address that was taken out of the settings stays with its owner.
pub(super) fn repair(document: &mut Document, members: &Members, now: Timestamp) -> Repairs {
    let mut repairs = Repairs::default();
    let Some(of) = members else {
        return repairs;
    };
    let held: BTreeSet<Address> = document
        .allocated
        .values()
        .filter_map(|allocation| parse(&allocation.ip))
        .collect();
    let mut listed = BTreeSet::new();
    let mut kept = Vec::new();
    for ip in &document.available {
        match parse(ip) {
            Some(address)
                if of.contains_key(&address)
                    && !held.contains(&address)
                    && listed.insert(address) =>
            {
                kept.push(address);
            }
            _ => repairs.dropped.push(ip.clone()),
        }
    }
    let free = unmentioned(members, &held);
    repairs.added = free
        .iter()
        .copied()
        .filter(|a| !listed.contains(a))
        .collect();
    let in_order = free.iter().copied().filter(|a| listed.contains(a));
    repairs.reordered = !in_order.eq(kept);
    if !repairs.is_empty() {
        document.available = free.iter().map(Address::to_string).collect();
        document.version = document.version.saturating_add(1);
        document.last_updated = Some(now);
    }
    repairs
}

/// Entries whose address can't be parsed, and what was done about them.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Strays {
    /// As they were, by their allocation IDs.
    pub entries: Map<String, Value>,
    /// Members that the document does not mention: one of the unparsed may mean them.
    pub held: Vec<Address>,
}

/// Takes the unparsed out of the document. A member that is mentioned nowhere is held from now on, as one of an unreadable
/// state is.
pub(super) fn take_strays(
    document: &mut Document,
    members: &Members,
    now: Timestamp,
) -> Option<Strays> {
    let is_stray = |id: &String| parse(&document.allocated[id].ip).is_none();
    let ids: Vec<String> = document
        .allocated
        .keys()
        .filter(|id| is_stray(id))
        .cloned()
        .collect();
    if ids.is_empty() {
        return None;
    }
    let mut entries = Map::new();
    for id in ids {
        if let Some(stray) = document.allocated.remove(&id) {
            entries.insert(id, serde_json::to_value(stray).unwrap_or_default());
        }
    }
    let allocated = document.allocated.values().map(|allocation| &allocation.ip);
    let mentioned = allocated
        .chain(&document.available)
        .filter_map(|ip| parse(ip));
    let held = unmentioned(members, &mentioned.collect());
    for address in &held {
        let entry = held_entry(*address, now);
        document
            .allocated
            .insert(entry.allocation_id.clone(), entry);
    }
    Some(Strays { entries, held })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::configmap::document::Allocation;

    #[test]
    fn an_entry_without_an_address_is_taken_out_and_frees_nothing() {
        let entry = |ip: &str| Allocation {
            ip: ip.into(),
            ..Allocation::default()
        };
        let mut document = Document::default();
        document
            .allocated
            .insert("good".into(), entry("::ffff:10.0.0.1"));
        document.allocated.insert("typo".into(), entry("10.0.0.l"));
        document.available = vec!["10.0.0.3".into()];
        let ips = ["10.0.0.1", "10.0.0.2", "10.0.0.3"];
        let places = ips
            .iter()
            .enumerate()
            .map(|(n, ip)| (ip.parse().unwrap(), n));
        let members: Members = Some(places.collect());
        let unparsed = take_strays(&mut document, &members, Timestamp::UNIX_EPOCH).unwrap();
        assert_eq!(unparsed.entries["typo"]["ip"], "10.0.0.l");
        assert_eq!(unparsed.held, ["10.0.0.2".parse().unwrap()]);
        let ids: Vec<&String> = document.allocated.keys().collect();
        assert_eq!(ids, ["good", "unreadable-10.0.0.2"]);
        assert_eq!(
            take_strays(&mut document, &members, Timestamp::UNIX_EPOCH),
            None
        );
    }
}
