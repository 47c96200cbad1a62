//! What the node's file keeps of one range, and the changes that are committed to it.
//!
//! The machine changes its own copy when it returns [`super::Effect::Commit`]; the driver makes the same change
//! durable. Only the process that owns the file commits, so the copy equals the file.

use std::collections::{BTreeMap, BTreeSet};

use super::objects::{Addresses, FileId, Nonce, all_of};
use crate::{Address, Prefix};

/// Why an address of a slice is not free.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Hold {
    /// A pod of this node has it.
    Pod,
    /// The plain pool had an entry for it when it was last read.
    Plain,
}

/// The file's part for one range.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stored {
    pub file: FileId,
    /// Slices that this node may allocate from, each with the part that it has stopped allocating from.
    pub slices: BTreeMap<Prefix, Addresses>,
    /// Addresses that are not free, in current and earlier slices.
    pub held: BTreeMap<Address, Hold>,
    /// The publications that the object of a slice may show, as far as this file sent them.
    pub noted: BTreeMap<Prefix, BTreeSet<Nonce>>,
}

/// One transaction on the file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Change {
    /// A pod gets the address.
    Allocate(Address),
    /// Its pod is gone.
    Release(Address),
    /// Addresses that pods have but this file did not know.
    Recover(BTreeSet<Address>),
    /// The slice may be allocated from, except `stopped`; `plain` are the plain pool's entries in it.
    Activate {
        slice: Prefix,
        stopped: Addresses,
        plain: BTreeSet<Address>,
    },
    /// Nothing is allocated from this part of the slice any more.
    Stop { slice: Prefix, part: Addresses },
    /// Nothing is allocated from the slice any more.
    Forget(Prefix),
    /// The same, and its pods' addresses are entries of the plain pool now.
    CopiedOut(Prefix),
    /// The publication is about to be sent.
    Note { slice: Prefix, nonce: Nonce },
    /// The publication arrived: no earlier one is in the object.
    Published { slice: Prefix, nonce: Nonce },
    /// The published object is gone.
    Retracted(Prefix),
}

impl Stored {
    /// The part of a new file.
    pub fn new(file: FileId) -> Self {
        Self {
            file,
            slices: BTreeMap::new(),
            held: BTreeMap::new(),
            noted: BTreeMap::new(),
        }
    }

    /// Whether nothing was ever stored in it.
    pub fn is_new(&self) -> bool {
        self.slices.is_empty() && self.held.is_empty() && self.noted.is_empty()
    }

    pub fn pods_in(&self, slice: Prefix) -> BTreeSet<Address> {
        self.held_in(slice, Hold::Pod)
    }

    pub fn has_pods_in(&self, slice: Prefix) -> bool {
        let mut inside = self.held.range(slice.network()..=slice.last());
        inside.any(|(_, hold)| *hold == Hold::Pod)
    }

    fn held_in(&self, slice: Prefix, kind: Hold) -> BTreeSet<Address> {
        let inside = self.held.range(slice.network()..=slice.last());
        inside
            .filter(|(_, hold)| **hold == kind)
            .map(|(address, _)| *address)
            .collect()
    }

    /// What may still be allocated of a slice.
    pub fn free_in(&self, slice: Prefix) -> Addresses {
        let Some(stopped) = self.slices.get(&slice) else {
            return Addresses::new();
        };
        let mut free = all_of(slice);
        for block in stopped.iter() {
            free.remove(block.clone());
        }
        for (address, _) in self.held.range(slice.network()..=slice.last()) {
            free.remove(*address..=*address);
        }
        free
    }

    pub fn is_free(&self, address: Address) -> bool {
        let mut slices = self.slices.iter();
        !self.held.contains_key(&address)
            && slices.any(|(slice, stopped)| slice.contains(address) && !stopped.contains(&address))
    }

    /// Applies a change, as the file does.
    pub fn apply(&mut self, change: &Change) {
        match change {
            Change::Allocate(address) => {
                self.held.insert(*address, Hold::Pod);
            }
            Change::Release(address) => {
                self.held.remove(address);
            }
            Change::Recover(found) => {
                let pods = found.iter().map(|address| (*address, Hold::Pod));
                self.held.extend(pods);
            }
            Change::Activate {
                slice,
                stopped,
                plain,
            } => {
                self.slices.insert(*slice, stopped.clone());
                self.set_plain(*slice, plain);
            }
            Change::Stop { slice, part } => {
                let stopped = self.slices.entry(*slice).or_default();
                stopped.extend(part.iter().cloned());
            }
            Change::Forget(slice) => {
                self.slices.remove(slice);
                self.set_plain(*slice, &BTreeSet::new());
            }
            Change::CopiedOut(slice) => {
                self.slices.remove(slice);
                self.held.retain(|address, _| !slice.contains(*address));
            }
            Change::Note { slice, nonce } => {
                self.noted.entry(*slice).or_default().insert(*nonce);
            }
            Change::Published { slice, nonce } => {
                self.noted.insert(*slice, BTreeSet::from([*nonce]));
            }
            Change::Retracted(slice) => {
                self.noted.remove(slice);
            }
        }
    }

    /// Sets the plain pool's entries in the slice.
    fn set_plain(&mut self, slice: Prefix, plain: &BTreeSet<Address>) {
        self.held
            .retain(|address, hold| *hold == Hold::Pod || !slice.contains(*address));
        for address in plain {
            self.held.entry(*address).or_insert(Hold::Plain);
        }
    }
}
