//! The claim of a slice, stored as a Lease: the node is the holder, the epoch is the number of transitions, and an
//! annotation has the rest.
//!
//! A custom kind would have fields for it, and cost the API server twice as much: it has compiled code for Leases, and
//! handles a custom kind as a tree of values (docs/decisions/0013-slice-claims-are-leases.md).

use std::borrow::Cow;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use kube::Resource;
use kube::api::ObjectMeta;
use kube::core::NamespaceResourceScope;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// The annotation for what a Lease has no field for.
pub const SLICE: &str = "berth.dev/slice";

/// The label of a claim with its node.
pub const NODE: &str = "berth.dev/node";
/// The label of a claim with its range: every claim has it, and no other Lease.
pub const RANGE: &str = "berth.dev/range";
/// The label of a claim with its network.
pub const NETWORK: &str = "berth.dev/network";

/// The namespace of the claims on pools of a namespace. It is separate, because leader elections use the Leases of the
/// other one: an account that may write those could depose leaders.
pub fn namespace(pools: &str) -> String {
    format!("berth-{pools}")
}

/// A sub-range that one node holds. The object is named after the sub-range, so its CREATE is the claim: two nodes
/// can't both create it, and there is no table that all of them write.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Lease", into = "Lease")]
pub struct SliceClaim {
    pub metadata: ObjectMeta,
    pub spec: SliceClaimSpec,
}

/// The contents of a claim.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SliceClaimSpec {
    /// The slice's network; empty for the unnamed one.
    pub network: String,
    /// The slice as a CIDR.
    pub range: String,
    /// The node that holds it; empty if none does.
    pub node: String,
    /// The node's UID: a node that is registered again under its name is another node (I8).
    pub node_uid: String,
    /// How often the slice was reassigned. A node that knows an older epoch has lost it (I8).
    pub epoch: u32,
    /// Parts that belong to other nodes now. While there is one, the object is not deleted.
    pub offers: Vec<SliceOffer>,
    /// Nodes that request a part of it.
    pub wants: Vec<String>,
    /// The controller is about to reclaim it, because its node seems to be gone. Nothing is allocated from it until its
    /// node has written it again (I8).
    pub recalled: bool,
    /// Fields that this version does not know.
    pub unknown: Map<String, Value>,
}

/// A part of a slice that its node has offered to another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SliceOffer {
    /// The part as a CIDR.
    pub range: String,
    /// The node that may claim it.
    pub node: String,
    /// Fields that this version does not know.
    #[serde(flatten)]
    pub unknown: Map<String, Value>,
}

/// The content of the annotation.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Words {
    #[serde(default, skip_serializing_if = "String::is_empty")]
    network: String,
    range: String,
    #[serde(default, rename = "nodeUID", skip_serializing_if = "String::is_empty")]
    node_uid: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    offers: Vec<SliceOffer>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    wants: Vec<String>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    recalled: bool,
    #[serde(flatten)]
    unknown: Map<String, Value>,
}

impl SliceClaim {
    pub fn new(name: &str, spec: SliceClaimSpec) -> Self {
        Self {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                ..ObjectMeta::default()
            },
            spec,
        }
    }
}

impl SliceClaimSpec {
    fn words(&self) -> String {
        let words = Words {
            network: self.network.clone(),
            range: self.range.clone(),
            node_uid: self.node_uid.clone(),
            offers: self.offers.clone(),
            wants: self.wants.clone(),
            recalled: self.recalled,
            unknown: self.unknown.clone(),
        };
        json!(words).to_string()
    }

    fn lease(&self) -> LeaseSpec {
        LeaseSpec {
            holder_identity: Some(self.node.clone()).filter(|node| !node.is_empty()),
            // The field is an i32; a slice is not reassigned two thousand million times.
            lease_transitions: Some(i32::try_from(self.epoch).unwrap_or(i32::MAX)),
            ..LeaseSpec::default()
        }
    }

    /// The merge patch that makes the object equal to this claim.
    pub fn merge(&self) -> Value {
        let lease = self.lease();
        json!({
            "metadata": { "annotations": { SLICE: self.words() } },
            // Also written when empty: what a merge patch omits stays.
            "spec": {
                "holderIdentity": lease.holder_identity,
                "leaseTransitions": lease.lease_transitions,
            },
        })
    }
}

impl From<SliceClaim> for Lease {
    fn from(claim: SliceClaim) -> Self {
        let SliceClaim { mut metadata, spec } = claim;
        let annotations = metadata.annotations.get_or_insert_default();
        annotations.insert(SLICE.to_owned(), spec.words());
        Self {
            metadata,
            spec: Some(spec.lease()),
        }
    }
}

impl TryFrom<Lease> for SliceClaim {
    type Error = String;

    fn try_from(lease: Lease) -> Result<Self, String> {
        let annotations = lease.metadata.annotations.as_ref();
        let words = annotations.and_then(|annotations| annotations.get(SLICE));
        let words = words.ok_or_else(|| format!("it has no annotation {SLICE}"))?;
        let words: Words = serde_json::from_str(words)
            .map_err(|error| format!("its annotation {SLICE}, {words:?}: {error}"))?;
        let spec = lease.spec.unwrap_or_default();
        let epoch = spec.lease_transitions.unwrap_or_default();
        Ok(Self {
            metadata: lease.metadata,
            spec: SliceClaimSpec {
                network: words.network,
                range: words.range,
                node: spec.holder_identity.unwrap_or_default(),
                node_uid: words.node_uid,
                epoch: u32::try_from(epoch)
                    .map_err(|_| format!("its leaseTransitions, {epoch}, is below zero"))?,
                offers: words.offers,
                wants: words.wants,
                recalled: words.recalled,
                unknown: words.unknown,
            },
        })
    }
}

impl Resource for SliceClaim {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        Lease::kind(&())
    }

    fn group((): &()) -> Cow<'_, str> {
        Lease::group(&())
    }

    fn version((): &()) -> Cow<'_, str> {
        Lease::version(&())
    }

    fn plural((): &()) -> Cow<'_, str> {
        Lease::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_unknown() -> Map<String, Value> {
        Map::from_iter([("newer".to_owned(), json!({ "n": 7 }))])
    }

    fn claim() -> SliceClaim {
        let spec = SliceClaimSpec {
            network: "blue".into(),
            range: "10.0.0.0/26".into(),
            node: "node-1".into(),
            node_uid: "uid".into(),
            epoch: 3,
            offers: vec![SliceOffer {
                range: "10.0.0.32/27".into(),
                node: "node-2".into(),
                unknown: mk_unknown(),
            }],
            wants: vec!["node-3".into()],
            recalled: true,
            unknown: mk_unknown(),
        };
        SliceClaim::new("blue-10.0.0.0-26", spec)
    }

    #[test]
    fn a_claim_is_read_as_it_was_written() {
        let bare = SliceClaimSpec {
            range: "10.0.0.0/26".into(),
            ..SliceClaimSpec::default()
        };
        for claim in [claim(), SliceClaim::new("10.0.0.0-26", bare)] {
            let written = serde_json::to_value(&claim).unwrap();
            assert_eq!(written["kind"], "Lease");
            let read: SliceClaim = serde_json::from_value(written).unwrap();
            assert_eq!(read.spec, claim.spec);
        }
    }

    #[test]
    fn a_merge_patch_results_in_the_whole_object() {
        let mut written = serde_json::to_value(claim()).unwrap();
        let merged = SliceClaimSpec {
            node: String::new(),
            epoch: 4,
            recalled: false,
            ..claim().spec
        };
        let patch = merged.merge();
        written["metadata"]["annotations"] = patch["metadata"]["annotations"].clone();
        written["spec"] = patch["spec"].clone();
        let read: SliceClaim = serde_json::from_value(written).unwrap();
        assert_eq!(read.spec, merged);
    }

    #[test]
    fn what_is_no_claim_is_said_to_be_none() {
        let mut lease = serde_json::to_value(claim()).unwrap();
        let why = |lease: &Value| {
            let read: Result<SliceClaim, _> = serde_json::from_value(lease.clone());
            read.unwrap_err().to_string()
        };
        lease["metadata"]["annotations"][SLICE] = json!("{}");
        assert!(why(&lease).contains("range"), "{}", why(&lease));
        lease["metadata"]["annotations"] = json!({});
        assert!(why(&lease).contains(SLICE), "{}", why(&lease));
    }
}
