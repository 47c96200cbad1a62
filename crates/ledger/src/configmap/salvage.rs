//! What can be made out of a state that can't be read.
//!
//! Promises that an address is free afterwards only if the old text says so (I4): it stands in a
//! whole `availableIPs` list and in no entry. Entries that are whole stay; every other member is
//! held under an ID of its own until somebody has cleaned the VM. Does not guess.

use std::collections::BTreeSet;

use berth_core::Address;
use jiff::Timestamp;
use serde_json::Value;

use super::document::{Allocation, Document};
use super::state::Members;

/// The field that says why an address is held without an owner.
const WHY: &str = "heldBecause";

/// The outcome of a rescue.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Salvage {
    /// The state to go on with.
    pub document: Document,
    /// Allocations that were made out.
    pub allocations: usize,
    /// Members of which nothing is known, held as `unreadable-{ip}`.
    pub unknown: Vec<Address>,
}

pub(super) fn salvage(text: &str, members: &Members, now: Timestamp) -> Salvage {
    let mut document = Document {
        last_updated: Some(now),
        version: whole_number(text, "\"version\"")
            .unwrap_or_default()
            .saturating_add(1),
        ..Document::default()
    };
    let mut held: BTreeSet<Address> = BTreeSet::new();
    for allocation in entries(text) {
        if let Ok(address) = allocation.ip.parse() {
            held.insert(address);
            document
                .allocated
                .insert(allocation.allocation_id.clone(), allocation);
        }
    }
    let allocations = document.allocated.len();
    let listed: BTreeSet<Address> = free_list(text)
        .into_iter()
        .flatten()
        .filter_map(|ip| ip.parse().ok())
        .collect();
    let mut order: Vec<(usize, Address)> = members
        .iter()
        .flatten()
        .map(|(address, place)| (*place, *address))
        .collect();
    order.sort_unstable();
    let mut unknown = Vec::new();
    for (_, address) in order {
        if held.contains(&address) {
            continue;
        }
        if listed.contains(&address) {
            document.available.push(address.to_string());
        } else {
            let entry = held_entry(address, now);
            document
                .allocated
                .insert(entry.allocation_id.clone(), entry);
            unknown.push(address);
        }
    }
    Salvage {
        document,
        allocations,
        unknown,
    }
}

fn held_entry(address: Address, now: Timestamp) -> Allocation {
    let why =
        Value::String("the pool's state could not be read, nobody knows who has this VM".into());
    Allocation {
        allocation_id: format!("unreadable-{address}"),
        ip: address.to_string(),
        pod_namespace: Some(String::new()),
        allocated_at: Some(now),
        others: [(WHY.to_string(), why)].into_iter().collect(),
        ..Allocation::default()
    }
}

/// Every object in the text that is a whole allocation, wherever it stands.
fn entries(text: &str) -> Vec<Allocation> {
    let mut found = Vec::new();
    for (at, _) in text.match_indices('{') {
        let mut stream = serde_json::Deserializer::from_str(&text[at..]).into_iter::<Allocation>();
        if let Some(Ok(allocation)) = stream.next()
            && !allocation.allocation_id.is_empty()
            && !allocation.ip.is_empty()
        {
            found.push(allocation);
        }
    }
    found
}

/// The free list, if it is there from its first to its last bracket.
fn free_list(text: &str) -> Option<Vec<String>> {
    let (_, rest) = text.rsplit_once("\"availableIPs\"")?;
    let rest = rest.trim_start().strip_prefix(':')?;
    let mut stream = serde_json::Deserializer::from_str(rest).into_iter::<Vec<String>>();
    stream.next()?.ok()
}

fn whole_number(text: &str, key: &str) -> Option<i64> {
    let (_, rest) = text.rsplit_once(key)?;
    let rest = rest.trim_start().strip_prefix(':')?;
    let mut stream = serde_json::Deserializer::from_str(rest).into_iter::<i64>();
    stream.next()?.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const USUAL: &str = include_str!("testdata/usual.json");

    fn members(ips: &[&str]) -> Members {
        let places = ips
            .iter()
            .enumerate()
            .map(|(n, ip)| (ip.parse().unwrap(), n));
        Some(places.collect())
    }

    fn pool() -> Members {
        members(&[
            "172.18.0.4",
            "172.18.0.5",
            "172.18.0.6",
            "172.18.0.9",
            "172.18.0.20",
        ])
    }

    #[test]
    fn what_is_whole_is_kept_and_only_what_was_listed_is_free() {
        let text = USUAL.replace("\"nodeName\": \"worker-2\"", "\"nodeName\": worker-2");
        assert!(Document::decode(&text).is_err());
        let salvage = salvage(&text, &pool(), Timestamp::UNIX_EPOCH);
        assert_eq!(salvage.document.available, ["172.18.0.4", "172.18.0.9"]);
        assert_eq!(
            salvage.document.allocated["nginx-8b317899"].ip,
            "172.18.0.5"
        );
        assert_eq!(salvage.allocations, 3);
        // .6 was in the entry that is broken, .20 in none: both may be somebody's.
        let unknown: Vec<String> = salvage.unknown.iter().map(Address::to_string).collect();
        assert_eq!(unknown, ["172.18.0.6", "172.18.0.20"]);
        assert_eq!(
            salvage.document.allocated["unreadable-172.18.0.6"].ip,
            "172.18.0.6"
        );
        assert_eq!(salvage.document.version, 43);
    }

    #[test]
    fn a_state_cut_short_frees_nothing_that_it_does_not_list() {
        for cut in 0..USUAL.len() {
            if !USUAL.is_char_boundary(cut) || Document::decode(&USUAL[..cut]).is_ok() {
                continue;
            }
            let salvage = salvage(&USUAL[..cut], &pool(), Timestamp::UNIX_EPOCH);
            let document = &salvage.document;
            let whole_list = USUAL[..cut].contains("\"fd00::1\"\n  ]");
            assert_eq!(
                document.available.len(),
                if whole_list { 2 } else { 0 },
                "cut at {cut}"
            );
            let held: BTreeSet<&str> = document.allocated.values().map(|a| a.ip.as_str()).collect();
            for ip in ["172.18.0.5", "172.18.0.6", "172.18.0.20"] {
                assert!(held.contains(ip), "{ip} free after a cut at {cut}");
            }
        }
    }

    #[test]
    fn of_nonsense_nothing_is_free() {
        let salvage = salvage("not json", &pool(), Timestamp::UNIX_EPOCH);
        assert!(salvage.document.available.is_empty());
        assert_eq!(salvage.unknown.len(), 5);
    }
}
