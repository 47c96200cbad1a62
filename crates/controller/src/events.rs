//! Kubernetes Events on the definitions that something is wrong with: told once, and again when the words change; and on
//! the nodes and definitions whose slices were taken back. A controller that starts, or begins to lead, does not repeat what
//! another one has told.
//!
//! The state itself is in the pool's conditions.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use berth_core::slice::{Holding, NodeName};
use berth_ledger::kube::events::{Events, Tone, of_node};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;

use crate::networks::{Trouble, reason};

/// Something that has happened, and is told once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct News {
    pub node: String,
    /// Of the node that is gone, where a watch saw it go.
    pub node_uid: String,
    /// `namespace/name`.
    pub definitions: Vec<String>,
    pub reason: &'static str,
    pub message: String,
}

impl News {
    /// A slice whose node is provably gone is free.
    pub fn taken_back(
        pool: &str,
        holding: &Holding,
        node_uid: String,
        definitions: Vec<String>,
    ) -> News {
        let Holding { slice, node, epoch } = holding;
        News {
            node: node.to_string(),
            node_uid,
            definitions,
            reason: reason::TAKEN_BACK,
            message: format!(
                "slice {slice} of NodeSlicePool {pool} was taken back: node {node} is gone, and nobody uses an address of it; it is at epoch {}",
                epoch.0
            ),
        }
    }

    /// The claim of a node that is provably gone has ended, or is nobody's.
    pub fn claim_ended(
        claim: &str,
        node: &NodeName,
        parts: usize,
        definitions: Vec<String>,
    ) -> News {
        let rest = match parts {
            0 => String::new(),
            parts => format!("; it is nobody's while {parts} parts of it are others'"),
        };
        News {
            node: node.to_string(),
            node_uid: String::new(),
            definitions,
            reason: reason::TAKEN_BACK,
            message: format!(
                "claim {claim} was taken back: node {node} is gone, and nobody uses an address of it{rest}"
            ),
        }
    }
}

#[derive(Debug)]
pub struct Recorder {
    events: Events,
    told: BTreeSet<Trouble>,
}

impl Recorder {
    pub fn new(client: Client, identity: &str, timeout: Duration) -> Recorder {
        Recorder {
            events: Events::new(client, timeout, "berth-controller", identity),
            told: BTreeSet::new(),
        }
    }

    /// Tells what is new among all that is wrong now. `uids`: of the definitions, by `namespace/name`.
    pub async fn tell(&mut self, troubles: BTreeSet<Trouble>, uids: &BTreeMap<&str, &str>) {
        for trouble in troubles.difference(&self.told) {
            tracing::warn!(
                definition = trouble.definition,
                reason = trouble.reason,
                "{}",
                trouble.message
            );
            self.record(trouble, uids).await;
        }
        for trouble in self.told.difference(&troubles) {
            tracing::info!(
                definition = trouble.definition,
                reason = trouble.reason,
                "no longer"
            );
        }
        self.told = troubles;
    }

    /// Tells what has happened, to the node's and the definitions' readers.
    pub async fn report(&self, news: &[News], uids: &BTreeMap<&str, &str>) {
        for one in news {
            let node = of_node(&one.node, &one.node_uid);
            let definitions = one.definitions.iter();
            let definitions = definitions.filter_map(|key| definition_of(key, uids));
            for about in std::iter::once(node).chain(definitions) {
                let told = self
                    .events
                    .tell(about, Tone::Normal, one.reason, &one.message);
                told.await;
            }
        }
    }

    async fn record(&self, trouble: &Trouble, uids: &BTreeMap<&str, &str>) {
        if let Some(about) = definition_of(&trouble.definition, uids) {
            let (reason, message) = (trouble.reason, &trouble.message);
            let once = self.events.tell_once(about, Tone::Warning, reason, message);
            once.await;
        }
    }
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
