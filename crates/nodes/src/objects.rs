//! The objects of group `nmstate.io` and how they are reached. All are cluster-scoped, and read as JSON: what Berth does not know of
//! them stays as it is (I7).

use kube::api::{ApiResource, DynamicObject};
use kube::core::GroupVersionKind;
use kube::{Api, Client};
use serde_json::Value;

/// A kind: version, name, plural.
pub type Kind = (&'static str, &'static str, &'static str);

pub const NODE_IP_POOL: Kind = ("v1", "NodeIPPool", "nodeippools");
pub const POLICY: Kind = (
    "v1",
    "NodeNetworkConfigurationPolicy",
    "nodenetworkconfigurationpolicies",
);
pub const ENACTMENT: Kind = (
    "v1beta1",
    "NodeNetworkConfigurationEnactment",
    "nodenetworkconfigurationenactments",
);
pub const NODE_STATE: Kind = ("v1beta1", "NodeNetworkState", "nodenetworkstates");

/// The label of an enactment that names its node.
pub const NODE_LABEL: &str = "nmstate.io/node";
/// The label of an enactment that names its policy.
pub const POLICY_LABEL: &str = "nmstate.io/policy";

pub fn resource((version, kind, plural): Kind) -> ApiResource {
    let gvk = GroupVersionKind::gvk("nmstate.io", version, kind);
    ApiResource::from_gvk_with_plural(&gvk, plural)
}

pub fn api(client: Client, kind: Kind) -> Api<DynamicObject> {
    Api::all_with(client, &resource(kind))
}

/// An object as JSON.
pub fn value(object: &DynamicObject) -> Value {
    serde_json::to_value(object).unwrap_or_default()
}

pub fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    let found = object.pointer(pointer).and_then(Value::as_str);
    found.unwrap_or_default()
}

pub fn name(object: &Value) -> &str {
    text(object, "/metadata/name")
}

pub fn uid(object: &Value) -> &str {
    text(object, "/metadata/uid")
}

pub fn generation(object: &Value) -> i64 {
    let found = object.pointer("/metadata/generation");
    found.and_then(Value::as_i64).unwrap_or_default()
}

pub fn annotation<'a>(object: &'a Value, key: &str) -> Option<&'a str> {
    let all = object.pointer("/metadata/annotations")?;
    all.get(key)?.as_str()
}

pub fn label<'a>(object: &'a Value, key: &str) -> Option<&'a str> {
    object.pointer("/metadata/labels")?.get(key)?.as_str()
}
