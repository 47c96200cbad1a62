//! What the collector knows of the world, in its own words: no object of Kubernetes gets past here.
//!
//! A deletion that is under way is not among the facts: a pod's containers run until its grace period is over, so it
//! proves nothing.

use std::collections::{HashMap, HashSet};
use std::fmt;

use berth_api::names::is_path_segment;
use berth_core::{Address, Owner, Record};
use berth_ledger::{ClaimKey, PoolKey};

use crate::attachment::attribute;

/// A pod's name in its cluster, as pools have it: `namespace/name`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodRef {
    pub namespace: String,
    pub name: String,
}

impl PodRef {
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> PodRef {
        PodRef {
            namespace: namespace.into(),
            name: name.into(),
        }
    }

    /// None for what names no pod: somebody else's entry, or one that nobody can read.
    pub fn parse(text: &str) -> Option<PodRef> {
        let (namespace, name) = text.split_once('/')?;
        // No namespace has a colon: what begins with `by-hand:` was allocated by hand.
        let named = is_path_segment(namespace) && !namespace.contains(':') && is_path_segment(name);
        named.then(|| PodRef::new(namespace, name))
    }
}

impl fmt::Display for PodRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Pending, Running, Unknown, or one that this program never heard of.
    Open,
    Succeeded,
    /// Evicted pods end here too.
    Failed,
}

impl Phase {
    pub fn read(text: &str) -> Phase {
        match text {
            "Succeeded" => Phase::Succeeded,
            "Failed" => Phase::Failed,
            _ => Phase::Open,
        }
    }
}

/// A pod as the API server has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    /// Every UID that a runtime may have been told: the containers of a static pod carry another one than its mirror in
    /// the API server.
    pub uids: Vec<String>,
    pub phase: Phase,
    /// The node that it was bound to.
    pub node: Option<String>,
}

/// What a look for a pod found. Absence is something that was seen: whoever did not look knows nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sight {
    Absent,
    There(Pod),
}

/// An entry of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    pub pool: PoolKey,
    pub address: Address,
    /// Exactly the holder that is judged, and the only one that a release will name (I6).
    pub record: Record,
    pub note: Note,
}

impl Held {
    /// The node that the holder's container was started on, as far as the entry or its reservation names it.
    pub fn node(&self) -> Option<&str> {
        let named = self.record.attribute(attribute::NODE);
        named.or(self.note.node.as_deref())
    }
}

/// What the node that gave an address noted about it, beyond what the pool's entry says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Note {
    /// The network's name.
    pub network: Option<String>,
    pub pod_uid: Option<String>,
    /// The node, as the entry's reservation has it: the entry of a large pool names none, nor does one whose definition prunes
    /// the field.
    pub node: Option<String>,
    /// The container was started under a boot of its node that is over.
    pub rebooted: bool,
    pub sandbox: Sandbox,
}

/// What the collector's own node knows of a container's sandbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sandbox {
    /// Nothing: it was not noted, or it is another node's.
    #[default]
    Unknown,
    /// It may run: nothing shows that it is gone.
    There,
    Gone,
}

/// A claim of one address across pools.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reservation {
    pub key: ClaimKey,
    pub record: Record,
}

impl Reservation {
    /// The node that made it.
    pub fn node(&self) -> Option<&str> {
        self.record.attribute(attribute::NODE)
    }
}

/// One look at the world. What is not in it was not looked at, and nothing follows from that.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    pub held: Vec<Held>,
    pub reservations: Vec<Reservation>,
    /// Whether a reservation of this look without an entry of this look has none anywhere: all pools were read that may have
    /// one.
    pub all_pools: bool,
    /// Reservations that have entries in pools which are not part of this look.
    pub entered_elsewhere: HashSet<String>,
    /// Owners that this node's own journal has: what they hold is released by this node, which knows of their sandboxes.
    pub journalled: HashSet<Owner>,
    pub pods: HashMap<PodRef, Sight>,
    /// Nodes that were looked for: whether they are there.
    pub nodes: HashMap<String, bool>,
    /// Nodes that are provably lost: their Node object is gone, or it is tainted out of service.
    pub lost: HashSet<String>,
    /// The collector's own node.
    pub here: String,
    /// Entries, by pool and address, that stay though their pod is gone.
    pub kept: HashSet<(String, Address)>,
    /// Pools whose networks are known to want a reservation for every entry.
    pub overlap_checked: HashSet<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_namespace_and_a_name_are_a_pod() {
        assert_eq!(PodRef::parse("ns/p"), Some(PodRef::new("ns", "p")));
        for strange in [
            "",
            "p",
            "/p",
            "ns/",
            "a/b/c",
            "(unreadable)",
            "by-hand:ns/p",
        ] {
            assert_eq!(PodRef::parse(strange), None, "{strange}");
        }
    }

    #[test]
    fn a_phase_that_nobody_knows_is_not_final() {
        for open in ["Pending", "Running", "Unknown", "", "Hibernating"] {
            assert_eq!(Phase::read(open), Phase::Open);
        }
    }
}
