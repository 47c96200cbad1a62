//! The comparison itself.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use berth_core::{NODE, Record};
use ipnet::Ipv4Net;

use super::problem::Problem;
use super::{MAX_ALIASES, Observed, ObservedPool};
use crate::cloud::AliasRange;
use crate::pool::attributes::UNDER_WAY;
use crate::pool::{capacity, gateway};

/// A NIC is nearly full from here on: the last tenth.
const MANY_ALIASES: usize = MAX_ALIASES - MAX_ALIASES / 10;
/// etcd takes 1.5 MiB.
const LARGE_OBJECT: usize = 1_200_000;

/// Every problem, with the object that it is of.
pub fn problems(observed: &Observed) -> Vec<(String, Problem)> {
    let mut found = Vec::new();
    for pool in &observed.pools {
        let object = format!("IPPool {}", pool.name);
        let compared = Compared::new(pool, observed);
        let problems = [
            of_object(pool),
            of_range(pool),
            compared.of_allocations(),
            compared.of_aliases(),
            compared.of_pods(),
            compared.of_routes(),
        ];
        let problems = problems.into_iter().flatten();
        found.extend(problems.map(|problem| (object.clone(), problem)));
    }
    for (name, node) in &observed.nodes {
        let object = format!("Node {name}");
        let problems = match &node.aliases {
            Ok(aliases) => of_nic(name, aliases, &observed.pools),
            Err(why) => vec![Problem::NodeUnreadable {
                node: name.clone(),
                why: why.clone(),
            }],
        };
        found.extend(
            problems
                .into_iter()
                .map(|problem| (object.clone(), problem)),
        );
    }
    found
}

fn of_object(pool: &ObservedPool) -> Vec<Problem> {
    let mut found = Vec::new();
    let findings = pool.pool.findings.iter();
    found.extend(findings.map(|finding| match finding.stops_writes() {
        true => Problem::AllocationStopped(finding.to_string()),
        false => Problem::Entry(finding.to_string()),
    }));
    let capacity = capacity(pool.pool.cidr);
    let allocated = u64::try_from(pool.pool.pool.len()).unwrap_or(u64::MAX);
    let available = capacity.saturating_sub(allocated);
    if available <= (capacity / 10).max(1) {
        found.push(Problem::PoolNearlyFull {
            available,
            capacity,
        });
    }
    if pool.size > LARGE_OBJECT {
        found.push(Problem::ObjectNearlyFull(pool.size));
    }
    found
}

/// Whether the range is there and is the pool's.
fn of_range(pool: &ObservedPool) -> Vec<Problem> {
    let subnet = match &pool.subnet {
        Ok(subnet) => subnet,
        Err(why) => return vec![Problem::SubnetUnreadable(why.clone())],
    };
    let cidr = pool.pool.cidr;
    let other = |range: &str, found: &str| Problem::OtherCidr {
        pool: cidr.to_string(),
        range: range.to_owned(),
        found: found.to_owned(),
    };
    let Some(range) = &pool.range else {
        let primary = subnet.cidr.parse::<Ipv4Net>();
        let inside = primary.is_ok_and(|primary| primary.contains(&cidr));
        return match inside {
            true => Vec::new(),
            false => vec![other("(primary)", &subnet.cidr)],
        };
    };
    let mut secondary = subnet.secondary.iter();
    match secondary.find(|known| known.name == *range) {
        None => vec![Problem::RangeGone(range.clone())],
        Some(known) if known.cidr != cidr.to_string() => vec![other(range, &known.cidr)],
        Some(_) => Vec::new(),
    }
}

/// GCP's node IPAM takes the first alias of a Node that has no podCIDR yet, such as one that is registered again.
fn of_nic(name: &str, aliases: &[AliasRange], pools: &[ObservedPool]) -> Vec<Problem> {
    let mut found = Vec::new();
    let ours = |alias: &&AliasRange| pools.iter().any(|pool| address_of(alias, pool).is_some());
    if let Some(first) = aliases.first().filter(ours) {
        found.push(Problem::FirstAlias {
            node: name.to_owned(),
            cidr: first.cidr.clone(),
        });
    }
    if aliases.len() >= MANY_ALIASES {
        found.push(Problem::NicNearlyFull {
            node: name.to_owned(),
            count: aliases.len(),
        });
    }
    found
}

/// The address that an alias range is of this pool.
fn address_of(alias: &AliasRange, pool: &ObservedPool) -> Option<Ipv4Addr> {
    // A single address may come back with or without its length.
    let text = alias.cidr.strip_suffix("/32").unwrap_or(&alias.cidr);
    let address: Ipv4Addr = text.parse().ok()?;
    let ours = alias.range == pool.range && pool.pool.cidr.contains(&address);
    ours.then_some(address)
}

/// The agent or the controller completes it by itself.
fn is_under_way(record: &Record) -> bool {
    let mut marks = UNDER_WAY.iter();
    marks.any(|mark| record.attribute(mark).is_some())
}

/// One pool beside everything else.
struct Compared<'a> {
    observed: &'a Observed,
    pool: &'a ObservedPool,
    records: BTreeMap<Ipv4Addr, &'a Record>,
    /// Which nodes have an address as an alias.
    aliases: BTreeMap<Ipv4Addr, Vec<&'a str>>,
}

impl<'a> Compared<'a> {
    fn new(pool: &'a ObservedPool, observed: &'a Observed) -> Compared<'a> {
        let mut records = BTreeMap::new();
        for (address, record) in pool.pool.pool.records() {
            if let IpAddr::V4(address) = IpAddr::from(address) {
                records.insert(address, record);
            }
        }
        let mut aliases: BTreeMap<Ipv4Addr, Vec<&str>> = BTreeMap::new();
        for (name, node) in &observed.nodes {
            for alias in node.aliases.iter().flatten() {
                if let Some(address) = address_of(alias, pool) {
                    aliases.entry(address).or_default().push(name);
                }
            }
        }
        Compared {
            observed,
            pool,
            records,
            aliases,
        }
    }

    fn of_allocations(&self) -> Vec<Problem> {
        let mut found = Vec::new();
        for (address, record) in &self.records {
            if !is_under_way(record) {
                found.extend(self.of_allocation(*address, record));
            }
        }
        found
    }

    fn of_allocation(&self, address: Ipv4Addr, record: &Record) -> Option<Problem> {
        let pod = record.owner.subject.clone();
        let node = record.attribute(NODE).unwrap_or_default().to_owned();
        if !self.observed.pods.contains_key(record.owner.part.as_str()) {
            return Some(match self.observed.nodes.contains_key(&node) {
                true => Problem::PodGone { address, pod },
                false => Problem::NodeGone { address, pod, node },
            });
        }
        let Some(known) = self.observed.nodes.get(&node) else {
            return Some(Problem::NodeGone { address, pod, node });
        };
        // A NIC that can't be read is not one without aliases.
        if known.aliases.is_err() {
            return None;
        }
        let holders = self.aliases.get(&address).map(Vec::as_slice);
        match holders.unwrap_or_default() {
            holders if holders.contains(&node.as_str()) => None,
            [] => Some(Problem::AliasMissing { address, pod, node }),
            [other, ..] => Some(Problem::AliasElsewhere {
                address,
                pod,
                node: (*other).to_owned(),
                allocated: node,
            }),
        }
    }

    fn of_aliases(&self) -> Vec<Problem> {
        let left = self.aliases.iter();
        let left = left.filter(|(address, _)| !self.records.contains_key(address));
        left.flat_map(|(address, nodes)| {
            nodes.iter().map(|node| Problem::AliasLeft {
                address: *address,
                node: (*node).to_owned(),
            })
        })
        .collect()
    }

    fn of_pods(&self) -> Vec<Problem> {
        let mut found = Vec::new();
        for pod in self.observed.pods.values() {
            let addresses = pod.addresses.iter().copied();
            for address in addresses.filter(|address| self.pool.pool.cidr.contains(address)) {
                match self.records.get(&address) {
                    None => found.push(Problem::NotAllocated {
                        address,
                        pod: pod.name.clone(),
                    }),
                    // While it moves, the source pod and its clone both show it.
                    Some(record)
                        if record.owner.part.as_str() != pod.uid && !is_under_way(record) =>
                    {
                        found.push(Problem::AllocatedToAnother {
                            address,
                            pod: pod.name.clone(),
                            holder: record.owner.subject.clone(),
                        });
                    }
                    Some(_) => {}
                }
            }
        }
        found
    }

    /// The gateway is on every host-side interface, so it is local by design.
    fn of_routes(&self) -> Vec<Problem> {
        let cidr = self.pool.pool.cidr;
        let local = self.observed.local.iter().copied();
        let swallowed = local.filter(|address| {
            let known = self.records.contains_key(address) || self.aliases.contains_key(address);
            known && *address != gateway(cidr)
        });
        swallowed
            .map(|address| Problem::LocalRoute { address })
            .collect()
    }
}
