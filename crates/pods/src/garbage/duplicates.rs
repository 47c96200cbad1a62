//! Addresses that several owners have: in pools whose ranges overlap, by a reservation, by their pods' network-status.
//!
//! Guarantees: changes nothing (core's `examine` has the rule). Networks with different names are separate, as their pools
//! and reservations are. An owner that is known to be gone does not count: the collector releases what it left.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use berth_api::names;
use berth_collector::liveness::{Verdict, judge};
use berth_collector::observed::{Held, Note, Owners, PodRef};
use berth_collector::quorum_reader::Attached;
use berth_core::diagnose::{Observation, same_owner, shared};
use berth_core::{Address, Owner};
use berth_ledger::PoolKey;

use super::plan::Reservation;
use super::pool_policies::PoolPolicies;
use super::reservation_index::network_name;

/// One address with several owners.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Duplicate {
    pub address: Address,
    /// The first place of each owner.
    pub holders: Vec<Holder>,
}

/// An owner, and the place that names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    pub owner: Owner,
    pub place: Place,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    Pool(PoolKey),
    Reservation(String),
    /// The pod's own network-status; its UID.
    Pod(String),
}

impl fmt::Display for Duplicate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} has {} holders: ", self.address, self.holders.len())?;
        for (number, holder) in self.holders.iter().enumerate() {
            let comma = if number == 0 { "" } else { ", " };
            write!(f, "{comma}{}", holder.owner)?;
            match &holder.place {
                Place::Pool(pool) => write!(f, " in pool {pool}")?,
                Place::Reservation(name) => write!(f, " by reservation {name}")?,
                Place::Pod(_) => f.write_str(" by its network-status")?,
            }
        }
        Ok(())
    }
}

/// What is compared.
#[derive(Clone, Copy, Debug)]
pub struct Sources<'a> {
    pub held: &'a [Held],
    pub reservations: &'a [Reservation],
    pub attached: &'a [Attached],
    /// Pools that nodes publish, and the nodes.
    pub published: &'a BTreeMap<String, String>,
    pub pool_policies: &'a PoolPolicies,
    /// The names of all networks that have pools.
    pub networks: &'a [String],
}

/// One place among all that are compared.
enum At<'a> {
    Held(&'a Held),
    Reservation(&'a Reservation),
    Attached(&'a Attached),
}

impl<'a> Sources<'a> {
    /// All addresses that have several owners.
    pub fn duplicates(&self) -> Vec<Duplicate> {
        let reserved = self.reserved();
        let address = |place: usize| match self.at(place) {
            At::Held(held) => Some(held.address),
            At::Attached(attached) => Some(attached.address),
            At::Reservation(_) => {
                let named = reserved.get(place.checked_sub(self.held.len())?)?;
                named.map(|(_, address)| address)
            }
        };
        let sighting = |place: usize| {
            let network = match self.at(place) {
                At::Held(held) => {
                    let publisher = self.published.get(&held.pool.name);
                    network_of(&held.pool, publisher.map(String::as_str))?
                }
                At::Attached(attached) => {
                    let pool = self
                        .pool_policies
                        .pool_of(&attached.network, attached.address)?;
                    network_name(pool)?
                }
                At::Reservation(_) => {
                    let named = reserved.get(place.checked_sub(self.held.len())?)?;
                    named.map(|(network, _)| network)?
                }
            };
            let owner = self.owner(place);
            Some(Observation { network, owner })
        };
        let count = self.held.len() + self.reservations.len() + self.attached.len();
        let groups = shared(count, address, sighting);
        let duplicate = |group: Vec<usize>| {
            let address = address(*group.first()?)?;
            let mut holders: Vec<Holder> = Vec::new();
            for place in group {
                let holder = self.holder(place);
                let known = |one: &Holder| same_owner(&one.owner, &holder.owner);
                if !holders.iter().any(known) {
                    holders.push(holder);
                }
            }
            Some(Duplicate { address, holders })
        };
        groups.into_iter().filter_map(duplicate).collect()
    }

    /// The network and address of each reservation.
    fn reserved(&self) -> Vec<Option<(&'a str, Address)>> {
        let known: BTreeSet<&str> = self.networks.iter().map(String::as_str).collect();
        let named = |reservation: &'a Reservation| {
            let name = reservation.key.name.as_str();
            names::reserved(name, known.iter().copied())
        };
        self.reservations.iter().map(named).collect()
    }

    fn at(&self, place: usize) -> At<'a> {
        let reservations = place.checked_sub(self.held.len());
        let attached = reservations.and_then(|place| place.checked_sub(self.reservations.len()));
        match (reservations, attached) {
            (None, _) => At::Held(&self.held[place]),
            (Some(place), None) => At::Reservation(&self.reservations[place]),
            (_, Some(place)) => At::Attached(&self.attached[place]),
        }
    }

    fn owner(&self, place: usize) -> &'a Owner {
        match self.at(place) {
            At::Held(held) => &held.record.owner,
            At::Reservation(reservation) => &reservation.record.owner,
            At::Attached(attached) => &attached.owner,
        }
    }

    fn holder(&self, place: usize) -> Holder {
        let found = match self.at(place) {
            At::Held(held) => Place::Pool(held.pool.clone()),
            At::Reservation(reservation) => Place::Reservation(reservation.key.name.clone()),
            At::Attached(attached) => Place::Pod(attached.uid.clone()),
        };
        Holder {
            owner: self.owner(place).clone(),
            place: found,
        }
    }
}

/// The network of a pool; none for one without a range. A pool whose name was not made from its range says nothing of a
/// network: it is compared with those that have no name.
pub(super) fn network_of<'a>(pool: &'a PoolKey, publisher: Option<&str>) -> Option<&'a str> {
    pool.network?;
    let network = network_name(pool);
    match publisher {
        None => Some(network.unwrap_or_default()),
        Some(node) => match network?.strip_suffix(node)? {
            "" => Some(""),
            named => named.strip_suffix('-'),
        },
    }
}

impl Duplicate {
    /// The same without owners that are gone; none if fewer than two are left.
    pub fn living(mut self, owners: &Owners) -> Option<Duplicate> {
        self.holders.retain(|holder| {
            let by_status = matches!(holder.place, Place::Pod(_));
            by_status || !is_gone(&holder.owner, owners)
        });
        (self.holders.len() > 1).then_some(self)
    }

    /// The pods among its holders.
    pub fn pods(&self) -> impl Iterator<Item = PodRef> {
        let subjects = self.holders.iter().map(|holder| &holder.owner.subject);
        subjects.filter_map(|subject| PodRef::parse(subject))
    }
}

fn is_gone(owner: &Owner, owners: &Owners) -> bool {
    let verdict = judge(&owner.subject, &Note::default(), owners);
    matches!(verdict, Verdict::Gone(_))
}

#[cfg(test)]
mod tests;
