//! Berth's own objects, group `berth.dev`: calls to nodes. Claims of slices are Leases: [`crate::claim`].

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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
