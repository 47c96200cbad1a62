//! The table behind a NodeSlicePool: which node has which assigned slice.
//!
//! Guarantees: the same table and the same nodes give the same assignment; existing holdings stay, in whatever order
//! they were made; a slice is assigned only if every network that shares the range has a usable address in it; a
//! slice is reclaimed in two steps and has a new epoch from the first one on (I8).
//!
//! ```text
//!   held by a, epoch 3 --recall--> held by a, epoch 4, recalled: not allocated from --reclaim--> free
//!            ^                                    |
//!            +------- held by a, epoch 4 <--keep--+   the node is there after all
//! ```
//! A node that returns after the recall reads that it may not allocate; a node that returned before the recall is
//! found by the second proof, which is made between the two steps.
//!
//! Unlike a slice that a node claims for itself, an assigned slice starts at epoch 0: a table that whereabouts'
//! controller made has no epochs, and must mean the same here.

use std::collections::{BTreeMap, BTreeSet};

use super::{Cut, Epoch, Holding, NodeName, SliceError};
use crate::{Address, Prefix, Space};

/// Which node holds which slice of one range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignments {
    cut: Cut,
    held: BTreeMap<Prefix, NodeName>,
    epochs: BTreeMap<Prefix, Epoch>,
    /// Held, but recalled: their nodes may not allocate from them.
    recalled: BTreeSet<Prefix>,
}

/// What an assignment changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Assigned {
    pub fresh: Vec<Holding>,
    /// Nodes for which no slice was left.
    pub unserved: Vec<NodeName>,
}

/// The table under another range or slice size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recut {
    pub table: Assignments,
    /// Holdings that are no slices of the new cut.
    pub dropped: Vec<Holding>,
}

/// An address of a slice that is in use.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LiveClaim {
    pub pod: String,
    /// None: a pod on that node requests the network; its address is not known.
    pub address: Option<Address>,
}

impl Assignments {
    pub fn new(cut: Cut) -> Self {
        Self {
            cut,
            held: BTreeMap::new(),
            epochs: BTreeMap::new(),
            recalled: BTreeSet::new(),
        }
    }

    pub const fn cut(&self) -> Cut {
        self.cut
    }

    /// Adds a holding as it was read. One that overlaps another node's is refused.
    pub fn restore(&mut self, slice: Prefix, node: NodeName) -> Result<(), SliceError> {
        if let Some((met, holder)) = self.overlapping(slice) {
            if met == slice && *holder == node {
                return Ok(());
            }
            return Err(SliceError::Foreign {
                slice: met,
                holder: holder.clone(),
                epoch: self.epoch(met),
                node,
            });
        }
        self.held.insert(slice, node);
        Ok(())
    }

    pub fn restore_epoch(&mut self, slice: Prefix, epoch: Epoch) {
        let known = self.epochs.entry(slice).or_default();
        *known = epoch.max(*known);
    }

    /// Marks a holding as recalled; ignored if the slice has no holder.
    pub fn restore_recalled(&mut self, slice: Prefix) {
        if self.held.contains_key(&slice) {
            self.recalled.insert(slice);
        }
    }

    /// Whether its node may not allocate from it.
    pub fn is_recalled(&self, slice: Prefix) -> bool {
        self.recalled.contains(&slice)
    }

    pub fn recalled(&self) -> impl Iterator<Item = Prefix> {
        self.recalled.iter().copied()
    }

    pub fn holder(&self, slice: Prefix) -> Option<&NodeName> {
        self.held.get(&slice)
    }

    pub fn epoch(&self, slice: Prefix) -> Epoch {
        self.epochs.get(&slice).copied().unwrap_or_default()
    }

    /// All epochs above 0.
    pub fn epochs(&self) -> impl Iterator<Item = (Prefix, Epoch)> {
        self.epochs
            .iter()
            .filter(|(_, epoch)| epoch.0 > 0)
            .map(|(slice, epoch)| (*slice, *epoch))
    }

    pub fn holdings(&self) -> impl Iterator<Item = Holding> {
        self.held.iter().map(|(slice, node)| Holding {
            slice: *slice,
            node: node.clone(),
            epoch: self.epoch(*slice),
        })
    }

    pub fn nodes(&self) -> BTreeSet<&NodeName> {
        self.held.values().collect()
    }

    /// One slice for each node that has none, in the order of their names, the lowest free one first.
    pub fn assign(&mut self, nodes: &BTreeSet<NodeName>, usable: &[&Space]) -> Assigned {
        let served: BTreeSet<NodeName> = self.held.values().cloned().collect();
        let mut assigned = Assigned::default();
        // The next search starts after the slice that was found: n nodes cost n steps, not n².
        let mut from = Some(0);
        for node in nodes.difference(&served) {
            let found = from.and_then(|from| self.free_from(from, usable));
            let Some((n, slice)) = found else {
                from = None;
                assigned.unserved.push(node.clone());
                continue;
            };
            from = n.checked_add(1);
            self.held.insert(slice, node.clone());
            assigned.fresh.push(Holding {
                slice,
                node: node.clone(),
                epoch: self.epoch(slice),
            });
        }
        assigned
    }

    /// The first step of reclaiming a slice: its node stops allocating from it. Returns the new epoch (I6, I8).
    pub fn recall(&mut self, slice: Prefix, node: &NodeName) -> Result<Epoch, SliceError> {
        self.verify(slice, node)?;
        if self.recalled.insert(slice) {
            self.advance(slice);
        }
        Ok(self.epoch(slice))
    }

    /// Undoes a recall: the slice stays with its node.
    pub fn keep(&mut self, slice: Prefix) {
        self.recalled.remove(&slice);
    }

    /// The second step: a slice that was recalled from a node becomes free.
    pub fn reclaim(&mut self, slice: Prefix, node: &NodeName) -> Result<Epoch, SliceError> {
        self.verify(slice, node)?;
        if !self.recalled.remove(&slice) {
            return Err(SliceError::InHand {
                slice,
                node: node.clone(),
            });
        }
        self.held.remove(&slice);
        Ok(self.epoch(slice))
    }

    fn verify(&self, slice: Prefix, node: &NodeName) -> Result<(), SliceError> {
        match self.held.get(&slice) {
            None => Err(SliceError::Free { slice }),
            Some(holder) if holder != node => Err(SliceError::Foreign {
                slice,
                holder: holder.clone(),
                epoch: self.epoch(slice),
                node: node.clone(),
            }),
            Some(_) => Ok(()),
        }
    }

    /// The table under another range or size: holdings that are also slices of the new cut stay.
    pub fn recut(&self, cut: Cut) -> Recut {
        let mut table = Self {
            cut,
            held: BTreeMap::new(),
            epochs: self.epochs.clone(),
            recalled: BTreeSet::new(),
        };
        let mut dropped = Vec::new();
        for holding in self.holdings() {
            let recalled = self.is_recalled(holding.slice);
            if cut.has(holding.slice) {
                table.held.insert(holding.slice, holding.node);
                table.recalled.extend(recalled.then_some(holding.slice));
            } else {
                if !recalled {
                    table.advance(holding.slice);
                }
                dropped.push(holding);
            }
        }
        Recut { table, dropped }
    }

    fn advance(&mut self, slice: Prefix) -> Epoch {
        let epoch = self.epochs.entry(slice).or_default();
        epoch.0 = epoch.0.saturating_add(1);
        *epoch
    }

    fn free_from(&self, from: u128, usable: &[&Space]) -> Option<(u128, Prefix)> {
        let mut n = from;
        loop {
            let slice = self.cut.nth(n)?;
            // Skips a large excluded block in one step: to the slice of the highest next usable address.
            let mut furthest = slice.network();
            for space in usable {
                furthest = furthest.max(space.at_or_after(slice.network())?);
            }
            if !slice.contains(furthest) {
                n = self.cut.index(self.cut.of(furthest)?)?;
                continue;
            }
            if self.overlapping(slice).is_none() {
                return Some((n, slice));
            }
            n = n.checked_add(1)?;
        }
    }

    /// Holdings do not overlap each other, so one that overlaps the slice is its neighbour in their order.
    fn overlapping(&self, slice: Prefix) -> Option<(Prefix, &NodeName)> {
        let before = self.held.range(..slice).next_back();
        let after = self.held.range(slice..).next();
        before
            .into_iter()
            .chain(after)
            .find(|(held, _)| held.overlaps(slice))
            .map(|(held, node)| (*held, node))
    }
}

impl Recut {
    /// The live addresses that the change would leave without a slice. Empty if it affects none.
    pub fn stranded<'a>(
        &'a self,
        live: &'a BTreeMap<Prefix, Vec<LiveClaim>>,
    ) -> impl Iterator<Item = (&'a Holding, &'a LiveClaim)> {
        self.dropped.iter().flat_map(|holding| {
            let claims = live.get(&holding.slice).into_iter().flatten();
            claims.map(move |claim| (holding, claim))
        })
    }
}

#[cfg(test)]
#[path = "assigned_tests.rs"]
mod tests;
