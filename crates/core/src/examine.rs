//! What is wrong with a pool that was read.
//!
//! Promises: only looks. A finding says what was seen and what can be done about it; the repair is
//! a request like any other (release by holder), made by a front that has proof. Nothing is dropped
//! because it looks odd (I4, I5, I7).

use std::fmt;

use crate::{Address, Owner, Pool, Prefix};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// One address, several holders: I1 was broken before us.
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
    /// An entry of the store that is no allocation.
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

/// Every anomaly of the pool, by address. Empty for a sound one.
pub fn examine(pool: &Pool, network: Option<Prefix>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut crowded: Vec<Address> = pool.rivals().map(|(address, _)| address).collect();
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
    let foreign = pool.strays().iter();
    findings.extend(foreign.map(|stray| Finding::Foreign {
        key: stray.key.clone(),
        why: stray.why.clone(),
    }));
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::Stray;
    use crate::{Change, Handle, Record};

    fn mk_record(name: &str) -> Record {
        Record::new(Owner::new(name, "net1"), Handle::new(format!("id-{name}")))
    }

    #[test]
    fn anomalies_are_reported_and_kept() {
        let mut pool = Pool::new();
        let address: Address = "10.0.0.1".parse().unwrap();
        pool.restore(address, mk_record("a"));
        pool.restore(address, mk_record("b"));
        pool.restore("10.9.0.1".parse().unwrap(), mk_record("c"));
        pool.restore_stray(Stray {
            key: "x".into(),
            why: "not a number".into(),
        });
        let findings = examine(&pool, Some("10.0.0.0/24".parse().unwrap()));
        let text: Vec<String> = findings.iter().map(ToString::to_string).collect();
        assert_eq!(
            text,
            [
                "10.0.0.1 has 2 holders: a (net1), b (net1)",
                "10.9.0.1 of c (net1) lies outside 10.0.0.0/24",
                "entry `x` is kept but not understood: not a number",
            ]
        );
        // Freeing one of two holders leaves the address with the other.
        let release = |name: &str| Change::Release {
            address,
            expected: mk_record(name),
            rest: None,
        };
        pool.apply(&release("a")).unwrap();
        assert_eq!(pool.get(address).unwrap().owner.subject, "b");
        assert!(pool.apply(&release("a")).is_err());
        pool.apply(&release("b")).unwrap();
        assert!(!pool.is_held(address));
    }
}
