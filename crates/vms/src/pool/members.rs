//! The VMs that a pool may give, now.
//!
//! Promises that a VM that left the settings while it is in use is still found by its owner, and
//! given to nobody else.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::{Arc, PoisonError, RwLock};

use berth_core::{Address, Block, Pool, Space};

#[derive(Debug, Default)]
pub(super) struct Members {
    now: RwLock<Arc<Roll>>,
}

/// One state of the membership.
#[derive(Debug)]
pub(super) struct Roll {
    /// In the order of the settings.
    pub listed: Vec<Address>,
    /// No longer listed, and in use when last looked.
    pub leaving: BTreeSet<Address>,
    /// Both: where an owner's own VM is looked for.
    pub space: Arc<Space>,
}

impl Default for Roll {
    fn default() -> Self {
        Self::new(Vec::new(), BTreeSet::new())
    }
}

impl Roll {
    fn new(listed: Vec<Address>, leaving: BTreeSet<Address>) -> Self {
        let all = runs(&listed)
            .into_iter()
            .chain(leaving.iter().copied().map(Block::single));
        Self {
            space: Arc::new(Space::list(all)),
            listed,
            leaving,
        }
    }
}

impl Members {
    pub(super) fn roll(&self) -> Arc<Roll> {
        Arc::clone(&self.now.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn set(&self, ips: &[IpAddr], pool: &Pool) {
        let listed: Vec<Address> = ips.iter().copied().map(Address::from).collect();
        let known: BTreeSet<Address> = listed.iter().copied().collect();
        let held = pool.records().map(|(address, _)| address);
        let leaving = held.filter(|address| !known.contains(address)).collect();
        let roll = Arc::new(Roll::new(listed, leaving));
        *self.now.write().unwrap_or_else(PoisonError::into_inner) = roll;
    }
}

/// Neighbours that follow each other in the list as blocks: a thousand VMs are rarely a thousand
/// blocks.
fn runs(listed: &[Address]) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    for address in listed {
        match blocks.last_mut() {
            Some(last) if last.last().next() == Some(*address) => {
                *last = Block::new(last.first(), *address);
            }
            _ => blocks.push(Block::single(*address)),
        }
    }
    blocks
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_core::{Handle, Owner, Record};

    #[test]
    fn a_vm_in_use_is_found_after_it_left_the_settings() {
        let ip = |text: &str| -> IpAddr { text.parse().unwrap() };
        let mut pool = Pool::new();
        let record = Record::new(Owner::new("a", ""), Handle::new("a"));
        pool.restore(ip("10.0.0.9").into(), record);
        let members = Members::default();
        members.set(&[ip("10.0.0.3"), ip("10.0.0.4"), ip("10.0.0.1")], &pool);
        let roll = members.roll();
        assert_eq!(roll.space.count(), 4);
        assert!(roll.space.contains(ip("10.0.0.9").into()));
        assert!(roll.leaving.contains(&ip("10.0.0.9").into()));
        assert_eq!(roll.listed.len(), 3);
        assert_eq!(runs(&roll.listed).len(), 2);
    }
}
