//! Slices: sub-ranges that belong to one node at a time.
//!
//! Guarantees: slices of one range never overlap; a live slice stays where it is when other slices change; a slice
//! that is reassigned gets a new epoch (I8); the same nodes always get the same assignment. A cut is arithmetic and
//! not a list, so a range may have 2^64 slices. The caller proves that a node is gone; a table reclaims only what the
//! caller names.

pub mod assigned;
pub mod grace;
pub mod machine;
pub mod range_mode;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::{Address, Prefix, Space};

pub mod elastic;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NodeName(String);

impl NodeName {
    pub fn new(name: impl Into<String>) -> Self {
        Self(name.into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// How often a slice was reassigned. A node that knows an older epoch has lost the slice.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Epoch(pub u64);

/// A slice and its node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Holding {
    pub slice: Prefix,
    pub node: NodeName,
    pub epoch: Epoch,
}

/// Why a slice can't be assigned or returned.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SliceError {
    /// The caller prefixes the name of the setting.
    #[error("/{size} does not cut {range}; use a length from /{} to /{max}", .range.length())]
    Size { range: Prefix, size: u8, max: u8 },
    #[error("all slices /{size} of {range} are assigned; {node} gets none")]
    Exhausted {
        range: Prefix,
        size: u8,
        node: NodeName,
    },
    #[error("slice {slice} belongs to {holder} (epoch {}), not to {node}", .epoch.0)]
    Foreign {
        slice: Prefix,
        holder: NodeName,
        epoch: Epoch,
        node: NodeName,
    },
    #[error("slice {slice} is at epoch {}, {node} knows epoch {}", .current.0, .known.0)]
    Stale {
        slice: Prefix,
        node: NodeName,
        known: Epoch,
        current: Epoch,
    },
    #[error("slice {slice} is not assigned")]
    Free { slice: Prefix },
    #[error("slice {slice} was not recalled from {node}")]
    InHand { slice: Prefix, node: NodeName },
}

/// A range cut into slices of one size: two prefixes, no list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    range: Prefix,
    size: u8,
}

impl Cut {
    pub fn new(range: Prefix, size: u8) -> Result<Self, SliceError> {
        let max = range.family().bits();
        if size < range.length() || size > max {
            return Err(SliceError::Size { range, size, max });
        }
        Ok(Self { range, size })
    }

    pub const fn range(self) -> Prefix {
        self.range
    }

    pub const fn size(self) -> u8 {
        self.size
    }

    /// The number of slices; saturates for the whole of IPv6 cut into single addresses.
    pub fn count(self) -> u128 {
        1u128
            .checked_shl((self.size - self.range.length()).into())
            .unwrap_or(u128::MAX)
    }

    pub fn nth(self, n: u128) -> Option<Prefix> {
        if n >= self.count() {
            return None;
        }
        let step = u32::from(self.range.family().bits() - self.size);
        let distance = n.checked_shl(step).unwrap_or(0);
        Prefix::containing(self.range.network().plus(distance)?, self.size)
    }

    /// The slice that contains an address.
    pub fn of(self, address: Address) -> Option<Prefix> {
        self.range
            .contains(address)
            .then(|| Prefix::containing(address, self.size))
            .flatten()
    }

    /// Whether the prefix is one of the slices.
    pub fn has(self, slice: Prefix) -> bool {
        slice.length() == self.size && self.range.covers(slice)
    }

    /// The slice's index, counted from 0.
    pub fn index(self, slice: Prefix) -> Option<u128> {
        if !self.has(slice) {
            return None;
        }
        let distance = slice.network().distance_from(self.range.network())?;
        let step = u32::from(self.range.family().bits() - self.size);
        Some(distance.checked_shr(step).unwrap_or(0))
    }

    /// Where a node starts its search for a free slice, so that nodes which start together rarely collide.
    pub fn search_start(self, node: &NodeName) -> u128 {
        crate::order::hash_index(node.as_str(), self.count())
    }
}

/// Who holds which slice of one range, with the epochs of slices that are free now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SliceTable {
    cut: Cut,
    held: BTreeMap<Prefix, Holding>,
    /// The last epoch of slices that were held before; without it a returning node could not be distinguished from
    /// the current holder.
    epochs: BTreeMap<Prefix, Epoch>,
}

impl SliceTable {
    pub fn new(cut: Cut) -> Self {
        Self {
            cut,
            held: BTreeMap::new(),
            epochs: BTreeMap::new(),
        }
    }

    pub const fn cut(&self) -> Cut {
        self.cut
    }

    /// Adds a holding as it was read.
    pub fn restore(&mut self, holding: Holding) {
        self.epochs.insert(holding.slice, holding.epoch);
        self.held.insert(holding.slice, holding);
    }

    pub fn restore_epoch(&mut self, slice: Prefix, epoch: Epoch) {
        let known = self.epochs.entry(slice).or_default();
        *known = epoch.max(*known);
    }

    pub fn holdings(&self) -> impl Iterator<Item = &Holding> {
        self.held.values()
    }

    pub fn of_node<'a>(&'a self, node: &'a NodeName) -> impl Iterator<Item = &'a Holding> {
        self.held
            .values()
            .filter(move |holding| holding.node == *node)
    }

    /// Assigns one more slice to the node: the first free one at or after `start`, then from the lowest, that has an
    /// address which may be allocated.
    pub fn claim(
        &mut self,
        node: &NodeName,
        usable: &Space,
        start: u128,
    ) -> Result<Holding, SliceError> {
        let slice = self
            .free_from(start, usable)
            .ok_or_else(|| SliceError::Exhausted {
                range: self.cut.range,
                size: self.cut.size,
                node: node.clone(),
            })?;
        let epoch = Epoch(
            self.epochs
                .get(&slice)
                .map_or(1, |last| last.0.saturating_add(1)),
        );
        let holding = Holding {
            slice,
            node: node.clone(),
            epoch,
        };
        self.restore(holding.clone());
        Ok(holding)
    }

    /// One slice for each node that has none, in the order of their names. Holdings stay. Returns the new holdings,
    /// and the nodes for which no slice was left.
    pub fn assign(
        &mut self,
        nodes: &BTreeSet<NodeName>,
        usable: &Space,
    ) -> (Vec<Holding>, Vec<NodeName>) {
        let served: BTreeSet<NodeName> = self.held.values().map(|h| h.node.clone()).collect();
        let mut fresh = Vec::new();
        let mut unserved = Vec::new();
        let mut start = 0;
        for node in nodes.difference(&served) {
            match self.claim(node, usable, start) {
                Ok(holding) => {
                    // The next search starts after this slice: n nodes cost n steps, not n².
                    start = self.index(holding.slice).map_or(0, |n| n + 1);
                    fresh.push(holding);
                }
                Err(_) => unserved.push(node.clone()),
            }
        }
        (fresh, unserved)
    }

    /// Returns a slice. Only its node, at its epoch, can return it (I6, I8).
    pub fn yield_back(
        &mut self,
        slice: Prefix,
        node: &NodeName,
        epoch: Epoch,
    ) -> Result<(), SliceError> {
        self.verify(slice, node, epoch)?;
        self.held.remove(&slice);
        Ok(())
    }

    /// Whether the node may still use the slice under the epoch that it knows.
    pub fn verify(&self, slice: Prefix, node: &NodeName, epoch: Epoch) -> Result<(), SliceError> {
        let holding = self.held.get(&slice).ok_or(SliceError::Free { slice })?;
        if holding.node != *node {
            return Err(SliceError::Foreign {
                slice,
                holder: holding.node.clone(),
                epoch: holding.epoch,
                node: node.clone(),
            });
        }
        if holding.epoch != epoch {
            return Err(SliceError::Stale {
                slice,
                node: node.clone(),
                known: epoch,
                current: holding.epoch,
            });
        }
        Ok(())
    }

    fn index(&self, slice: Prefix) -> Option<u128> {
        self.cut.index(slice)
    }

    fn free_from(&self, start: u128, usable: &Space) -> Option<Prefix> {
        let count = self.cut.count();
        let start = if start < count { start } else { 0 };
        self.free_between(start, count, usable)
            .or_else(|| self.free_between(0, start, usable))
    }

    /// Skips slices without a usable address, so that a large excluded block costs one step.
    fn free_between(&self, from: u128, to: u128, usable: &Space) -> Option<Prefix> {
        let mut n = from;
        while n < to {
            let slice = self.cut.nth(n)?;
            let next = usable.at_or_after(slice.network())?;
            if !slice.contains(next) {
                n = self.index(self.cut.of(next)?)?;
                continue;
            }
            if !self.held.contains_key(&slice) && !self.overlaps_held(slice) {
                return Some(slice);
            }
            n += 1;
        }
        None
    }

    /// Slices of another size may be live in the same range after a change of settings.
    fn overlaps_held(&self, slice: Prefix) -> bool {
        let before = self
            .held
            .range(..slice)
            .next_back()
            .map(|(other, _)| *other);
        let after = self.held.range(slice..).next().map(|(other, _)| *other);
        before
            .into_iter()
            .chain(after)
            .any(|other| other.overlaps(slice))
    }
}

#[cfg(test)]
#[path = "slice/tests.rs"]
mod tests;
