//! The model's API server: objects and conditional writes.

use std::collections::{BTreeMap, BTreeSet};

use berth_core::slice::machine::event::{Deleted, Written};
use berth_core::slice::machine::{Lease, Mode, Published, Stamp, Token, Uid, Version};
use berth_core::{Address, Prefix};

#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Server {
    pub leases: BTreeMap<Prefix, (Lease, Stamp)>,
    /// By node.
    pub published: BTreeMap<usize, (Published, Stamp)>,
    /// None: there is no plain pool.
    pub mode: Option<Mode>,
    pub plain: BTreeSet<Address>,
}

/// A new stamp; a write of an object keeps its UID.
fn stamp(fresh: u64, of: Option<Stamp>) -> Stamp {
    Stamp {
        uid: of.map_or(Uid(fresh.into()), |stamp| stamp.uid),
        version: Version(fresh),
    }
}

impl Server {
    pub fn create_lease(&mut self, lease: Lease, fresh: u64) -> Written {
        if self.leases.contains_key(&lease.slice) {
            return Written::Refused;
        }
        let stamp = stamp(fresh, None);
        self.leases.insert(lease.slice, (lease, stamp));
        Written::Yes(stamp)
    }

    pub fn write_lease(&mut self, lease: Lease, expected: Stamp, fresh: u64) -> Written {
        match self.leases.get_mut(&lease.slice) {
            Some((now, current)) if *current == expected => {
                *now = lease;
                *current = stamp(fresh, Some(expected));
                Written::Yes(*current)
            }
            _ => Written::Refused,
        }
    }

    pub fn delete_lease(&mut self, slice: Prefix, expected: Option<Stamp>) -> Deleted {
        match (self.leases.get(&slice), expected) {
            (Some((_, current)), Some(expected)) if *current != expected => Deleted::Refused,
            _ => {
                self.leases.remove(&slice);
                Deleted::Yes
            }
        }
    }

    pub fn announce(
        &mut self,
        node: usize,
        pool: Published,
        expected: Option<Stamp>,
        fresh: u64,
    ) -> Written {
        let current = self.published.get(&node).map(|(_, stamp)| *stamp);
        if current != expected {
            return Written::Refused;
        }
        let stamp = stamp(fresh, current);
        self.published.insert(node, (pool, stamp));
        Written::Yes(stamp)
    }

    pub fn retract(&mut self, node: usize, expected: Stamp) -> Deleted {
        match self.published.get(&node) {
            Some((_, current)) if *current != expected => Deleted::Refused,
            _ => {
                self.published.remove(&node);
                Deleted::Yes
            }
        }
    }

    pub fn token(&self) -> Option<Token> {
        self.mode.map(|mode| mode.token)
    }

    pub fn set_mode(&mut self, expected: Option<Token>, mode: Mode) {
        if self.token() == expected {
            self.mode = Some(mode);
        }
    }
}
