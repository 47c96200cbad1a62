//! The objects of whereabouts: group `whereabouts.cni.cncf.io`, version `v1alpha1`, all namespaced.
//!
//! Field for field what whereabouts v0.9.4 has. There is no status subresource, not even for the kind that has a status
//! ([`crate::crds`]). One definition is less strict than whereabouts' own: the entries of a pool ([`entries`]).

use std::collections::BTreeMap;

use kube::CustomResource;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// A range and who holds which of its addresses.
#[derive(CustomResource, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "whereabouts.cni.cncf.io",
    version = "v1alpha1",
    kind = "IPPool",
    plural = "ippools",
    singular = "ippool",
    namespaced,
    derive = "PartialEq",
    doc = "A range of addresses and who holds which of them."
)]
pub struct IPPoolSpec {
    /// The range as a CIDR. Offsets count from its address.
    pub range: String,
    /// What is held: the decimal offset from the range's first address, and the holder.
    #[schemars(schema_with = "entries")]
    pub allocations: BTreeMap<String, IPAllocation>,
}

/// A map without a schema: an API server that validates every entry at every write takes three times as long for a pool
/// of 10,000 (docs/decisions/0012-replace-large-pools.md). Programs write what they read;
/// deploy/crds/policy-ippools.yaml checks what people write; an invalid entry is kept, and its address is not allocated
/// (I5).
fn entries(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true })
}

/// The holder of one address.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct IPAllocation {
    /// The container that the address was given to.
    pub id: String,
    /// The pod, as `namespace/name`.
    pub podref: String,
    /// The pod's interface.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub ifname: String,
}

/// One address, reserved across all pools whose ranges overlap. Its name is the address.
#[derive(CustomResource, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "whereabouts.cni.cncf.io",
    version = "v1alpha1",
    kind = "OverlappingRangeIPReservation",
    plural = "overlappingrangeipreservations",
    singular = "overlappingrangeipreservation",
    namespaced,
    derive = "PartialEq",
    doc = "One address, reserved across all pools whose ranges overlap. The object's name is the address."
)]
pub struct OverlappingRangeIPReservationSpec {
    /// The container that the pod's interface is of. whereabouts never writes it: empty says nothing.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub containerid: String,
    /// The pod, as `namespace/name`.
    pub podref: String,
    /// The pod's interface.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub ifname: String,
}

/// A range cut into slices, and which node has which.
#[derive(CustomResource, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "whereabouts.cni.cncf.io",
    version = "v1alpha1",
    kind = "NodeSlicePool",
    plural = "nodeslicepools",
    singular = "nodeslicepool",
    namespaced,
    status = "NodeSlicePoolStatus",
    derive = "PartialEq",
    doc = "A range cut into slices of one size, and which node has which."
)]
#[serde(rename_all = "camelCase")]
pub struct NodeSlicePoolSpec {
    /// The whole range as a CIDR; each node gets a part of it.
    pub range: String,
    /// The prefix length of a slice, with or without the slash.
    pub slice_size: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NodeSlicePoolStatus {
    /// All slices, assigned and free.
    pub allocations: Vec<NodeSliceAllocation>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeSliceAllocation {
    /// The node that has the slice; empty while it is free.
    pub node_name: String,
    /// The slice as a CIDR.
    pub slice_range: String,
}
