//! The VMs that a pool may allocate now.
//!
//! Guarantees that a VM that is removed from the settings while in use is still found by its owner, and not allocated
//! to another.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use berth_core::{Address, Block, Pool, Space};
use parking_lot::RwLock;

#[derive(Debug, Default)]
pub(super) struct Members {
    now: RwLock<Arc<Membership>>,
}

/// One version of the membership.
#[derive(Debug)]
pub(super) struct Membership {
    /// In the order of the settings.
    pub listed: Vec<Address>,
    /// No longer listed, but in use when last read.
    pub leaving: BTreeSet<Address>,
    /// Both: an owner finds its own VM in this space.
    pub space: Arc<Space>,
}

impl Default for Membership {
    fn default() -> Self {
        Self::new(Vec::new(), BTreeSet::new())
    }
}

impl Membership {
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
    pub(super) fn now(&self) -> Arc<Membership> {
        Arc::clone(&self.now.read())
    }

    pub(super) fn set(&self, ips: &[IpAddr], pool: &Pool) {
        let listed: Vec<Address> = ips.iter().copied().map(Address::from).collect();
        let known: BTreeSet<Address> = listed.iter().copied().collect();
        let held = pool.records().map(|(address, _)| address);
        let leaving = held.filter(|address| !known.contains(address)).collect();
        let membership = Arc::new(Membership::new(listed, leaving));
        *self.now.write() = membership;
    }
}

/// Consecutive addresses of the list as blocks: a thousand VMs are rarely a thousand blocks.
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
        let membership = members.now();
        assert_eq!(membership.space.count(), 4);
        assert!(membership.space.contains(ip("10.0.0.9").into()));
        assert!(membership.leaving.contains(&ip("10.0.0.9").into()));
        assert_eq!(membership.listed.len(), 3);
        assert_eq!(runs(&membership.listed).len(), 2);
    }
}
