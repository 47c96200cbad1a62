//! The cluster as the protocol of slices sees it: claims at the API server, writes on their way, nodes with a
//! durable ledger and a task in memory.
//!
//! A write that was sent arrives later, or after its sender has crashed and gone on: that is where protocols break. A
//! guard (resourceVersion) is modelled by its effect: every write that arrives dooms the others that were planned on what
//! it changed.

use std::collections::{BTreeMap, BTreeSet};

use berth_core::slice::elastic::{Claimed, Known, Offer};
use berth_core::slice::{Epoch, NodeName};
use berth_core::{Address, Block, Handle, Owner, Pool, Prefix, Record, Space};

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Write {
    /// A name that is free: the claim. `back`: by a donor that takes a part back.
    Create {
        range: Prefix,
        uid: u8,
        back: bool,
    },
    /// `frees`: by a donor that takes a part back.
    Delete {
        range: Prefix,
        frees: bool,
    },
    Want {
        parent: Prefix,
    },
    Offer {
        parent: Prefix,
        child: Prefix,
        to: usize,
    },
    /// Nothing to spare.
    Decline {
        parent: Prefix,
        to: usize,
    },
    Withdraw {
        parent: Prefix,
        child: Prefix,
    },
    /// The holder's word that it is there: changes the object, so that older writes die.
    Stamp {
        range: Prefix,
        uid: u8,
    },
    /// The same, so that the rows of a part that is not offered may go.
    Touch {
        range: Prefix,
        part: Prefix,
    },
    /// The whole claim becomes another's.
    PassOn {
        range: Prefix,
        to: usize,
    },
    /// The controller's: its node is gone, parts of it are not.
    Orphan {
        range: Prefix,
    },
    Inherit {
        range: Prefix,
        uid: u8,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sent {
    pub write: Write,
    /// None: the controller.
    pub from: Option<usize>,
    /// What it was planned on is no longer so.
    pub doomed: bool,
    /// Whoever sent it waits for the answer; not after a crash.
    pub awaited: bool,
}

/// What a node's agent is in the middle of. In memory: a crash forgets it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Task {
    /// Waits for the answer to a write.
    Waiting(Write),
    /// The claim is ours; to be confirmed by what it is a part of.
    Confirming(Prefix),
    /// Confirmed; what is in use of it is not settled yet.
    Granted(Prefix),
    /// The rows of before are gone, those of its parts are not there yet: only of one that is careless.
    Emptied(Prefix),
    /// The holding is not committed yet.
    Settled(Prefix),
    /// The claim of a surrendered part is ours again.
    TakingBack(Prefix),
    /// The rows of a part are to be freed; `inner`: those of parts of it too.
    Freeing { part: Prefix, inner: bool },
    /// A part is out of use; to be offered.
    Offering {
        parent: Prefix,
        child: Prefix,
        to: usize,
    },
    /// A slice inside another is out of use there; its holding is to go.
    Shutting { slice: Prefix, to: Option<usize> },
    /// The holding is gone; to be told: given back, or passed on.
    Shut { slice: Prefix, to: Option<usize> },
}

impl Task {
    /// Whether its next step is in the node's own ledger.
    pub fn is_local(&self) -> bool {
        matches!(
            self,
            Task::Granted(_)
                | Task::Emptied(_)
                | Task::Settled(_)
                | Task::Freeing { .. }
                | Task::Shutting { .. }
        )
    }

    /// Whether its next step sends what was planned on what was read before.
    pub fn is_planned(&self) -> bool {
        matches!(self, Task::Shut { .. } | Task::Offering { .. })
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Machine {
    pub up: bool,
    /// Whether the Node object exists, and as which one.
    pub registered: bool,
    pub uid: u8,
    /// Durable.
    pub holdings: BTreeMap<Prefix, Known>,
    pub given: BTreeSet<Address>,
    /// Addresses that are out of use here: the part that each was set aside for.
    pub rows: BTreeMap<Address, Prefix>,
    /// Of this boot: holdings that were compared with their claims.
    pub verified: BTreeSet<Prefix>,
    /// Holdings that were lost, where one that is careless counts them.
    pub lost: BTreeSet<Prefix>,
    pub task: Option<Task>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct World {
    pub claims: BTreeMap<Prefix, Claimed>,
    pub wire: Vec<Sent>,
    pub machines: Vec<Machine>,
    pub crashes_left: u8,
    pub outages_left: u8,
    /// How often a slice may still be passed on: each makes an epoch.
    pub passes_left: u8,
}

pub fn name(node: usize) -> NodeName {
    NodeName::new(format!("n{node}"))
}

impl Machine {
    pub fn fresh() -> Machine {
        Machine {
            up: true,
            registered: true,
            uid: 0,
            holdings: BTreeMap::new(),
            given: BTreeSet::new(),
            rows: BTreeMap::new(),
            verified: BTreeSet::new(),
            lost: BTreeSet::new(),
            task: None,
        }
    }

    pub fn may_give(&self, address: Address) -> bool {
        let mut verified = self.verified.iter();
        self.up
            && !self.rows.contains_key(&address)
            && verified.any(|range| range.contains(address))
    }

    /// The node's pool, as the real decisions want it.
    pub fn pool(&self) -> Pool {
        let mut pool = Pool::new();
        let mut hold = |address, who: &str| {
            pool.restore(address, Record::new(Owner::new(who, ""), Handle::new(who)));
        };
        for address in &self.given {
            hold(*address, "pod");
        }
        for address in self.rows.keys().filter(|row| !self.given.contains(*row)) {
            hold(*address, "surrender");
        }
        pool
    }

    pub fn has_pod_in(&self, range: Prefix) -> bool {
        self.given.iter().any(|address| range.contains(*address))
    }

    /// Nothing is held in it, and nothing is out of use.
    pub fn is_idle_in(&self, range: Prefix) -> bool {
        !self.has_pod_in(range) && !self.rows.keys().any(|row| range.contains(*row))
    }

    /// The holdings that lie inside another one.
    pub fn nested(&self, range: Prefix) -> Vec<Prefix> {
        let all = self.holdings.keys().chain(&self.lost).copied();
        all.filter(|inner| *inner != range && range.covers(*inner))
            .collect()
    }

    pub fn lies_in_another(&self, range: Prefix) -> bool {
        let mut held = self.holdings.keys();
        held.any(|outer| *outer != range && outer.covers(range))
    }

    pub fn set_aside(&mut self, addresses: Vec<Address>, part: Prefix) {
        for address in addresses {
            self.rows.entry(address).or_insert(part);
        }
    }

    /// A claim has changed that this node has read: what it planned to write on it will be refused.
    fn outdate(&mut self, range: Prefix) {
        match self.task {
            Some(Task::Shut { slice, .. }) if slice == range => self.task = None,
            Some(Task::Offering { parent, child, .. }) if parent == range => {
                let (part, inner) = (child, false);
                self.task = Some(Task::Freeing { part, inner });
            }
            _ => {}
        }
    }

    pub fn hold(&mut self, claim: &Claimed) {
        let known = Known {
            range: claim.range,
            node_uid: claim.node_uid.clone(),
            epoch: claim.epoch,
        };
        self.holdings.insert(claim.range, known);
        self.verified.insert(claim.range);
        self.lost.remove(&claim.range);
    }

    pub fn drop_holding(&mut self, range: Prefix) {
        self.holdings.remove(&range);
        self.verified.remove(&range);
    }
}

impl World {
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

    /// A node forgets what it was in the middle of.
    pub fn interrupt(&mut self, node: usize) {
        self.machines[node].task = None;
        for sent in self.wire.iter_mut().filter(|sent| sent.from == Some(node)) {
            sent.awaited = false;
        }
        self.wire.sort_unstable();
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

    /// Carries out a write that has arrived; says whether it changed anything.
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

fn change(claim: &mut Claimed, write: Write, from: Option<usize>) {
    match write {
        Write::Want { .. } => claim.wants.extend(from.map(name)),
        Write::Offer { child, to, .. } => {
            claim.wants.retain(|node| *node != name(to));
            claim.offers.push(Offer {
                range: child,
                node: name(to),
            });
            claim.offers.sort_unstable();
        }
        Write::Decline { to, .. } => claim.wants.retain(|node| *node != name(to)),
        Write::Withdraw { child, .. } => claim.offers.retain(|offer| offer.range != child),
        Write::Stamp { uid, .. } => claim.node_uid = uid.to_string(),
        Write::PassOn { to, .. } => {
            claim.node = name(to);
            claim.node_uid = String::new();
            claim.epoch = Epoch(claim.epoch.0 + 1);
            claim.offers.clear();
            claim.wants.clear();
        }
        Write::Orphan { .. } => {
            claim.node = NodeName::new("");
            claim.epoch = Epoch(claim.epoch.0 + 1);
            claim.wants.clear();
        }
        Write::Inherit { uid, .. } => {
            claim.node = from.map(name).unwrap_or(NodeName::new(""));
            claim.node_uid = uid.to_string();
            claim.epoch = Epoch(claim.epoch.0 + 1);
            claim.wants.clear();
        }
        Write::Create { .. } | Write::Delete { .. } | Write::Touch { .. } => {}
    }
}

impl Write {
    /// The object that it writes.
    pub fn target(&self) -> Prefix {
        match self {
            Write::Create { range, .. }
            | Write::Delete { range, .. }
            | Write::Stamp { range, .. }
            | Write::Touch { range, .. }
            | Write::PassOn { range, .. }
            | Write::Orphan { range }
            | Write::Inherit { range, .. } => *range,
            Write::Want { parent }
            | Write::Offer { parent, .. }
            | Write::Decline { parent, .. }
            | Write::Withdraw { parent, .. } => *parent,
        }
    }

    /// All but the CREATE name the version that they were planned on.
    fn is_guarded(&self) -> bool {
        !matches!(self, Write::Create { .. })
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

/// Everything may be given: what a dialect withholds is not what is modelled.
pub fn usable(range: Prefix) -> Space {
    Space::list([Block::new(range.network(), range.last())])
}
