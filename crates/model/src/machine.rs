//! A node of the model: a durable ledger of holdings and addresses, and a task in memory that is lost in a crash.

use std::collections::{BTreeMap, BTreeSet};

use berth_core::slice::NodeName;
use berth_core::slice::elastic::{Claimed, Known};
use berth_core::{Address, Handle, Owner, Pool, Prefix, Record};

use crate::write::Write;

/// The task that a node's agent is executing. In memory: lost in a crash.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Task {
    /// Waits for the answer to a write.
    Waiting(Write),
    /// The claim is this node's; it must be confirmed against the slice it is a part of.
    Confirming(Prefix),
    /// Confirmed; which of its addresses are in use is still to be recorded.
    Granted(Prefix),
    /// Its old rows are removed and those of its parts are not written yet: only if careless.
    Emptied(Prefix),
    /// The holding is not committed yet.
    Settled(Prefix),
    /// The claim of a surrendered part is this node's again.
    TakingBack(Prefix),
    /// The rows of a part are to be freed; `inner`: those of its own parts too.
    Freeing { part: Prefix, inner: bool },
    /// A part is out of use; it is to be offered.
    Offering {
        parent: Prefix,
        child: Prefix,
        to: usize,
    },
    /// A slice inside another is out of use there; its holding is to be dropped.
    Closing { slice: Prefix, to: Option<usize> },
    /// The holding is dropped; the API server is next: returned, or transferred.
    Closed { slice: Prefix, to: Option<usize> },
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
                | Task::Closing { .. }
        )
    }

    /// Whether its next step sends a write that was planned on an earlier read.
    pub fn is_planned(&self) -> bool {
        matches!(self, Task::Closed { .. } | Task::Offering { .. })
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Machine {
    pub up: bool,
    /// Whether the Node object exists, and its UID.
    pub registered: bool,
    pub uid: u8,
    /// Durable.
    pub holdings: BTreeMap<Prefix, Known>,
    pub allocated: BTreeSet<Address>,
    /// Addresses that are out of use: the part for which each was set aside.
    pub rows: BTreeMap<Address, Prefix>,
    /// Of this boot: holdings that were verified against their claims.
    pub verified: BTreeSet<Prefix>,
    /// Lost holdings, which a careless node still counts.
    pub lost: BTreeSet<Prefix>,
    pub task: Option<Task>,
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
            allocated: BTreeSet::new(),
            rows: BTreeMap::new(),
            verified: BTreeSet::new(),
            lost: BTreeSet::new(),
            task: None,
        }
    }

    pub fn may_allocate(&self, address: Address) -> bool {
        let mut verified = self.verified.iter();
        self.up
            && !self.rows.contains_key(&address)
            && verified.any(|range| range.contains(address))
    }

    /// The node's pool, as the product's code takes it.
    pub fn pool(&self) -> Pool {
        let mut pool = Pool::new();
        let mut hold = |address, who: &str| {
            pool.restore(address, Record::new(Owner::new(who, ""), Handle::new(who)));
        };
        for address in &self.allocated {
            hold(*address, "pod");
        }
        for address in self
            .rows
            .keys()
            .filter(|row| !self.allocated.contains(*row))
        {
            hold(*address, "surrender");
        }
        pool
    }

    pub fn has_pod_in(&self, range: Prefix) -> bool {
        self.allocated
            .iter()
            .any(|address| range.contains(*address))
    }

    /// Whether it runs and allocates from the slice, or is about to.
    pub fn concerns_itself_with(&self, range: Prefix) -> bool {
        let takes = match self.task {
            Some(
                Task::Confirming(slice)
                | Task::Granted(slice)
                | Task::Emptied(slice)
                | Task::Settled(slice),
            ) => slice == range,
            _ => false,
        };
        self.up && (takes || self.verified.contains(&range))
    }

    /// Nothing is held in it, and nothing is out of use.
    pub fn is_idle_in(&self, range: Prefix) -> bool {
        !self.has_pod_in(range) && !self.rows.keys().any(|row| range.contains(*row))
    }

    /// The holdings that lie inside another holding.
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

    /// A claim that this node has read was changed: its planned write will be refused.
    pub fn outdate(&mut self, range: Prefix) {
        match self.task {
            Some(Task::Closed { slice, .. }) if slice == range => self.task = None,
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
