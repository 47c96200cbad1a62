//! Whether the owner of an entry is provably gone (I4). Pure: the same observed state leads to the same verdict.
//!
//! ```text
//!   it names no pod, or the pod was not read -> Unjudged    never freed
//!   a pod of that name and UID, not finished, its node exists -> Alive
//!   absent | another UID under the name | Succeeded or Failed | its node deleted -> Gone
//! ```
//! A pod object that is absent proves nothing about its container: a forced deletion removes the object at once, whatever
//! runs. Where the node of an entry is known, that node has to be lost, or has to show that the sandbox is gone
//! ([`may_run`]).

use std::fmt;

use super::observed::{Held, Note, Observed, Owners, Phase, Pod, PodRef, PodState, Sandbox};

/// Why an owner is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// There is no pod of that name.
    Absent,
    /// A pod of that name exists with another UID than the one that the address was allocated to.
    Replaced,
    /// The pod exists and will never run again.
    Finished(Phase),
    /// The pod is bound to a node that is no longer part of the cluster.
    NodeGone(String),
}

impl Reason {
    /// Whether only the pod object is known to be gone: its containers may not have stopped.
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
    /// The pod is gone, and its address is kept for the next pod of its name or claim.
    Kept,
    /// The pod object is gone, and its container may still run: its node has not released the address.
    Unreleased,
    /// No proof either way: the entry stays.
    Unjudged,
}

/// Judges the owner `subject`, which names a pod as `namespace/name`.
pub fn judge(subject: &str, note: &Note, owners: &Owners) -> Verdict {
    match PodRef::parse(subject) {
        Some(pod) => judge_pod(&pod, note, owners),
        None => Verdict::Unjudged,
    }
}

/// Judges a pod by what was read about it, and about its node.
pub fn judge_pod(pod: &PodRef, note: &Note, owners: &Owners) -> Verdict {
    match owners.pods.get(pod) {
        None => Verdict::Unjudged,
        Some(PodState::Absent) => Verdict::Gone(Reason::Absent),
        Some(PodState::Present(pod)) if is_another(pod, note) => Verdict::Gone(Reason::Replaced),
        Some(PodState::Present(pod)) if pod.phase != Phase::Open => {
            Verdict::Gone(Reason::Finished(pod.phase))
        }
        Some(PodState::Present(pod)) => match &pod.node {
            Some(node) if owners.nodes.get(node) == Some(&false) => {
                Verdict::Gone(Reason::NodeGone(node.clone()))
            }
            _ => Verdict::Alive,
        },
    }
}

/// The verdict on an entry whose owner was judged: an owner that is gone may still have a container that runs, and its
/// address may be kept.
pub fn verdict(held: &Held, judged: Verdict, observed: &Observed) -> Verdict {
    let Verdict::Gone(reason) = judged else {
        return judged;
    };
    if reason.is_of_the_object() && may_run(held, &observed.owners) {
        return Verdict::Unreleased;
    }
    match observed
        .kept
        .contains(&(held.pool.name.clone(), held.address))
    {
        true => Verdict::Kept,
        false => Verdict::Gone(reason),
    }
}

/// Whether the container of an entry may run although its pod object is gone. An entry whose node is not known is judged by
/// the pod alone: whereabouts wrote it.
pub fn may_run(held: &Held, owners: &Owners) -> bool {
    match held.note.sandbox {
        _ if held.note.rebooted => false,
        Sandbox::Present => true,
        Sandbox::Gone => false,
        Sandbox::Unknown => held.node().is_some_and(|node| owners.is_up(node)),
    }
}

impl Owners {
    /// Whether containers may run on that node, which is not the collector's own.
    pub fn is_up(&self, node: &str) -> bool {
        node != self.here && !self.lost.contains(node)
    }

    /// Whether the node is provably lost.
    pub fn is_lost(&self, node: Option<&str>) -> bool {
        node.is_some_and(|node| self.lost.contains(node))
    }
}

/// Only a known UID decides: entries that whereabouts wrote have none, and are judged by name alone.
fn is_another(pod: &Pod, note: &Note) -> bool {
    note.pod_uid
        .as_ref()
        .is_some_and(|uid| !pod.uids.is_empty() && !pod.uids.contains(uid))
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

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

    fn verdict(subject: &str, note: &Note, state: PodState, node: Option<bool>) -> Verdict {
        let nodes = node.map(|exists| ("node-1".to_owned(), exists));
        let owners = Owners {
            pods: HashMap::from([(PodRef::new("ns", "p"), state)]),
            nodes: nodes.into_iter().collect(),
            ..Owners::default()
        };
        judge(subject, note, &owners)
    }

    #[test]
    fn a_pod_is_gone_when_absent_finished_replaced_or_without_its_node() {
        let gone = |note: &Note, state, node| match verdict("ns/p", note, state, node) {
            Verdict::Gone(reason) => reason,
            other => panic!("{other:?}"),
        };
        let present = |uid, phase| PodState::Present(mk_pod(uid, phase));
        let unknown = Note::default();
        assert_eq!(gone(&unknown, PodState::Absent, None), Reason::Absent);
        for phase in [Phase::Succeeded, Phase::Failed] {
            let finished = gone(&unknown, present("u1", phase), Some(true));
            assert_eq!(finished, Reason::Finished(phase));
        }
        let replaced = gone(&noted("u1"), present("u2", Phase::Open), Some(true));
        assert_eq!(replaced, Reason::Replaced);
        let node_gone = gone(&noted("u1"), present("u1", Phase::Open), Some(false));
        assert_eq!(node_gone, Reason::NodeGone("node-1".into()));
    }

    #[test]
    fn what_was_not_read_proves_nothing() {
        let open = || PodState::Present(mk_pod("u1", Phase::Open));
        let unknown = Note::default();
        assert_eq!(verdict("ns/p", &unknown, open(), None), Verdict::Alive);
        assert_eq!(
            verdict("ns/q", &unknown, PodState::Absent, None),
            Verdict::Unjudged
        );
        for strange in ["", "(unreadable)", "a/b/c"] {
            assert_eq!(
                verdict(strange, &unknown, PodState::Absent, None),
                Verdict::Unjudged
            );
        }
    }

    /// An entry of whereabouts has no UID: the pod of that name is its owner.
    #[test]
    fn without_a_uid_the_name_decides() {
        let state = PodState::Present(mk_pod("u2", Phase::Open));
        assert_eq!(
            verdict("ns/p", &Note::default(), state, Some(true)),
            Verdict::Alive
        );
    }

    /// A static pod's containers carry the UID of its file; its mirror in the API server has another.
    #[test]
    fn a_static_pod_is_known_by_either_uid() {
        let mirror = Pod {
            uids: vec!["of-the-mirror".into(), "of-the-file".into()],
            phase: Phase::Open,
            node: Some("node-1".into()),
        };
        for uid in ["of-the-mirror", "of-the-file"] {
            let state = PodState::Present(mirror.clone());
            assert_eq!(
                verdict("ns/p", &noted(uid), state, Some(true)),
                Verdict::Alive
            );
        }
    }
}
