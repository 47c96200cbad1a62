//! Kubernetes Events on the definitions that something is wrong with: told once, and again when the words change; and on
//! the nodes and definitions whose slices were taken back.
//!
//! An event is news, not a record: one that can't be written is logged and forgotten. The state itself is in the
//! pool's conditions.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use berth_core::slice::{Holding, NodeName};
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::jiff::Timestamp;
use kube::api::PostParams;
use kube::{Api, Client};

use crate::networks::{Trouble, reason};

/// Characters of the definition's name in the event's: a name has 253 at most.
const NAME: usize = 230;
/// The API server takes 1,024 bytes.
const MESSAGE: usize = 1_000;

/// Node objects are in no namespace; kubectl looks for their events here.
const NODE_EVENTS: &str = "default";

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
                "SliceClaim {claim} was taken back: node {node} is gone, and nobody uses an address of it{rest}"
            ),
        }
    }
}

pub struct Recorder {
    client: Client,
    identity: String,
    timeout: Duration,
    told: BTreeSet<Trouble>,
}

impl std::fmt::Debug for Recorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Recorder").finish_non_exhaustive()
    }
}

impl Recorder {
    pub fn new(client: Client, identity: &str, timeout: Duration) -> Recorder {
        Recorder {
            client,
            identity: identity.to_owned(),
            timeout,
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
            let node = ObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("Node".to_owned()),
                name: Some(one.node.clone()),
                // As the kubelet has it: `kubectl describe node` asks for events by this.
                uid: Some(match one.node_uid.as_str() {
                    "" => one.node.clone(),
                    uid => uid.to_owned(),
                }),
                ..ObjectReference::default()
            };
            self.write(NODE_EVENTS, node, one.reason, &one.message, "Normal")
                .await;
            for definition in &one.definitions {
                if let Some((namespace, object)) = definition_of(definition, uids) {
                    self.write(namespace, object, one.reason, &one.message, "Normal")
                        .await;
                }
            }
        }
    }

    async fn record(&self, trouble: &Trouble, uids: &BTreeMap<&str, &str>) {
        if let Some((namespace, object)) = definition_of(&trouble.definition, uids) {
            self.write(
                namespace,
                object,
                trouble.reason,
                &trouble.message,
                "Warning",
            )
            .await;
        }
    }

    async fn write(
        &self,
        namespace: &str,
        object: ObjectReference,
        reason: &str,
        message: &str,
        kind: &str,
    ) {
        let now = Timestamp::now();
        let about = object.name.clone().unwrap_or_default();
        let name: String = about.chars().take(NAME).collect();
        let mut message = message.to_owned();
        while message.len() > MESSAGE {
            message.pop();
        }
        let event = Event {
            metadata: ObjectMeta {
                name: Some(format!("{name}.{:x}", now.as_nanosecond())),
                namespace: Some(namespace.to_owned()),
                ..ObjectMeta::default()
            },
            involved_object: object,
            reason: Some(reason.to_owned()),
            message: Some(message),
            type_: Some(kind.to_owned()),
            source: Some(EventSource {
                component: Some("berth-controller".to_owned()),
                host: Some(self.identity.clone()),
            }),
            first_timestamp: Some(Time(now)),
            last_timestamp: Some(Time(now)),
            count: Some(1),
            ..Event::default()
        };
        let events: Api<Event> = Api::namespaced(self.client.clone(), namespace);
        let params = PostParams::default();
        let why = match tokio::time::timeout(self.timeout, events.create(&params, &event)).await {
            Ok(Ok(_)) => return,
            Ok(Err(error)) => error.to_string(),
            Err(_) => "no answer".to_owned(),
        };
        tracing::debug!(about, why, "an event was not written");
    }
}

fn definition_of<'a>(
    key: &'a str,
    uids: &BTreeMap<&str, &str>,
) -> Option<(&'a str, ObjectReference)> {
    let (namespace, name) = key.split_once('/')?;
    let object = ObjectReference {
        api_version: Some("k8s.cni.cncf.io/v1".to_owned()),
        kind: Some("NetworkAttachmentDefinition".to_owned()),
        namespace: Some(namespace.to_owned()),
        name: Some(name.to_owned()),
        uid: uids.get(key).map(|uid| (*uid).to_owned()),
        ..ObjectReference::default()
    };
    Some((namespace, object))
}
