//! Objects of the network plumbing group, `k8s.cni.cncf.io`: networks that pods ask for, and
//! addresses that outlive a pod.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A network that a pod can be attached to.
#[derive(
    CustomResource, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema,
)]
#[kube(
    group = "k8s.cni.cncf.io",
    version = "v1",
    kind = "NetworkAttachmentDefinition",
    plural = "network-attachment-definitions",
    singular = "network-attachment-definition",
    shortname = "net-attach-def",
    namespaced,
    derive = "PartialEq",
    doc = "A network that a pod can be attached to."
)]
pub struct NetworkAttachmentDefinitionSpec {
    /// A CNI configuration as JSON. Empty: the node has one on disk, under the object's name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub config: String,
}

/// Addresses that stay with a workload while its pods come and go.
#[derive(CustomResource, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "k8s.cni.cncf.io",
    version = "v1alpha1",
    kind = "IPAMClaim",
    plural = "ipamclaims",
    singular = "ipamclaim",
    namespaced,
    status = "IPAMClaimStatus",
    derive = "PartialEq",
    doc = "Addresses that stay with a workload while its pods come and go."
)]
pub struct IPAMClaimSpec {
    /// The network that the addresses are of.
    pub network: String,
    /// The pod's interface that they are for.
    pub interface: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct IPAMClaimStatus {
    /// The addresses, IPv4 and IPv6.
    pub ips: Vec<String>,
    /// The pod that uses them now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner_pod: Option<OwnerPod>,
    /// How the claim fares.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OwnerPod {
    /// The pod's name; its namespace is the claim's.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
}

/// One aspect of an object's state, as everywhere in Kubernetes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// The aspect, in CamelCase.
    #[serde(rename = "type")]
    pub kind: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// Why, as one CamelCase word.
    pub reason: String,
    /// Why, for people.
    pub message: String,
    /// When the status last changed, RFC 3339.
    pub last_transition_time: String,
    /// The generation that the condition speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}
