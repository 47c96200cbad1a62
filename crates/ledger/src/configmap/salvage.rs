//! Salvages what can be parsed of a state that is no document.
//!
//! Guarantees that an address is free afterwards only if the old text says so (I4): it stands in a
//! whole `availableIPs` list and is no entry's `ip`, in whatever case that is written. Entries that are whole stay; every
//! other member is held under an ID of its own until the VM was cleaned. Does not guess.

use std::collections::{BTreeMap, BTreeSet};

use berth_core::Address;
use jiff::Timestamp;
use serde_json::Value;

use super::document::{Allocation, Document};
use super::field_names::{ALLOCATION, known_name};
use super::state::{Members, parse};

/// The field that says why an address is held without an owner.
const WHY: &str = "heldBecause";

/// What was salvaged.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Salvage {
    /// The state to go on with.
    pub document: Document,
    /// Allocations that could be parsed.
    pub allocations: usize,
    /// Members of which nothing is known, held as `unreadable-{ip}`.
    pub unknown: Vec<Address>,
}

/// What can be parsed of `text` by itself, for a pool whose members are not known.
pub fn salvage_of(text: &str) -> Salvage {
    let known = BTreeMap::new();
    salvage(text, &Members::default(), &known, Timestamp::UNIX_EPOCH)
}

/// `known` are this node's allocations as they were before: what became of their entries in the text does not matter.
pub(super) fn salvage(
    text: &str,
    members: &Members,
    known: &BTreeMap<String, Allocation>,
    now: Timestamp,
) -> Salvage {
    let mut document = Document {
        last_updated: Some(now),
        version: whole_number(text, "\"version\"")
            .unwrap_or_default()
            .saturating_add(1),
        ..Document::default()
    };
    let mut held: BTreeSet<Address> = BTreeSet::new();
    for allocation in known.values().cloned().chain(entries(text)) {
        if let Some(address) = parse(&allocation.ip) {
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
        .filter_map(|ip| parse(&ip))
        .collect();
    let mentioned: BTreeSet<Address> = ips(text).iter().filter_map(|ip| parse(ip)).collect();
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
        if listed.contains(&address) && !mentioned.contains(&address) {
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

pub(super) fn held_entry(address: Address, now: Timestamp) -> Allocation {
    let why =
        Value::String("the pool's state could not be read, the owner of this VM is unknown".into());
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
        if let Some(Ok(mut allocation)) = stream.next()
            && !allocation.allocation_id.is_empty()
            && !allocation.ip.is_empty()
        {
            // With a name in two cases the new state could not be read either. The old text is kept whole.
            let is_other = |name: &String| known_name(name, &ALLOCATION).is_none();
            allocation.others.retain(|name, _| is_other(name));
            found.push(allocation);
        }
    }
    found
}

/// Every string in the text that is an `ip`, in whatever case the name is: one of two may be what Go reads.
fn ips(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (at, _) in text.match_indices('"') {
        let mut name = serde_json::Deserializer::from_str(&text[at..]).into_iter::<String>();
        let is_ip = matches!(name.next(), Some(Ok(name)) if known_name(&name, &["ip"]).is_some());
        let rest = text[at..].get(name.byte_offset()..).unwrap_or_default();
        let Some(value) = rest.trim_start().strip_prefix(':').filter(|_| is_ip) else {
            continue;
        };
        let mut value = serde_json::Deserializer::from_str(value).into_iter::<String>();
        found.extend(value.next().and_then(Result::ok));
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
        let salvage = salvage(&text, &pool(), &BTreeMap::new(), Timestamp::UNIX_EPOCH);
        assert_eq!(salvage.document.available, ["172.18.0.4", "172.18.0.9"]);
        assert_eq!(
            salvage.document.allocated["nginx-8b317899"].ip,
            "172.18.0.5"
        );
        assert_eq!(salvage.allocations, 3);
        // .6 was in the entry that is broken, .20 in none: both may be in use.
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
            let salvage = salvage(
                &USUAL[..cut],
                &pool(),
                &BTreeMap::new(),
                Timestamp::UNIX_EPOCH,
            );
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
    fn what_this_node_knows_is_kept_though_its_entry_is_broken() {
        let text = USUAL.replace("\"nodeName\": \"worker-2\"", "\"nodeName\": worker-2");
        let before = Document::decode(USUAL).unwrap().allocated;
        let mine = before
            .into_iter()
            .filter(|(_, entry)| entry.ip == "172.18.0.6");
        let mine: BTreeMap<String, Allocation> = mine.collect();
        assert_eq!(mine.len(), 1);
        let salvage = salvage(&text, &pool(), &mine, Timestamp::UNIX_EPOCH);
        assert_eq!(salvage.unknown, ["172.18.0.20".parse().unwrap()]);
        let (id, entry) = mine.iter().next().unwrap();
        assert_eq!(salvage.document.allocated[id], *entry);
    }

    #[test]
    fn berth_15_9_an_address_under_a_name_in_another_case_is_not_free() {
        let entry = r#"{"allocationID":"a","ip":"172.18.0.4","IP":"172.18.0.5","zone":"eu"}"#;
        let text = format!(
            r#"{{"allocatedIPs":{{"a":{entry}}},"availableIPs":["172.18.0.5","172.18.0.6"]}}"#
        );
        assert!(Document::decode(&text).is_err());
        let salvage = salvage(&text, &pool(), &BTreeMap::new(), Timestamp::UNIX_EPOCH);
        assert_eq!(salvage.document.available, ["172.18.0.6"]);
        assert!(salvage.unknown.contains(&"172.18.0.5".parse().unwrap()));
        let again = Document::decode(&salvage.document.encode().unwrap()).unwrap();
        assert_eq!(again.allocated["a"].ip, "172.18.0.4");
        assert_eq!(again.allocated["a"].others["zone"], "eu");
        // Names and spaces as other programs may write them, in a text that is cut short.
        let cut =
            r#"{"availableIPs": ["172.18.0.5","172.18.0.6"], "x": {"Ip" : "::ffff:172.18.0.6", "#;
        let salvage = super::salvage(cut, &pool(), &BTreeMap::new(), Timestamp::UNIX_EPOCH);
        assert_eq!(salvage.document.available, ["172.18.0.5"]);
    }

    #[test]
    fn of_nonsense_nothing_is_free() {
        let salvage = salvage("not json", &pool(), &BTreeMap::new(), Timestamp::UNIX_EPOCH);
        assert!(salvage.document.available.is_empty());
        assert_eq!(salvage.unknown.len(), 5);
    }
}
