//! The model's cluster: claims at the API server, writes in flight, and nodes.

use std::collections::BTreeMap;

use berth_core::slice::Epoch;
use berth_core::slice::elastic::{Claimed, Standing, standing};
use berth_core::{Address, Block, Prefix, Space};

use crate::machine::{Machine, Task, name};
use crate::write::{Sent, Write, change};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Cluster {
    pub claims: BTreeMap<Prefix, Claimed>,
    pub wire: Vec<Sent>,
    pub machines: Vec<Machine>,
    pub crashes_left: u8,
    pub outages_left: u8,
    /// How often a Node object may still be deleted while its agent runs.
    pub deletions_left: u8,
    /// How often a slice may still be transferred: each transfer is a new epoch.
    pub transfers_left: u8,
}

impl Cluster {
    pub fn send(&mut self, from: Option<usize>, write: Write) {
        if let Some(node) = from {
            self.machines[node].task = Some(Task::Waiting(write.clone()));
        }
        self.wire.push(Sent {
            write,
            from,
            doomed: false,
            awaited: true,
        });
        self.wire.sort_unstable();
    }

    /// A node loses its task.
    pub fn interrupt(&mut self, node: usize) {
        self.machines[node].task = None;
        for sent in self.wire.iter_mut().filter(|sent| sent.from == Some(node)) {
            sent.awaited = false;
        }
        self.wire.sort_unstable();
    }

    /// Whether a slice that a node holds is no longer its own, by its current claim.
    pub fn is_lost(&self, node: usize, range: Prefix) -> bool {
        let known = self.machines[node].holdings.get(&range);
        let claim = self.claims.get(&range);
        known.is_some_and(|known| standing(&name(node), known, claim) != Standing::Ours)
    }

    /// The claim that a part was cut out of.
    pub fn parent(&self, part: Prefix, cut: u8) -> Option<Prefix> {
        if part.length() <= cut {
            return None;
        }
        let over = self
            .claims
            .keys()
            .filter(|range| **range != part && range.covers(part));
        over.max_by_key(|range| range.length()).copied()
    }

    /// Executes a write that has arrived; returns whether it changed anything.
    pub fn arrive(&mut self, at: usize) -> (Sent, bool) {
        let sent = self.wire.remove(at);
        let changed = !sent.doomed && self.carry_out(&sent);
        if changed {
            let touched = sent.write.target();
            for other in &mut self.wire {
                other.doomed |= other.write.is_guarded() && other.write.target() == touched;
            }
            self.wire.sort_unstable();
            for machine in &mut self.machines {
                machine.outdate(touched);
            }
        }
        (sent, changed)
    }

    fn carry_out(&mut self, sent: &Sent) -> bool {
        let from = sent.from;
        match sent.write.clone() {
            Write::Create { range, uid, .. } => {
                let Some(node) = from else { return false };
                if self.claims.contains_key(&range) {
                    return false;
                }
                let claim = Claimed {
                    range,
                    node: name(node),
                    node_uid: uid.to_string(),
                    epoch: Epoch(1),
                    offers: Vec::new(),
                    wants: Vec::new(),
                    recalled: false,
                };
                self.claims.insert(range, claim);
                true
            }
            Write::Delete { range, .. } => self.claims.remove(&range).is_some(),
            write => {
                let Some(claim) = self.claims.get_mut(&write.target()) else {
                    return false;
                };
                change(claim, write, from);
                true
            }
        }
    }
}

pub fn addresses(range: Prefix) -> Vec<Address> {
    let block = range.block();
    let mut all = Vec::new();
    let mut next = Some(block.first());
    while let Some(address) = next.filter(|address| *address <= block.last()) {
        all.push(address);
        next = address.next();
    }
    all
}

/// All addresses are usable: what a dialect withholds is not modelled.
pub fn usable(range: Prefix) -> Space {
    Space::list([Block::new(range.network(), range.last())])
}
