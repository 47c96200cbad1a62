//! Kubernetes Events: what happened to an object, as `kubectl describe` shows it.
//!
//! Best effort: an event that can't be written is logged and dropped, with the timeout of any other request.

use std::fmt;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::jiff::Timestamp;
use kube::api::PostParams;
use kube::{Api, Client};

/// Characters of the object's name in the event's: a name has 253 at most.
const NAME: usize = 230;
/// The API server takes 1,024 bytes.
const MESSAGE: usize = 1_000;
/// Of objects that are in no namespace: kubectl reads their events from here.
const DEFAULT: &str = "default";

/// Whether a person must act.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    Normal,
    Warning,
}

/// Writes events in the name of one component of one host.
#[derive(Clone)]
pub struct Events {
    client: Client,
    timeout: Duration,
    source: EventSource,
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Events")
            .field("source", &self.source)
            .finish_non_exhaustive()
    }
}

impl Events {
    pub fn new(client: Client, timeout: Duration, component: &str, host: &str) -> Events {
        let source = EventSource {
            component: Some(component.to_owned()),
            host: Some(host.to_owned()),
        };
        Events {
            client,
            timeout,
            source,
        }
    }

    /// Writes an event in the object's namespace.
    pub async fn tell(&self, about: ObjectReference, tone: Tone, reason: &str, message: &str) {
        let event = self.event(about, tone, reason, message);
        self.write(event).await;
    }

    /// Writes the same event once, however many processes report it: its name is a hash of its content. The API server
    /// drops events after an hour; then it can be written again.
    pub async fn tell_once(&self, about: ObjectReference, tone: Tone, reason: &str, message: &str) {
        let mut event = self.event(about, tone, reason, message);
        let about = &event.involved_object;
        let uid = about.uid.as_deref().unwrap_or_default();
        let said = hash(&[uid, reason, event.message.as_deref().unwrap_or_default()]);
        event.metadata.name = Some(format!("{}.{said:016x}", head(about)));
        self.write(event).await;
    }

    async fn write(&self, event: Event) {
        let namespace = event.metadata.namespace.as_deref().unwrap_or(DEFAULT);
        let events: Api<Event> = Api::namespaced(self.client.clone(), namespace);
        let params = PostParams::default();
        let why = match tokio::time::timeout(self.timeout, events.create(&params, &event)).await {
            Ok(Ok(_)) => return,
            Ok(Err(kube::Error::Api(status))) if status.code == 409 => return,
            Ok(Err(error)) => error.to_string(),
            Err(_) => "no answer".to_owned(),
        };
        let about = event.involved_object.name.unwrap_or_default();
        let reason = event.reason.unwrap_or_default();
        tracing::debug!(about, reason, why, "an event was not written");
    }

    fn event(&self, about: ObjectReference, tone: Tone, reason: &str, message: &str) -> Event {
        let now = Timestamp::now();
        let name = head(&about);
        let mut message = message.to_owned();
        while message.len() > MESSAGE {
            message.pop();
        }
        Event {
            metadata: ObjectMeta {
                // As client-go names them: the object, and a time that tells two events apart.
                name: Some(format!("{name}.{:x}", now.as_nanosecond())),
                namespace: Some(
                    about
                        .namespace
                        .clone()
                        .unwrap_or_else(|| DEFAULT.to_owned()),
                ),
                ..ObjectMeta::default()
            },
            involved_object: about,
            reason: Some(reason.to_owned()),
            message: Some(message),
            type_: Some(format!("{tone:?}")),
            source: Some(self.source.clone()),
            first_timestamp: Some(Time(now)),
            last_timestamp: Some(Time(now)),
            count: Some(1),
            ..Event::default()
        }
    }
}

/// What the name of an event about this object begins with.
fn head(about: &ObjectReference) -> String {
    let name = about.name.as_deref().unwrap_or_default();
    name.chars().take(NAME).collect()
}

/// FNV-1a, the same in every process and version: the texts, and where each ends.
fn hash(texts: &[&str]) -> u64 {
    let bytes = texts.iter().flat_map(|text| text.bytes().chain([0]));
    bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// A reference to a Node object. As the kubelet has it, its name stands for a UID that is not known: `kubectl describe
/// node` asks for events by this, too.
pub fn of_node(name: &str, uid: &str) -> ObjectReference {
    let uid = if uid.is_empty() { name } else { uid };
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Node".to_owned()),
        name: Some(name.to_owned()),
        uid: Some(uid.to_owned()),
        ..ObjectReference::default()
    }
}
