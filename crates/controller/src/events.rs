//! Kubernetes Events on definitions with a problem: raised once, and again when the message changes; and on the nodes
//! and definitions whose slices were reclaimed. A controller that starts, or begins to lead, does not repeat the events
//! of another.
//!
//! The state itself is in the pool's conditions.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use berth_core::slice::{Holding, NodeName};
use berth_kube::events::{Events, Tone, of_node};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;

use crate::networks::{Problem, reason};

/// Something that happened and is reported once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    pub node: String,
    /// The UID of the node that is gone, if a watch saw its deletion.
    pub node_uid: String,
    /// `namespace/name`.
    pub definitions: Vec<String>,
    pub reason: &'static str,
    pub message: String,
}

impl Notice {
    /// The slice of a node that is provably gone is free.
    pub fn taken_back(
        pool: &str,
        holding: &Holding,
        node_uid: String,
        definitions: Vec<String>,
    ) -> Notice {
        let Holding { slice, node, epoch } = holding;
        Notice {
            node: node.to_string(),
            node_uid,
            definitions,
            reason: reason::TAKEN_BACK,
            message: format!(
                "slice {slice} of NodeSlicePool {pool} was reclaimed: node {node} is gone and no pod uses an address of it; epoch {}",
                epoch.0
            ),
        }
    }

    /// The claim of a node that is provably gone was deleted, or has no holder.
    pub fn claim_ended(
        claim: &str,
        node: &NodeName,
        parts: usize,
        definitions: Vec<String>,
    ) -> Notice {
        let rest = match parts {
            0 => String::new(),
            parts => format!("; {parts} parts of it belong to other nodes"),
        };
        Notice {
            node: node.to_string(),
            node_uid: String::new(),
            definitions,
            reason: reason::TAKEN_BACK,
            message: format!(
                "slice {claim} was reclaimed: node {node} is gone and no pod uses an address of it{rest}"
            ),
        }
    }
}

#[derive(Debug)]
pub struct Recorder {
    events: Events,
    reported: BTreeSet<Problem>,
}

impl Recorder {
    pub fn new(client: Client, identity: &str, timeout: Duration) -> Recorder {
        Recorder {
            events: Events::new(client, timeout, "berth-controller", identity),
            reported: BTreeSet::new(),
        }
    }

    /// Reports new problems. `uids`: of the definitions, by `namespace/name`.
    pub async fn report_problems(
        &mut self,
        problems: BTreeSet<Problem>,
        uids: &BTreeMap<&str, &str>,
    ) {
        for problem in problems.difference(&self.reported) {
            let (definition, reason) = (&problem.definition, problem.reason);
            match needs_action(reason) {
                true => tracing::warn!(definition, reason, "{}", problem.message),
                false => tracing::info!(definition, reason, "{}", problem.message),
            }
            self.record(problem, uids).await;
        }
        for problem in self.reported.difference(&problems) {
            tracing::info!(
                definition = problem.definition,
                reason = problem.reason,
                "no longer"
            );
        }
        self.reported = problems;
    }

    /// Reports what happened, on the node and the definitions.
    pub async fn report(&self, news: &[Notice], uids: &BTreeMap<&str, &str>) {
        for one in news {
            let node = of_node(&one.node, &one.node_uid);
            let definitions = one.definitions.iter();
            let definitions = definitions.filter_map(|key| definition_of(key, uids));
            for about in std::iter::once(node).chain(definitions) {
                let reported = self
                    .events
                    .tell(about, Tone::Normal, one.reason, &one.message);
                reported.await;
            }
        }
    }

    async fn record(&self, problem: &Problem, uids: &BTreeMap<&str, &str>) {
        if let Some(about) = definition_of(&problem.definition, uids) {
            let (reason, message) = (problem.reason, &problem.message);
            let tone = match needs_action(reason) {
                true => Tone::Warning,
                false => Tone::Normal,
            };
            let once = self.events.tell_once(about, tone, reason, message);
            once.await;
        }
    }
}

/// Whether a person has to act. A pending change completes by itself.
fn needs_action(reason: &str) -> bool {
    reason != reason::CHANGE_PENDING
}

fn definition_of(key: &str, uids: &BTreeMap<&str, &str>) -> Option<ObjectReference> {
    let (namespace, name) = key.split_once('/')?;
    Some(ObjectReference {
        api_version: Some("k8s.cni.cncf.io/v1".to_owned()),
        kind: Some("NetworkAttachmentDefinition".to_owned()),
        namespace: Some(namespace.to_owned()),
        name: Some(name.to_owned()),
        uid: uids.get(key).map(|uid| (*uid).to_owned()),
        ..ObjectReference::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_person_must_fix_is_a_warning() {
        assert!(!needs_action(reason::CHANGE_PENDING));
        for reason in [reason::CHANGE_REFUSED, reason::EXHAUSTED, reason::INVALID] {
            assert!(needs_action(reason), "{reason}");
        }
    }
}
