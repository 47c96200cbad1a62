//! The owner of each address, over all pools and reservations, in 32 bytes a place: finds the addresses that several owners
//! may have.
//!
//! Only digests of owners and numbers of networks are kept, so that 250,000 places need 8 MB. An address that seems to be
//! shared is read once more, whole ([`Shared`]), and compared as it is written ([`super::duplicates`]).

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use berth_api::names;
use berth_collector::observed::{Held, Note};
use berth_collector::quorum_reader::Attached;
use berth_core::{Address, Family, Owner, Pool, Record};
use berth_ledger::{ClaimKey, PoolKey};

use super::duplicates::network_of;
use super::plan::Reservation;
use super::pool_policies::PoolPolicies;
use super::reservation_index::network_name;

/// All places that name an owner for an address. Pools are added first: their names contain those of the networks, by
/// which the name of a reservation is parsed.
#[derive(Debug, Default)]
pub struct AddressIndex {
    places: Vec<Place>,
    networks: BTreeMap<String, u32>,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    bits: [u64; 2],
    subject: u64,
    /// Zero for a writer that does not name the interface.
    part: u32,
    /// The number of the network, and [`V6`] and [`RESERVED`].
    network: u32,
}

const V6: u32 = 1 << 31;
const RESERVED: u32 = 1 << 30;

impl Place {
    fn of(address: Address, network: u32, owner: &Owner) -> Place {
        let (subject, part) = digest(owner);
        let family = if address.family() == Family::V6 {
            V6
        } else {
            0
        };
        Place {
            bits: halves(address),
            subject,
            part,
            network: network | family,
        }
    }

    fn order(&self) -> (bool, [u64; 2]) {
        (self.network & V6 != 0, self.bits)
    }

    fn is_reserved(&self) -> bool {
        self.network & RESERVED != 0
    }

    fn network(&self) -> u32 {
        self.network & !(V6 | RESERVED)
    }

    /// As [`berth_core::diagnose::same_owner`] has it.
    fn is_of(&self, (subject, part): (u64, u32)) -> bool {
        self.subject == subject && (self.part == part || self.part == 0 || part == 0)
    }

    fn address(&self) -> Option<Address> {
        let [high, low] = self.bits;
        let family = match self.network & V6 {
            0 => Family::V4,
            _ => Family::V6,
        };
        Address::new(family, u128::from(high) << 64 | u128::from(low))
    }
}

#[allow(clippy::cast_possible_truncation, reason = "the two halves")]
fn halves(address: Address) -> [u64; 2] {
    let bits = address.bits();
    [(bits >> 64) as u64, bits as u64]
}

#[allow(clippy::cast_possible_truncation, reason = "a digest")]
fn digest(owner: &Owner) -> (u64, u32) {
    let number = |text: &str| {
        let mut hasher = DefaultHasher::new();
        text.hash(&mut hasher);
        hasher.finish()
    };
    let part = match owner.part.as_str() {
        "" => 0,
        part => (number(part) as u32).max(1),
    };
    (number(&owner.subject), part)
}

impl AddressIndex {
    /// Adds a pool; `publisher` is the node that publishes it, if it shows a slice.
    pub fn add_pool(&mut self, key: &PoolKey, publisher: Option<&str>, pool: &Pool) {
        let Some(network) = network_of(key, publisher) else {
            return;
        };
        let count = u32::try_from(self.networks.len()).unwrap_or(u32::MAX) & !(V6 | RESERVED);
        let network = *self.networks.entry(network.to_owned()).or_insert(count);
        let all = pool.records().chain(pool.duplicate_holders());
        let places = all.map(|(address, record)| Place::of(address, network, &record.owner));
        self.places.extend(places);
    }

    /// Adds a reservation. One of a network without a pool shares its address with none.
    pub fn add_reservation(&mut self, name: &str, owner: &Owner) {
        let known = self.networks.keys().map(String::as_str);
        let Some((network, address)) = names::reserved(name, known) else {
            return;
        };
        if let Some(network) = self.networks.get(network) {
            let network = network | RESERVED;
            self.places.push(Place::of(address, network, owner));
        }
    }

    /// To be called when everything was added.
    pub fn sort(&mut self) {
        self.places.sort_unstable_by_key(Place::order);
    }

    /// The names of all networks that have pools.
    pub fn networks(&self) -> Vec<String> {
        self.networks.keys().cloned().collect()
    }

    /// The addresses for which different owners are named within one network.
    pub fn shared(&self) -> BTreeSet<Address> {
        let groups = self.places.chunk_by(|a, b| a.order() == b.order());
        let is_shared = |group: &&[Place]| {
            group.iter().enumerate().any(|(number, one)| {
                let mut before = group.iter().take(number);
                let owner = (one.subject, one.part);
                before.any(|other| other.network() == one.network() && !other.is_of(owner))
            })
        };
        let shared = groups.filter(|group| group.len() > 1).filter(is_shared);
        shared
            .filter_map(|group| group.first()?.address())
            .collect()
    }

    /// Whether an address of a pod's network-status has to be compared: its network is known, and the pools do not have it for
    /// that pod alone.
    pub fn differ(&self, attached: &Attached, pool_policies: &PoolPolicies) -> bool {
        let pool = pool_policies.pool_of(&attached.network, attached.address);
        let Some(network) = pool.and_then(network_name) else {
            return false;
        };
        let Some(network) = self.networks.get(network) else {
            return true;
        };
        let (sought, owner) = (
            Place::of(attached.address, *network, &attached.owner),
            digest(&attached.owner),
        );
        let from = self
            .places
            .partition_point(|place| place.order() < sought.order());
        let at = self.places.iter().skip(from);
        let mut holders = at
            .take_while(|place| place.order() == sought.order())
            .filter(|place| place.network() == *network && !place.is_reserved())
            .peekable();
        holders.peek().is_none() || holders.any(|place| !place.is_of(owner))
    }
}

/// The entries and reservations of some addresses, whole.
#[derive(Debug, Default)]
pub struct Shared {
    wanted: BTreeSet<Address>,
    networks: Vec<String>,
    pub held: Vec<Held>,
    pub reservations: Vec<Reservation>,
}

impl Shared {
    /// Of the addresses that `index` finds shared, and of those in these pods' network-status.
    pub fn of(index: &AddressIndex, attached: &[Attached]) -> Shared {
        let mut wanted = index.shared();
        wanted.extend(attached.iter().map(|one| one.address));
        Shared {
            wanted,
            networks: index.networks(),
            ..Shared::default()
        }
    }

    /// Whether there is nothing to compare.
    pub fn is_empty(&self) -> bool {
        self.wanted.is_empty()
    }

    pub fn networks(&self) -> &[String] {
        &self.networks
    }

    pub fn add_pool(&mut self, key: &PoolKey, pool: &Pool) {
        let all = pool.records().chain(pool.duplicate_holders());
        let wanted = all.filter(|(address, _)| self.wanted.contains(address));
        let held = wanted.map(|(address, record)| Held {
            pool: key.clone(),
            address,
            record: record.clone(),
            note: Note::default(),
        });
        self.held.extend(held);
    }

    pub fn add_reservation(&mut self, key: ClaimKey, record: Record) {
        let known = self.networks.iter().map(String::as_str);
        let named = names::reserved(&key.name, known);
        if named.is_some_and(|(_, address)| self.wanted.contains(&address)) {
            self.reservations.push(Reservation { key, record });
        }
    }
}
