//! Kubernetes Events on this node's Node object, for what its administrator has to know. News, not a record: one that can't
//! be written is forgotten.

use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::PostParams;

use crate::pool::World;

/// Node objects are in no namespace; kubectl looks for their events here.
const NAMESPACE: &str = "default";
const LOST: &str = "SliceLost";

impl World {
    /// Tells that a slice is not this node's any more. Nobody waits for it.
    pub fn tell_of_loss(&self, message: String) {
        let now = Timestamp::now();
        let node = self.node.as_str();
        let event = Event {
            metadata: ObjectMeta {
                name: Some(format!("{node}.{:x}", now.as_nanosecond())),
                namespace: Some(NAMESPACE.to_owned()),
                ..ObjectMeta::default()
            },
            involved_object: ObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("Node".to_owned()),
                name: Some(node.to_owned()),
                // As the kubelet has it: `kubectl describe node` asks for events by this.
                uid: Some(node.to_owned()),
                ..ObjectReference::default()
            },
            reason: Some(LOST.to_owned()),
            message: Some(message),
            type_: Some("Warning".to_owned()),
            source: Some(EventSource {
                component: Some("berth-agent".to_owned()),
                host: Some(node.to_owned()),
            }),
            first_timestamp: Some(Time(now)),
            last_timestamp: Some(Time(now)),
            count: Some(1),
            ..Event::default()
        };
        let events: Api<Event> = Api::namespaced(self.connection.client.clone(), NAMESPACE);
        let timeout = self.connection.timeout;
        tokio::spawn(async move {
            let params = PostParams::default();
            let written = tokio::time::timeout(timeout, events.create(&params, &event)).await;
            if !matches!(written, Ok(Ok(_))) {
                tracing::debug!("an event was not written");
            }
        });
    }
}
