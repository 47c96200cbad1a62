//! All allocations of one pool, indexed by address, owner and handle.
//!
//! Guarantees: every change is checked against its precondition before it is applied, so a pool in memory never holds
//! what its ledger would refuse (I1, I6). Lookups cost the logarithm of what is allocated. Inconsistent data (two
//! holders of one address, an entry that is not an address) is kept and can be reported; it is never dropped here.

use std::collections::{BTreeMap, BTreeSet};

use rangemap::RangeInclusiveSet;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::{Address, Block, Handle, Moment, Owner, Record};

/// One step of a commit. Each carries its own precondition; a ledger applies all or none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Change {
    /// Fails if the address is held (I1).
    Allocate { address: Address, record: Record },
    /// Fails unless the same holder has it (I6). With a cooldown, no other owner gets it until then (I10).
    Release {
        address: Address,
        expected: Record,
        cooldown: Option<Cooldown>,
    },
    /// Fails unless the same holder has it.
    Update {
        address: Address,
        expected: Record,
        record: Record,
    },
}

impl Change {
    pub const fn address(&self) -> Address {
        match self {
            Self::Allocate { address, .. }
            | Self::Release { address, .. }
            | Self::Update { address, .. } => *address,
        }
    }
}

/// A released address cools down until `until` before any owner but its last gets it (I10).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cooldown {
    pub since: Moment,
    pub until: Moment,
    pub owner: Owner,
}

/// A change whose precondition does not hold.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Mismatch {
    #[error("{address} is held by {by}")]
    Held { address: Address, by: Owner },
    #[error("{address} is not held by {expected}")]
    NotHeld { address: Address, expected: Owner },
}

/// An entry of the store that is not an allocation of this pool: kept there, reported, never changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unparsed {
    pub key: String,
    pub why: String,
}

#[derive(Clone, Debug, Default)]
pub struct Pool {
    records: BTreeMap<Address, Record>,
    /// Further holders of an address that is already in `records`: another writer violated I1.
    duplicate_holders: BTreeMap<Address, Vec<Record>>,
    owners: BTreeMap<Owner, BTreeSet<Address>>,
    handles: BTreeMap<Handle, BTreeSet<Address>>,
    held: RangeInclusiveSet<Address>,
    cooldowns: BTreeMap<Address, Cooldown>,
    cooldowns_by_age: BTreeSet<(Moment, Address)>,
    cooldowns_by_owner: BTreeMap<Owner, BTreeSet<Address>>,
    /// The free addresses in the store's order, if the store keeps one.
    listing: Option<Vec<Address>>,
    unparsed: Vec<Unparsed>,
}

impl Pool {
    pub fn new() -> Self {
        Self::default()
    }

    /// A pool whose store keeps its free addresses in a list with its own order.
    pub fn with_listing(free: Vec<Address>) -> Self {
        Self {
            listing: Some(free),
            ..Self::default()
        }
    }

    /// Adds an entry as it was read, even if another holder already has the address.
    pub fn restore(&mut self, address: Address, record: Record) {
        if self.records.contains_key(&address) {
            self.index(address, &record);
            self.duplicate_holders
                .entry(address)
                .or_default()
                .push(record);
        } else {
            self.insert(address, record);
        }
    }

    pub fn restore_cooldown(&mut self, address: Address, cooldown: Cooldown) {
        self.remove_cooldown(address);
        self.cooldowns_by_age.insert((cooldown.since, address));
        self.cooldowns_by_owner
            .entry(cooldown.owner.clone())
            .or_default()
            .insert(address);
        self.cooldowns.insert(address, cooldown);
    }

    pub fn restore_unparsed(&mut self, entry: Unparsed) {
        self.unparsed.push(entry);
    }

    pub fn len(&self) -> usize {
        self.records.len()
    }

    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    pub fn get(&self, address: Address) -> Option<&Record> {
        self.records.get(&address)
    }

    pub fn records(&self) -> impl Iterator<Item = (Address, &Record)> {
        self.records
            .iter()
            .map(|(address, record)| (*address, record))
    }

    /// Holders beyond the first, of addresses that have several.
    pub fn duplicate_holders(&self) -> impl Iterator<Item = (Address, &Record)> {
        self.duplicate_holders
            .iter()
            .flat_map(|(address, list)| list.iter().map(|record| (*address, record)))
    }

    pub fn unparsed(&self) -> &[Unparsed] {
        &self.unparsed
    }

    pub fn cooldowns(&self) -> impl Iterator<Item = (Address, &Cooldown)> {
        self.cooldowns
            .iter()
            .map(|(address, cooldown)| (*address, cooldown))
    }

    /// Addresses that cool down at that moment. One whose cooldown is over is free, though it is still recorded.
    pub fn cooling(&self, now: Moment) -> impl Iterator<Item = Address> {
        let cooldowns = self.cooldowns.iter();
        cooldowns
            .filter(move |(_, cooldown)| cooldown.until > now)
            .map(|(address, _)| *address)
    }

    pub fn listing(&self) -> Option<&[Address]> {
        self.listing.as_deref()
    }

    /// The addresses that `owner` holds, ascending.
    pub fn held_by(&self, owner: &Owner) -> impl Iterator<Item = Address> {
        self.owners.get(owner).into_iter().flatten().copied()
    }

    /// The addresses that were allocated under `handle`, ascending, with their records.
    pub fn held_under(&self, handle: &Handle) -> impl Iterator<Item = (Address, &Record)> {
        self.handles
            .get(handle)
            .into_iter()
            .flatten()
            .flat_map(move |address| {
                self.holders(*address)
                    .filter(move |record| record.handle == *handle)
                    .map(move |record| (*address, record))
            })
    }

    /// All holders of the address: one, except in inconsistent stores.
    pub fn holders(&self, address: Address) -> impl Iterator<Item = &Record> {
        let duplicate_holders = self.duplicate_holders.get(&address).into_iter().flatten();
        self.records
            .get(&address)
            .into_iter()
            .chain(duplicate_holders)
    }

    pub fn is_held(&self, address: Address) -> bool {
        self.records.contains_key(&address)
    }

    /// The end of the run of held addresses that contains `address`.
    pub(crate) fn held_until(&self, address: Address) -> Option<Address> {
        self.held.get(&address).map(|run| *run.end())
    }

    /// Runs of held addresses that touch `first..=last`, ascending.
    pub(crate) fn held_runs(
        &self,
        first: Address,
        last: Address,
    ) -> impl Iterator<Item = (Address, Address)> {
        let window = first..=last;
        let runs: Vec<_> = self
            .held
            .overlapping(&window)
            .map(|run| (*run.start(), *run.end()))
            .collect();
        runs.into_iter()
    }

    pub(crate) fn cooldown(&self, address: Address) -> Option<&Cooldown> {
        self.cooldowns.get(&address)
    }

    pub(crate) fn cooldowns_of(&self, owner: &Owner) -> impl Iterator<Item = (Address, &Cooldown)> {
        let mine = self.cooldowns_by_owner.get(owner).into_iter().flatten();
        mine.filter_map(|address| Some((*address, self.cooldowns.get(address)?)))
    }

    pub(crate) fn cooldowns_within(&self, block: Block) -> impl Iterator<Item = Address> {
        self.cooldowns
            .range(block.first()..=block.last())
            .map(|(address, _)| *address)
    }

    /// Addresses in cooldown, the longest released first.
    pub(crate) fn cooldowns_by_age(&self) -> impl Iterator<Item = (Address, &Cooldown)> {
        self.cooldowns_by_age
            .iter()
            .filter_map(|(_, address)| Some((*address, self.cooldowns.get(address)?)))
    }

    /// Applies one change, or names the precondition that fails and changes nothing.
    pub fn apply(&mut self, change: &Change) -> Result<(), Mismatch> {
        match change {
            Change::Allocate { address, record } => {
                if let Some(holder) = self.records.get(address) {
                    return Err(Mismatch::Held {
                        address: *address,
                        by: holder.owner.clone(),
                    });
                }
                self.remove_cooldown(*address);
                if let Some(listing) = &mut self.listing {
                    listing.retain(|free| free != address);
                }
                self.insert(*address, record.clone());
            }
            Change::Release {
                address,
                expected,
                cooldown,
            } => {
                self.take_out(*address, expected)?;
                if self.is_held(*address) {
                    return Ok(());
                }
                if let Some(listing) = &mut self.listing {
                    listing.push(*address);
                }
                if let Some(cooldown) = cooldown {
                    self.restore_cooldown(*address, cooldown.clone());
                }
            }
            Change::Update {
                address,
                expected,
                record,
            } => {
                self.take_out(*address, expected)?;
                self.restore(*address, record.clone());
            }
        }
        Ok(())
    }

    fn insert(&mut self, address: Address, record: Record) {
        self.index(address, &record);
        self.held.insert(address..=address);
        self.records.insert(address, record);
    }

    fn index(&mut self, address: Address, record: &Record) {
        self.owners
            .entry(record.owner.clone())
            .or_default()
            .insert(address);
        self.handles
            .entry(record.handle.clone())
            .or_default()
            .insert(address);
    }

    /// Removes the holder that `expected` names; another holder of the address replaces it.
    fn take_out(&mut self, address: Address, expected: &Record) -> Result<(), Mismatch> {
        let not_held = || Mismatch::NotHeld {
            address,
            expected: expected.owner.clone(),
        };
        let first = self.records.get(&address).ok_or_else(not_held)?;
        let gone = if first.same_holder(expected) {
            let rival = self
                .duplicate_holders
                .get_mut(&address)
                .and_then(|list| (!list.is_empty()).then(|| list.remove(0)));
            match rival {
                Some(rival) => self.records.insert(address, rival),
                None => {
                    self.held.remove(address..=address);
                    self.records.remove(&address)
                }
            }
        } else {
            let duplicate_holders = self
                .duplicate_holders
                .get_mut(&address)
                .ok_or_else(not_held)?;
            let place = duplicate_holders
                .iter()
                .position(|r| r.same_holder(expected))
                .ok_or_else(not_held)?;
            Some(duplicate_holders.remove(place))
        };
        if self
            .duplicate_holders
            .get(&address)
            .is_some_and(Vec::is_empty)
        {
            self.duplicate_holders.remove(&address);
        }
        if let Some(gone) = gone {
            self.unindex(address, &gone);
        }
        Ok(())
    }

    fn unindex(&mut self, address: Address, gone: &Record) {
        let still_owner = self
            .holders(address)
            .any(|record| record.owner == gone.owner);
        let still_handle = self
            .holders(address)
            .any(|record| record.handle == gone.handle);
        if !still_owner {
            remove_from(&mut self.owners, &gone.owner, address);
        }
        if !still_handle {
            remove_from(&mut self.handles, &gone.handle, address);
        }
    }

    fn remove_cooldown(&mut self, address: Address) {
        if let Some(cooldown) = self.cooldowns.remove(&address) {
            self.cooldowns_by_age.remove(&(cooldown.since, address));
            remove_from(&mut self.cooldowns_by_owner, &cooldown.owner, address);
        }
    }
}

fn remove_from<K: Ord>(index: &mut BTreeMap<K, BTreeSet<Address>>, key: &K, address: Address) {
    if let Some(set) = index.get_mut(key) {
        set.remove(&address);
        if set.is_empty() {
            index.remove(key);
        }
    }
}
