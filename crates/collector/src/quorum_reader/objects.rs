//! What is read of Kubernetes objects: a whole pod has some ten kilobytes, and a sweep reads many.

use berth_core::{Address, Owner};
use serde::Deserialize;

use super::super::observed::{NodeState, Phase, Pod, PodRef};

/// The taint of a node that an administrator has declared to be off.
pub const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// A pod of a node, and which networks it asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoundPod {
    pub name: PodRef,
    pub node: String,
    pub phase: Phase,
    /// Its annotations that name networks, as they are written.
    pub networks: String,
    /// Whether anything says that its interfaces exist.
    pub connected: bool,
}

/// A secondary address of a pod, as Multus wrote it on the pod (network-status).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attached {
    pub owner: Owner,
    pub uid: String,
    /// The definition's namespace and name.
    pub network: (String, String),
    pub address: Address,
}

#[derive(Deserialize)]
struct Interface {
    #[serde(default)]
    name: String,
    #[serde(default)]
    interface: String,
    #[serde(default)]
    ips: Vec<String>,
    #[serde(default)]
    default: bool,
}

impl Attached {
    pub(super) fn read(pod: LeanPod) -> Vec<Attached> {
        let LeanMetadata {
            name,
            namespace,
            uid,
            annotations,
            deletion_timestamp,
        } = pod.metadata;
        let text = annotations.unwrap_or_default().network_status;
        if deletion_timestamp.is_some() || text.is_empty() {
            return Vec::new();
        }
        // A status that can't be parsed names no address.
        let interfaces: Vec<Interface> = serde_json::from_str(&text).unwrap_or_default();
        let mut all = Vec::new();
        for one in interfaces.into_iter().filter(|one| !one.default) {
            let Some((of, network)) = one.name.split_once('/') else {
                continue;
            };
            let addresses = one.ips.iter().filter_map(|ip| ip.parse::<Address>().ok());
            all.extend(addresses.map(|address| Attached {
                owner: Owner::new(format!("{namespace}/{name}"), &one.interface),
                uid: uid.clone(),
                network: (of.to_owned(), network.to_owned()),
                address,
            }));
        }
        all
    }
}

#[derive(Deserialize)]
pub(super) struct LeanNode {
    pub metadata: LeanMetadata,
    #[serde(default)]
    pub spec: LeanNodeSpec,
    #[serde(default)]
    pub status: LeanNodeStatus,
}

impl LeanNode {
    pub fn state(&self) -> NodeState {
        let mut taints = self.spec.taints.iter();
        NodeState::Present {
            out_of_service: taints.any(|taint| taint.key == OUT_OF_SERVICE),
        }
    }
}

#[derive(Default, Deserialize)]
pub(super) struct LeanNodeStatus {
    #[serde(default)]
    pub conditions: Vec<LeanCondition>,
}

#[derive(Deserialize)]
pub(super) struct LeanCondition {
    #[serde(default, rename = "type")]
    pub kind: String,
    #[serde(default)]
    pub status: String,
}

#[derive(Default, Deserialize)]
pub(super) struct LeanNodeSpec {
    #[serde(default)]
    pub taints: Vec<LeanTaint>,
}

#[derive(Deserialize)]
pub(super) struct LeanTaint {
    #[serde(default)]
    pub key: String,
}

#[derive(Deserialize)]
pub(super) struct LeanMetadata {
    pub name: String,
    #[serde(default)]
    pub namespace: String,
    #[serde(default)]
    pub uid: String,
    #[serde(default)]
    pub annotations: Option<LeanAnnotations>,
    #[serde(default, rename = "deletionTimestamp")]
    pub deletion_timestamp: Option<String>,
}

#[derive(Default, Deserialize)]
pub(super) struct LeanAnnotations {
    /// The UID of a static pod, which its containers carry, on its mirror, which has another.
    #[serde(default, rename = "kubernetes.io/config.hash")]
    pub static_uid: Option<String>,
    #[serde(default, rename = "k8s.v1.cni.cncf.io/networks")]
    pub networks: String,
    #[serde(default, rename = "v1.multus-cni.io/default-network")]
    pub default_network: String,
    /// Written by Multus when all interfaces exist.
    #[serde(default, rename = "k8s.v1.cni.cncf.io/network-status")]
    pub network_status: String,
}

#[derive(Deserialize)]
pub(super) struct LeanPod {
    pub metadata: LeanMetadata,
    #[serde(default)]
    pub spec: LeanSpec,
    #[serde(default)]
    pub status: LeanStatus,
}

#[derive(Default, Deserialize)]
pub(super) struct LeanSpec {
    #[serde(default, rename = "nodeName")]
    pub node_name: Option<String>,
}

#[derive(Default, Deserialize)]
pub(super) struct LeanStatus {
    #[serde(default)]
    pub phase: String,
    #[serde(default, rename = "podIP")]
    pub pod_ip: String,
}

impl BoundPod {
    pub(super) fn read(pod: LeanPod) -> Option<BoundPod> {
        let annotations = pod.metadata.annotations.unwrap_or_default();
        let silent = annotations.network_status.is_empty() && pod.status.pod_ip.is_empty();
        let pending = matches!(pod.status.phase.as_str(), "" | "Pending");
        Some(BoundPod {
            connected: !(silent && pending),
            name: PodRef::new(pod.metadata.namespace, pod.metadata.name),
            node: pod.spec.node_name.filter(|node| !node.is_empty())?,
            phase: Phase::read(&pod.status.phase),
            networks: format!("{} {}", annotations.networks, annotations.default_network),
        })
    }
}

impl From<LeanPod> for Pod {
    fn from(pod: LeanPod) -> Pod {
        let annotations = pod.metadata.annotations.unwrap_or_default();
        let uids = [Some(pod.metadata.uid), annotations.static_uid];
        Pod {
            uids: uids
                .into_iter()
                .flatten()
                .filter(|uid| !uid.is_empty())
                .collect(),
            phase: Phase::read(&pod.status.phase),
            node: pod.spec.node_name.filter(|node| !node.is_empty()),
        }
    }
}
