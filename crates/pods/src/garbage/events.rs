//! Kubernetes Events on pods whose addresses were collected, with the reasons and words that whereabouts uses: tools that
//! watch for those keep working.

use std::time::Duration;

use berth_collector::observed::PodRef;
use berth_core::Address;
use berth_kube::events::{Events, Tone};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;

use super::duplicates::Duplicate;

const COLLECTED: &str = "IPAddressGarbageCollected";
const DUPLICATE: &str = "IPAddressDuplicate";
const FAILED: &str = "IPAddressGarbageCollectionFailed";

#[derive(Clone, Debug)]
pub(super) struct Recorder(Events);

impl Recorder {
    pub fn new(client: Client, node: &str, timeout: Duration) -> Recorder {
        Recorder(Events::new(client, timeout, "berth", node))
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
        self.record(pod, uid, Tone::Normal, COLLECTED, &message)
            .await;
    }

    /// Written on each pod that shares its address with another.
    pub async fn duplicate(&self, pod: &PodRef, uid: Option<&str>, duplicate: &Duplicate) {
        let message = format!("{duplicate}; delete all but one of them");
        self.record(pod, uid, Tone::Warning, DUPLICATE, &message)
            .await;
    }

    pub async fn failed(&self, pod: &PodRef, uid: Option<&str>) {
        let message = format!("failed to garbage collect addresses for pod {pod}");
        self.record(pod, uid, Tone::Warning, FAILED, &message).await;
    }

    async fn record(
        &self,
        pod: &PodRef,
        uid: Option<&str>,
        tone: Tone,
        reason: &str,
        message: &str,
    ) {
        let about = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            namespace: Some(pod.namespace.clone()),
            name: Some(pod.name.clone()),
            uid: uid.map(str::to_owned),
            ..ObjectReference::default()
        };
        self.0.tell(about, tone, reason, message).await;
    }
}
