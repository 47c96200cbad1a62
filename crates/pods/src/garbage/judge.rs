//! Whether a holder is provably gone (I4). Pure: the same facts give the same verdict.
//!
//! ```text
//!   named no pod, or nobody looked -> Unjudged    never freed
//!   a pod of that name and UID, not finished, its node there -> Alive
//!   absent | another UID under the name | Succeeded or Failed | its node deleted -> Gone
//! ```
//! A pod object that is absent proves nothing about its container: a forced deletion removes the object at once, whatever
//! runs. Where the entry or its reservation names its node, the node has to be lost, or has to show that the sandbox is gone ([`may_run`]).

use std::collections::{HashMap, HashSet};
use std::fmt;

use berth_core::Owner;

use super::facts::{Held, Note, Phase, Pod, PodRef, Reservation, Sandbox, Sight};

/// Why a holder is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// There is no pod of that name.
    Absent,
    /// There is one, and it is another: the UID that the address was given to is gone.
    Replaced,
    /// The pod is there and will never run again.
    Finished(Phase),
    /// The pod is bound to a node that is no longer part of the cluster.
    NodeGone(String),
}

impl Reason {
    /// Whether only the pod object is known to be gone, and nobody said that its containers have stopped.
    pub fn is_of_the_object(&self) -> bool {
        matches!(self, Reason::Absent | Reason::Replaced)
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Absent => f.write_str("the pod does not exist"),
            Reason::Replaced => f.write_str("the pod was replaced by another of its name"),
            Reason::Finished(Phase::Succeeded) => f.write_str("the pod has succeeded"),
            Reason::Finished(_) => f.write_str("the pod has failed"),
            Reason::NodeGone(node) => write!(f, "the pod's node {node} does not exist"),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Alive,
    Gone(Reason),
    /// The pod is gone, and its address waits for the next of its name or its claim.
    Kept,
    /// The pod object is gone, and its container may still run: its node has not released the address.
    Unreleased,
    /// No proof either way: it stays.
    Unjudged,
}

/// Judges the holder of an entry or a reservation by what a look for its pod, and for that pod's node, found.
pub fn judge(
    subject: &str,
    note: &Note,
    pods: &HashMap<PodRef, Sight>,
    nodes: &HashMap<String, bool>,
) -> Verdict {
    let Some(pod) = PodRef::parse(subject) else {
        return Verdict::Unjudged;
    };
    match pods.get(&pod) {
        None => Verdict::Unjudged,
        Some(Sight::Absent) => Verdict::Gone(Reason::Absent),
        Some(Sight::There(pod)) if is_another(pod, note) => Verdict::Gone(Reason::Replaced),
        Some(Sight::There(pod)) if pod.phase != Phase::Open => {
            Verdict::Gone(Reason::Finished(pod.phase))
        }
        Some(Sight::There(pod)) => match &pod.node {
            Some(node) if nodes.get(node) == Some(&false) => {
                Verdict::Gone(Reason::NodeGone(node.clone()))
            }
            _ => Verdict::Alive,
        },
    }
}

/// Whether the container of an entry may run although its pod object is gone. An entry of which no node is known is judged by
/// the pod alone: whereabouts wrote it.
pub fn may_run(held: &Held, here: &str, lost: &HashSet<String>) -> bool {
    match held.note.sandbox {
        _ if held.note.rebooted => false,
        Sandbox::There => true,
        Sandbox::Gone => false,
        Sandbox::Unknown => held.node().is_some_and(|node| is_up(node, here, lost)),
    }
}

/// The same of a reservation without an entry: its node may have the entry in a slice that it has not published.
pub fn may_run_reserved(
    reservation: &Reservation,
    here: &str,
    lost: &HashSet<String>,
    journalled: &HashSet<Owner>,
) -> bool {
    let node = reservation.node();
    let is_here = node == Some(here);
    is_here && journalled.contains(&reservation.record.owner)
        || node.is_some_and(|node| is_up(node, here, lost))
}

/// Whether another node's containers may run.
fn is_up(node: &str, here: &str, lost: &HashSet<String>) -> bool {
    node != here && !lost.contains(node)
}

/// Only a known UID can tell: entries that whereabouts wrote have none, and are judged by name alone.
fn is_another(pod: &Pod, note: &Note) -> bool {
    note.pod_uid
        .as_ref()
        .is_some_and(|uid| !pod.uids.is_empty() && !pod.uids.contains(uid))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_pod(uid: &str, phase: Phase) -> Pod {
        Pod {
            uids: vec![uid.to_owned()],
            phase,
            node: Some("node-1".to_owned()),
        }
    }

    fn noted(uid: &str) -> Note {
        Note {
            pod_uid: Some(uid.to_owned()),
            ..Note::default()
        }
    }

    fn verdict(subject: &str, note: &Note, sight: Sight, node: Option<bool>) -> Verdict {
        let pods = HashMap::from([(PodRef::new("ns", "p"), sight)]);
        let nodes = node.map(|there| ("node-1".to_owned(), there));
        judge(subject, note, &pods, &nodes.into_iter().collect())
    }

    #[test]
    fn a_pod_is_gone_when_absent_finished_replaced_or_without_its_node() {
        let gone = |note: &Note, sight, node| match verdict("ns/p", note, sight, node) {
            Verdict::Gone(reason) => reason,
            other => panic!("{other:?}"),
        };
        let there = |uid, phase| Sight::There(mk_pod(uid, phase));
        let unknown = Note::default();
        assert_eq!(gone(&unknown, Sight::Absent, None), Reason::Absent);
        for phase in [Phase::Succeeded, Phase::Failed] {
            let finished = gone(&unknown, there("u1", phase), Some(true));
            assert_eq!(finished, Reason::Finished(phase));
        }
        let replaced = gone(&noted("u1"), there("u2", Phase::Open), Some(true));
        assert_eq!(replaced, Reason::Replaced);
        let node_gone = gone(&noted("u1"), there("u1", Phase::Open), Some(false));
        assert_eq!(node_gone, Reason::NodeGone("node-1".into()));
    }

    #[test]
    fn what_was_not_looked_at_proves_nothing() {
        let open = || Sight::There(mk_pod("u1", Phase::Open));
        let unknown = Note::default();
        assert_eq!(verdict("ns/p", &unknown, open(), None), Verdict::Alive);
        assert_eq!(
            verdict("ns/q", &unknown, Sight::Absent, None),
            Verdict::Unjudged
        );
        for strange in ["", "(unreadable)", "a/b/c"] {
            assert_eq!(
                verdict(strange, &unknown, Sight::Absent, None),
                Verdict::Unjudged
            );
        }
    }

    /// An entry of whereabouts has no UID: whatever pod has the name is its owner.
    #[test]
    fn without_a_uid_the_name_decides() {
        let sight = Sight::There(mk_pod("u2", Phase::Open));
        assert_eq!(
            verdict("ns/p", &Note::default(), sight, Some(true)),
            Verdict::Alive
        );
    }

    /// The kubelet gives a static pod's containers the UID of its file, the API server gives the mirror another.
    #[test]
    fn a_static_pod_is_known_by_either_uid() {
        let mirror = Pod {
            uids: vec!["of-the-mirror".into(), "of-the-file".into()],
            phase: Phase::Open,
            node: Some("node-1".into()),
        };
        for uid in ["of-the-mirror", "of-the-file"] {
            let sight = Sight::There(mirror.clone());
            assert_eq!(
                verdict("ns/p", &noted(uid), sight, Some(true)),
                Verdict::Alive
            );
        }
    }
}
