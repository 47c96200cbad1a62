//! The definitions of all kinds, as they are installed.
//!
//! Generated from the types, then adapted to what the kinds' own projects have: the derive macro knows no status
//! without its subresource and requires a `spec` in every object. deploy/crds has the result; a test fails if the two
//! differ.

use kube::CustomResourceExt;
use serde_json::Value;

use crate::berth::{RangePolicy, SliceCall};
use crate::cncf::{IPAMClaim, NetworkAttachmentDefinition};
use crate::nmstate::NodeIPPool;
use crate::whereabouts::{IPPool, NodeSlicePool, OverlappingRangeIPReservation};

/// All definitions, as `CustomResourceDefinition` objects.
pub fn crds() -> Result<Vec<Value>, serde_json::Error> {
    [
        (IPPool::crd(), Spec::Optional, Status::Plain),
        (
            OverlappingRangeIPReservation::crd(),
            Spec::Required,
            Status::Plain,
        ),
        (NodeSlicePool::crd(), Spec::Optional, Status::Plain),
        (
            NetworkAttachmentDefinition::crd(),
            Spec::Optional,
            Status::Plain,
        ),
        (IPAMClaim::crd(), Spec::Optional, Status::Subresource),
        (SliceCall::crd(), Spec::Optional, Status::Plain),
        (RangePolicy::crd(), Spec::Required, Status::Plain),
        (NodeIPPool::crd(), Spec::Required, Status::Subresource),
    ]
    .into_iter()
    .map(|(crd, spec, status)| Ok(adjust(serde_json::to_value(crd)?, spec, status)))
    .collect()
}

/// The file name of a definition: `<group>_<plural>.yaml`.
pub fn file_name(crd: &Value) -> String {
    let text = |path: &str| {
        crd.pointer(path)
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned()
    };
    format!(
        "{}_{}.yaml",
        text("/spec/group"),
        text("/spec/names/plural")
    )
}

#[derive(Clone, Copy, PartialEq)]
enum Spec {
    Required,
    Optional,
}

#[derive(Clone, Copy, PartialEq)]
enum Status {
    /// Written with the rest of the object.
    Plain,
    Subresource,
}

fn adjust(mut crd: Value, spec: Spec, status: Status) -> Value {
    let versions = crd
        .pointer_mut("/spec/versions")
        .and_then(Value::as_array_mut);
    for version in versions
        .into_iter()
        .flatten()
        .filter_map(Value::as_object_mut)
    {
        if status == Status::Plain {
            version.remove("subresources");
        }
        let Some(schema) = version
            .get_mut("schema")
            .and_then(|schema| schema.get_mut("openAPIV3Schema"))
            .and_then(Value::as_object_mut)
        else {
            continue;
        };
        schema.remove("title");
        if spec == Spec::Optional {
            schema.remove("required");
        }
        strip_nullable(schema.get_mut("properties"));
    }
    crd
}

/// An absent field is absent, never `null`: the projects' own Go types write it that way.
fn strip_nullable(value: Option<&mut Value>) {
    match value {
        Some(Value::Object(map)) => {
            if map.get("nullable") == Some(&Value::Bool(true)) {
                map.remove("nullable");
            }
            for child in map.values_mut() {
                strip_nullable(Some(child));
            }
        }
        Some(Value::Array(list)) => {
            for child in list {
                strip_nullable(Some(child));
            }
        }
        _ => {}
    }
}
