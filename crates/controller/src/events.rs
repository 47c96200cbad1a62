//! Kubernetes Events on the definitions that something is wrong with: told once, and again when the words change.
//!
//! An event is news, not a record: one that can't be written is logged and forgotten. The state itself is in the
//! pool's conditions.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::jiff::Timestamp;
use kube::api::PostParams;
use kube::{Api, Client};

use crate::networks::Trouble;

/// Characters of the definition's name in the event's: a name has 253 at most.
const NAME: usize = 230;
/// The API server takes 1,024 bytes.
const MESSAGE: usize = 1_000;

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
            let uid = uids.get(trouble.definition.as_str());
            self.record(trouble, uid.copied()).await;
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

    async fn record(&self, trouble: &Trouble, uid: Option<&str>) {
        let Some((namespace, definition)) = trouble.definition.split_once('/') else {
            return;
        };
        let now = Timestamp::now();
        let name: String = definition.chars().take(NAME).collect();
        let mut message = trouble.message.clone();
        while message.len() > MESSAGE {
            message.pop();
        }
        let event = Event {
            metadata: ObjectMeta {
                name: Some(format!("{name}.{:x}", now.as_nanosecond())),
                namespace: Some(namespace.to_owned()),
                ..ObjectMeta::default()
            },
            involved_object: ObjectReference {
                api_version: Some("k8s.cni.cncf.io/v1".to_owned()),
                kind: Some("NetworkAttachmentDefinition".to_owned()),
                namespace: Some(namespace.to_owned()),
                name: Some(definition.to_owned()),
                uid: uid.map(str::to_owned),
                ..ObjectReference::default()
            },
            reason: Some(trouble.reason.to_owned()),
            message: Some(message),
            type_: Some("Warning".to_owned()),
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
        tracing::debug!(definition, why, "an event was not written");
    }
}
