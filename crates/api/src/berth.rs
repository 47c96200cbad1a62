//! Berth's own objects, group `berth.dev`: calls to nodes, and the administrator's policy of ranges. Claims of slices
//! are Leases: [`crate::claim`].

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A notification to one node: read your slices again, another process has changed one of your claims. The object's
/// name is the node's, so that a node receives only its own notifications: a watch of one name costs the API server
/// nothing for other objects, while a watch by label is shown every change of every claim.
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
    doc = "A notification to the node of that name: another process has written on a claim of yours."
)]
#[serde(rename_all = "camelCase")]
pub struct SliceCallSpec {
    /// A new value with every notification, and the name of the claim.
    #[serde(default)]
    pub call: String,
}

/// The name of the only effective [`RangePolicy`], in the namespace of the pools.
pub const RANGE_POLICY: &str = "berth";

/// Which namespaces may use which ranges. Only the object `berth` in the namespace of the pools has an effect. While
/// it exists, a namespace uses a range only if a rule allows it.
#[derive(
    CustomResource, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema,
)]
#[kube(
    group = "berth.dev",
    version = "v1alpha1",
    kind = "RangePolicy",
    plural = "rangepolicies",
    singular = "rangepolicy",
    namespaced,
    derive = "PartialEq",
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    ),
    doc = "Which namespaces may use which ranges."
)]
#[serde(rename_all = "camelCase")]
pub struct RangePolicySpec {
    /// A range that no rule allows is refused.
    #[serde(default)]
    #[schemars(length(max = 1000))]
    pub rules: Vec<RangeRule>,
}

/// The ranges that some namespaces may use.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RangeRule {
    /// Namespaces of pods and of network definitions; `*` is every one.
    #[schemars(
        length(min = 1, max = 1000),
        inner(regex(pattern = r"^(\*|[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)$"))
    )]
    pub namespaces: Vec<String>,
    /// CIDRs. A network's range, and each static address, must lie in one of them.
    #[schemars(
        length(min = 1, max = 1000),
        inner(regex(pattern = r"^[0-9A-Fa-f:.]+/[0-9]{1,3}$"))
    )]
    pub ranges: Vec<String>,
    /// Whether networks of these ranges may have node slices (`node_slice_size`, `fast_ipam`).
    #[serde(default)]
    pub node_slices: bool,
}
