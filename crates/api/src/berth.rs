//! Berth's own objects, group `berth.dev`: claims that are made by the CREATE of a name.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A sub-range that one node holds. The object's name is the sub-range, so that its CREATE is the
/// claim: two nodes can't both have made it, and no table is written by all of them.
#[derive(CustomResource, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "berth.dev",
    version = "v1alpha1",
    kind = "SliceClaim",
    plural = "sliceclaims",
    singular = "sliceclaim",
    shortname = "slice",
    namespaced,
    derive = "PartialEq",
    printcolumn = r#"{"name":"Range", "type":"string", "jsonPath":".spec.range"}"#,
    printcolumn = r#"{"name":"Node", "type":"string", "jsonPath":".spec.node"}"#,
    printcolumn = r#"{"name":"Epoch", "type":"integer", "jsonPath":".spec.epoch"}"#,
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    ),
    doc = "A sub-range that one node holds. The object's name is the sub-range."
)]
#[serde(rename_all = "camelCase")]
pub struct SliceClaimSpec {
    /// The network that the slice is of; empty for the unnamed one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub network: String,
    /// The slice as a CIDR.
    pub range: String,
    /// The node that holds it.
    pub node: String,
    /// That node's UID: a node made again under the name is another node (I8).
    #[serde(default, rename = "nodeUID", skip_serializing_if = "String::is_empty")]
    pub node_uid: String,
    /// How often the slice has changed hands. A node that knows an older one has lost it (I8).
    #[schemars(range(min = 0))]
    pub epoch: i64,
    /// Parts of it that are others' now. While there is one, the object is not deleted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub offers: Vec<SliceOffer>,
    /// Nodes that ask for a part of it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub wants: Vec<String>,
    /// The controller is about to take it back, for its node seems to be gone. Nobody gives from it until its node has
    /// written on it again (I8).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub recalled: bool,
}

/// A call to one node: look at your slices, somebody has written on a claim of yours. The object's name is the node's, so
/// that a node hears its own calls and no others: a watch of one name costs the API server nothing for what happens
/// to other objects, and a watch by label is shown every change of every claim.
#[derive(CustomResource, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "berth.dev",
    version = "v1alpha1",
    kind = "SliceCall",
    plural = "slicecalls",
    singular = "slicecall",
    namespaced,
    derive = "PartialEq",
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    ),
    doc = "A call to the node of that name: somebody has written on a claim of yours."
)]
#[serde(rename_all = "camelCase")]
pub struct SliceCallSpec {
    /// Another value with every call, and the name of the claim that it is about.
    #[serde(default)]
    pub call: String,
}

/// A part of a slice that its node has surrendered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SliceOffer {
    /// The part as a CIDR.
    pub range: String,
    /// The node that may claim it.
    pub node: String,
}
