//! Events on pods: what became of the address that a pod asked for or brought along.

use berth_cni::{CniError, Code};
use berth_core::Owner;
use berth_kube::Connection;
use berth_kube::events::{Events, Tone};
use k8s_openapi::api::core::v1::ObjectReference;

/// Writes them.
#[derive(Clone, Debug)]
pub struct PodEvents(Events);

/// One event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodEvent {
    /// The pod, with its UID.
    pub pod: Owner,
    pub tone: Tone,
    pub reason: &'static str,
    pub message: String,
}

impl PodEvents {
    pub fn new(connection: &Connection, node: &str) -> PodEvents {
        let client = connection.client.clone();
        PodEvents(Events::new(client, connection.timeout, "gcp-ipam", node))
    }

    /// Once, however often a runtime asks again.
    pub async fn write(&self, event: PodEvent) {
        let (namespace, name) = event.pod.subject.split_once('/').unwrap_or_default();
        let about = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            namespace: Some(namespace.to_owned()),
            name: Some(name.to_owned()),
            uid: Some(event.pod.part.clone()),
            ..ObjectReference::default()
        };
        self.0
            .tell_once(about, event.tone, event.reason, &event.message)
            .await;
    }
}

impl PodEvent {
    /// The ADD failed. What passes by itself is no warning.
    pub fn refused(pod: Owner, error: &CniError) -> PodEvent {
        let (tone, reason) = match error.code {
            Code::TryLater => (Tone::Normal, "AddressDelayed"),
            _ => (Tone::Warning, "AddressRefused"),
        };
        PodEvent {
            pod,
            tone,
            reason,
            message: format!("{}; {}", error.msg, error.details),
        }
    }

    pub fn moved(pod: Owner, address: std::net::Ipv4Addr, from: &str, to: &str) -> PodEvent {
        PodEvent {
            pod,
            tone: Tone::Normal,
            reason: "AddressMoved",
            message: format!("{address} moved from {from} to {to}"),
        }
    }

    /// The pod keeps running, and its address does not move.
    pub fn nothing_to_move(pod: Owner, annotation: &str) -> PodEvent {
        PodEvent {
            pod,
            tone: Tone::Warning,
            reason: "NothingToMove",
            message: format!(
                "{annotation} is set, and the pod has no address of an IPPool on this node: nothing moves; remove the annotation"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_passes_by_itself_is_no_warning() {
        let pod = Owner::new("shop/cart", "u1");
        let later = CniError::new(Code::TryLater, "busy").details("wait");
        let wrong =
            CniError::new(Code::Config, "live.cast.ai/ip: 'ten'").details("name an address");
        let events = [&later, &wrong].map(|error| PodEvent::refused(pod.clone(), error));
        assert_eq!(
            events.each_ref().map(|event| event.tone),
            [Tone::Normal, Tone::Warning]
        );
        assert_eq!(events[1].message, "live.cast.ai/ip: 'ten'; name an address");
    }
}
