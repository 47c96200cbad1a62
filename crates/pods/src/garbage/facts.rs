//! What the collector knows of the world, in its own words: no object of Kubernetes gets past here.
//!
//! A deletion that is under way is not among the facts: a pod's containers run until its grace period is over, so it
//! proves nothing.

use std::collections::{HashMap, HashSet};
use std::fmt;

use berth_core::{Address, Record};
use berth_ledger::{ClaimKey, PoolKey};

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
        let named = !namespace.is_empty() && !name.is_empty() && !name.contains('/');
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

/// What the node that gave an address noted about it, beyond what the pool's entry says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Note {
    /// The network's name.
    pub network: Option<String>,
    pub pod_uid: Option<String>,
    /// The container was started under a boot of its node that is over.
    pub rebooted: bool,
}

/// A claim of one address across pools.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reservation {
    pub key: ClaimKey,
    pub record: Record,
}

/// One look at the world. What is not in it was not looked at, and nothing follows from that.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    pub held: Vec<Held>,
    /// The pools that were read.
    pub pools: HashSet<String>,
    pub reservations: Vec<Reservation>,
    /// Whether `held` has every pool: only then does a reservation without an entry mean anything.
    pub all_pools: bool,
    pub pods: HashMap<PodRef, Sight>,
    /// Nodes that were looked for: whether they are there.
    pub nodes: HashMap<String, bool>,
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
        for strange in ["", "p", "/p", "ns/", "a/b/c", "(unreadable)"] {
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
