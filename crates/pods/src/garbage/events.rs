//! Kubernetes Events on the pods whose addresses were freed, with the reasons and words that whereabouts uses: what
//! watches for those keeps working.
//!
//! An event is news, not a record: one that can't be written is logged and forgotten.

use std::fmt;
use std::time::Duration;

use berth_core::Address;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::jiff::Timestamp;
use kube::api::PostParams;
use kube::{Api, Client};

use super::facts::PodRef;

const COLLECTED: &str = "IPAddressGarbageCollected";
const FAILED: &str = "IPAddressGarbageCollectionFailed";

/// Characters of the pod's name in the event's: a name has 253 at most.
const NAME: usize = 230;

#[derive(Clone)]
pub(super) struct Recorder {
    client: Client,
    node: String,
    timeout: Duration,
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder").finish_non_exhaustive()
    }
}

impl Recorder {
    pub fn new(client: Client, node: &str, timeout: Duration) -> Recorder {
        Recorder {
            client,
            node: node.to_owned(),
            timeout,
        }
    }

    pub async fn collected(
        &self,
        pod: &PodRef,
        uid: Option<&str>,
        address: Address,
        network: &str,
    ) {
        let message =
            format!("successful cleanup of IP address [{address}] from network {network}");
        self.record(pod, uid, "Normal", COLLECTED, message).await;
    }

    pub async fn failed(&self, pod: &PodRef, uid: Option<&str>) {
        let message = format!("failed to garbage collect addresses for pod {pod}");
        self.record(pod, uid, "Warning", FAILED, message).await;
    }

    async fn record(
        &self,
        pod: &PodRef,
        uid: Option<&str>,
        kind: &str,
        reason: &str,
        message: String,
    ) {
        let now = Timestamp::now();
        let name: String = pod.name.chars().take(NAME).collect();
        let event = Event {
            metadata: ObjectMeta {
                // As client-go names them: the object, and a time that tells two events apart.
                name: Some(format!("{name}.{:x}", now.as_nanosecond())),
                namespace: Some(pod.namespace.clone()),
                ..ObjectMeta::default()
            },
            involved_object: ObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("Pod".to_owned()),
                namespace: Some(pod.namespace.clone()),
                name: Some(pod.name.clone()),
                uid: uid.map(str::to_owned),
                ..ObjectReference::default()
            },
            reason: Some(reason.to_owned()),
            message: Some(message),
            type_: Some(kind.to_owned()),
            source: Some(EventSource {
                component: Some("berth".to_owned()),
                host: Some(self.node.clone()),
            }),
            first_timestamp: Some(Time(now)),
            last_timestamp: Some(Time(now)),
            count: Some(1),
            ..Event::default()
        };
        let events: Api<Event> = Api::namespaced(self.client.clone(), &pod.namespace);
        let params = PostParams::default();
        let written = tokio::time::timeout(self.timeout, events.create(&params, &event));
        let why = match written.await {
            Ok(Ok(_)) => return,
            Ok(Err(error)) => error.to_string(),
            Err(_) => "no answer".to_owned(),
        };
        tracing::debug!(%pod, reason, why, "an event was not written");
    }
}
