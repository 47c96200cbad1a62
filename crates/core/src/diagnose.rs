//! Finds anomalies of a pool that was read.
//!
//! Only reads. A finding says what was found and what can be done about it; the repair is an ordinary request (a
//! release by its holder) of a front that has proof. Nothing is dropped because it is unusual (I4, I5, I7).

use std::collections::BTreeMap;
use std::fmt;

use crate::{Address, Owner, Pool, Prefix};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// One address has several holders: I1 was violated by another writer.
    Duplicate {
        address: Address,
        holders: Vec<Owner>,
    },
    /// An allocation outside the network of its pool.
    OutOfRange {
        address: Address,
        holder: Owner,
        network: Prefix,
    },
    /// An entry of the store that is not an allocation.
    Foreign { key: String, why: String },
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Duplicate { address, holders } => {
                let names: Vec<String> = holders.iter().map(ToString::to_string).collect();
                write!(
                    f,
                    "{address} has {} holders: {}",
                    holders.len(),
                    names.join(", ")
                )
            }
            Self::OutOfRange {
                address,
                holder,
                network,
            } => {
                write!(f, "{address} of {holder} lies outside {network}")
            }
            Self::Foreign { key, why } => {
                write!(f, "entry `{key}` is kept but not understood: {why}")
            }
        }
    }
}

/// All anomalies of the pool, by address. Empty for a sound pool.
pub fn diagnose(pool: &Pool, network: Option<Prefix>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut crowded: Vec<Address> = pool
        .duplicate_holders()
        .map(|(address, _)| address)
        .collect();
    crowded.dedup();
    for address in crowded {
        let holders = pool
            .holders(address)
            .map(|record| record.owner.clone())
            .collect();
        findings.push(Finding::Duplicate { address, holders });
    }
    if let Some(network) = network {
        let outside = pool
            .records()
            .filter(|(address, _)| !network.contains(*address));
        findings.extend(outside.map(|(address, record)| Finding::OutOfRange {
            address,
            holder: record.owner.clone(),
            network,
        }));
    }
    let foreign = pool.unparsed().iter();
    findings.extend(foreign.map(|entry| Finding::Foreign {
        key: entry.key.clone(),
        why: entry.why.clone(),
    }));
    findings
}

/// What one source (a pool entry, a reservation, a pod's status) shows for an address.
#[derive(Clone, Copy, Debug)]
pub struct Observation<'a> {
    /// The same address in different networks is two addresses.
    pub network: &'a str,
    pub owner: &'a Owner,
}

/// Groups of the `count` sources that name different owners for one address of one network. Stores one number per
/// source that has an address, and copies nothing else.
pub fn shared<'a>(
    count: usize,
    address: impl Fn(usize) -> Option<Address>,
    observed: impl Fn(usize) -> Option<Observation<'a>>,
) -> Vec<Vec<usize>> {
    let at = |place: &u32| address(*place as usize);
    let mut order: Vec<u32> = (0..u32::try_from(count).unwrap_or(u32::MAX))
        .filter(|place| at(place).is_some())
        .collect();
    order.sort_by_key(at);
    let mut groups = Vec::new();
    for places in order.chunk_by(|a, b| at(a) == at(b)) {
        if places.len() < 2 {
            continue;
        }
        let mut networks: BTreeMap<&str, Vec<(usize, &Owner)>> = BTreeMap::new();
        for place in places.iter().map(|place| *place as usize) {
            if let Some(Observation { network, owner }) = observed(place) {
                networks.entry(network).or_default().push((place, owner));
            }
        }
        let differ = |all: &Vec<(usize, &Owner)>| match all.split_first() {
            Some(((_, first), others)) => others.iter().any(|(_, one)| !same_owner(first, one)),
            None => false,
        };
        let differing = networks.into_values().filter(differ);
        groups.extend(differing.map(|all| all.into_iter().map(|(place, _)| place).collect()));
    }
    groups
}

/// Whether two sources name the same owner: some writers omit the interface.
pub fn same_owner(a: &Owner, b: &Owner) -> bool {
    a.subject == b.subject && (a.part == b.part || a.part.is_empty() || b.part.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::Unparsed;
    use crate::{Change, Handle, Record};

    fn mk_record(name: &str) -> Record {
        Record::new(Owner::new(name, "net1"), Handle::new(format!("id-{name}")))
    }

    #[test]
    fn an_address_of_one_network_with_different_owners_is_shared() {
        let owner = Owner::new;
        let observed = [
            ("", "10.0.0.1", owner("ns/a", "net1")),
            ("blue", "10.0.0.1", owner("ns/b", "net1")),
            ("", "10.0.0.2", owner("ns/a", "net1")),
            ("", "10.0.0.1", owner("ns/a", "")),
            ("", "10.0.0.3", owner("ns/c", "net1")),
            ("", "10.0.0.2", owner("ns/c", "net1")),
            ("", "10.0.0.2", owner("ns/a", "net1")),
        ];
        let found = shared(
            observed.len(),
            |place| observed[place].1.parse().ok(),
            |place| {
                let (network, _, owner) = &observed[place];
                Some(Observation { network, owner })
            },
        );
        assert_eq!(found, [vec![2, 5, 6]]);
    }

    #[test]
    fn anomalies_are_reported_and_kept() {
        let mut pool = Pool::new();
        let address: Address = "10.0.0.1".parse().unwrap();
        pool.restore(address, mk_record("a"));
        pool.restore(address, mk_record("b"));
        pool.restore("10.9.0.1".parse().unwrap(), mk_record("c"));
        pool.restore_unparsed(Unparsed {
            key: "x".into(),
            why: "not a number".into(),
        });
        let findings = diagnose(&pool, Some("10.0.0.0/24".parse().unwrap()));
        let text: Vec<String> = findings.iter().map(ToString::to_string).collect();
        assert_eq!(
            text,
            [
                "10.0.0.1 has 2 holders: a (net1), b (net1)",
                "10.9.0.1 of c (net1) lies outside 10.0.0.0/24",
                "entry `x` is kept but not understood: not a number",
            ]
        );
        // Releasing one of two holders leaves the address with the other.
        let release = |name: &str| Change::Release {
            address,
            expected: mk_record(name),
            cooldown: None,
        };
        pool.apply(&release("a")).unwrap();
        assert_eq!(pool.get(address).unwrap().owner.subject, "b");
        assert!(pool.apply(&release("a")).is_err());
        pool.apply(&release("b")).unwrap();
        assert!(!pool.is_held(address));
    }
}
