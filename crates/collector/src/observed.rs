//! Observed state, in the collector's own types: no Kubernetes object gets past the readers.
//!
//! A deletion that is under way is not observed: a pod's containers run until its grace period is over, so it
//! proves nothing.

use std::collections::{HashMap, HashSet};
use std::fmt;

use berth_api::names::is_path_segment;
use berth_core::{Address, NODE, Record};
use berth_ledger::{PoolKey, Snapshot};

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

    /// None for a text that names no pod: another program's entry, or one that can't be read.
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
    /// Pending, Running, Unknown, or a phase that this program does not know.
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
    /// Every UID that a runtime may know the pod by: the containers of a static pod carry another one than its mirror in
    /// the API server.
    pub uids: Vec<String>,
    pub phase: Phase,
    /// The node that it was bound to.
    pub node: Option<String>,
}

/// What a read of a pod found. A pod that was not read has no state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodState {
    Absent,
    Present(Pod),
}

impl PodState {
    pub fn present(&self) -> Option<&Pod> {
        match self {
            PodState::Absent => None,
            PodState::Present(pod) => Some(pod),
        }
    }
}

/// What a read of a node found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeState {
    Absent,
    Present { out_of_service: bool },
}

impl NodeState {
    /// Whether nothing runs there any more, as far as Kubernetes can know: it moves the node's pods and volumes too.
    pub fn is_lost(self) -> bool {
        self != NodeState::Present {
            out_of_service: false,
        }
    }
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
    /// All entries of a pool, each with what `note` knows about its record.
    pub fn of_pool(pool: &PoolKey, read: &Snapshot, note: impl Fn(&Record) -> Note) -> Vec<Held> {
        let entries = read.pool.records().chain(read.pool.duplicate_holders());
        let held = entries.map(|(address, record)| Held {
            pool: pool.clone(),
            address,
            record: record.clone(),
            note: note(record),
        });
        held.collect()
    }

    /// The node that the holder's container was started on, as far as the entry or its note names it.
    pub fn node(&self) -> Option<&str> {
        let named = self.record.attribute(NODE);
        named.or(self.note.node.as_deref())
    }
}

/// What is known about an entry beyond its record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Note {
    /// The network's name.
    pub network: Option<String>,
    pub pod_uid: Option<String>,
    /// The node, where the entry itself names none.
    pub node: Option<String>,
    /// The container was started under an earlier boot of its node.
    pub rebooted: bool,
    pub sandbox: Sandbox,
}

/// What the collector's own node knows about a container's sandbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sandbox {
    /// Nothing: it was not noted, or it is another node's.
    #[default]
    Unknown,
    /// It may run: nothing shows that it is gone.
    Present,
    Gone,
}

/// What was read about owners. One that is not in it was not read, and nothing follows from that.
#[derive(Clone, Debug, Default)]
pub struct Owners {
    pub pods: HashMap<PodRef, PodState>,
    /// Nodes that were read: whether they exist.
    pub nodes: HashMap<String, bool>,
    /// Nodes that are provably lost: their Node object is gone, or it is tainted out of service.
    pub lost: HashSet<String>,
    /// The collector's own node.
    pub here: String,
}

/// Some entries, and what was read about their owners.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    pub held: Vec<Held>,
    pub owners: Owners,
    /// Entries, by pool and address, that stay though their owner is gone.
    pub kept: HashSet<(String, Address)>,
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
    fn an_unknown_phase_is_not_final() {
        for open in ["Pending", "Running", "Unknown", "", "Hibernating"] {
            assert_eq!(Phase::read(open), Phase::Open);
        }
    }
}
