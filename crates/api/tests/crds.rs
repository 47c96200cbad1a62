//! The installed definitions match the types, and the definitions of the kinds' own projects.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Value, json};

fn generated() -> Vec<Value> {
    berth_api::crds().unwrap()
}

fn definition(plural: &str) -> Value {
    generated()
        .into_iter()
        .find(|crd| crd["spec"]["names"]["plural"] == plural)
        .unwrap()
}

fn version(plural: &str) -> Value {
    definition(plural)["spec"]["versions"][0].clone()
}

/// The schema without its prose.
fn shape(plural: &str) -> Value {
    fn bare(value: &Value) -> Value {
        match value {
            Value::Object(map) => map
                .iter()
                .filter(|(key, value)| *key != "description" || !value.is_string())
                .map(|(key, value)| (key.clone(), bare(value)))
                .collect(),
            Value::Array(list) => list.iter().map(bare).collect(),
            other => other.clone(),
        }
    }
    bare(&version(plural)["schema"]["openAPIV3Schema"])
}

#[test]
fn the_committed_files_are_the_generated_ones() {
    let place = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/crds");
    let mut expected = BTreeSet::new();
    for crd in generated() {
        let name = berth_api::file_name(&crd);
        let committed = std::fs::read_to_string(place.join(&name)).unwrap_or_default();
        assert_eq!(
            committed,
            serde_saphyr::to_string(&crd).unwrap(),
            "deploy/crds/{name} is out of date: run `cargo run -p berth-api --example crds`"
        );
        expected.insert(name);
    }
    expected.insert("policy-ippools.yaml".to_owned());
    expected.insert("policy-nodeippools.yaml".to_owned());
    expected.insert("namespace-slices.yaml".to_owned());
    let found: BTreeSet<String> = std::fs::read_dir(&place)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(found, expected, "deploy/crds has a file of no kind");
}

/// Except the entries: their readers and writers validate them, and the API server accepts any.
#[test]
fn the_pool_is_that_of_whereabouts() {
    assert_eq!(
        shape("ippools"),
        json!({
            "type": "object",
            "properties": { "spec": {
                "type": "object",
                "required": ["allocations", "range"],
                "properties": {
                    "range": { "type": "string" },
                    "allocations": {
                        "type": "object",
                        "x-kubernetes-preserve-unknown-fields": true,
                    },
                },
            } },
        })
    );
}

#[test]
fn the_reservation_is_that_of_whereabouts() {
    assert_eq!(
        shape("overlappingrangeipreservations"),
        json!({
            "type": "object",
            "required": ["spec"],
            "properties": { "spec": {
                "type": "object",
                "required": ["podref"],
                "properties": {
                    "containerid": { "type": "string" },
                    "podref": { "type": "string" },
                    "ifname": { "type": "string" },
                },
            } },
        })
    );
}

#[test]
fn the_node_slice_pool_has_a_status_and_no_subresource() {
    assert_eq!(version("nodeslicepools").get("subresources"), None);
    assert_eq!(
        shape("nodeslicepools"),
        json!({
            "type": "object",
            "properties": {
                "spec": {
                    "type": "object",
                    "required": ["range", "sliceSize"],
                    "properties": {
                        "range": { "type": "string" },
                        "sliceSize": { "type": "string" },
                    },
                },
                "status": {
                    "type": "object",
                    "required": ["allocations"],
                    "properties": { "allocations": {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "required": ["nodeName", "sliceRange"],
                            "properties": {
                                "nodeName": { "type": "string" },
                                "sliceRange": { "type": "string" },
                            },
                        },
                    } },
                },
            },
        })
    );
}

#[test]
fn networks_keep_their_short_name_and_claims_their_subresource() {
    let network = definition("network-attachment-definitions");
    assert_eq!(
        network["spec"]["names"]["shortNames"],
        json!(["net-attach-def"])
    );
    assert_eq!(
        shape("network-attachment-definitions"),
        json!({
            "type": "object",
            "properties": { "spec": {
                "type": "object",
                "properties": { "config": { "type": "string" } },
            } },
        })
    );
    assert_eq!(
        version("ipamclaims")["subresources"],
        json!({ "status": {} })
    );
}

#[test]
fn every_kind_but_the_pool_of_hosts_is_namespaced() {
    for crd in generated() {
        let scope = match crd["spec"]["names"]["kind"].as_str() {
            Some("NodeIPPool") => "Cluster",
            _ => "Namespaced",
        };
        assert_eq!(crd["spec"]["scope"], scope, "{}", crd["metadata"]);
    }
}

#[test]
fn the_pool_of_hosts_has_the_proposals_fields_a_status_of_its_own_and_columns() {
    assert_eq!(
        version("nodeippools")["subresources"],
        json!({ "status": {} })
    );
    let columns: Vec<Value> = version("nodeippools")["additionalPrinterColumns"]
        .as_array()
        .unwrap()
        .iter()
        .map(|column| column["name"].clone())
        .collect();
    assert_eq!(
        columns,
        [
            "CIDR",
            "Total",
            "Used",
            "Free",
            "Available",
            "Reason",
            "Age"
        ]
    );
    let shape = shape("nodeippools");
    let fields = |pointer: &str| -> BTreeSet<String> {
        let object = shape.pointer(pointer).unwrap().as_object().unwrap();
        object.keys().cloned().collect()
    };
    let named = |names: &[&str]| -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    };
    assert_eq!(
        fields("/properties/spec/properties"),
        named(&[
            "range",
            "ranges",
            "gateway",
            "dns",
            "reservations",
            "reuse-delay"
        ])
    );
    assert_eq!(
        fields("/properties/spec/properties/range/properties"),
        named(&["cidr", "start", "end", "exclude", "gateway"])
    );
    assert_eq!(
        fields("/properties/status/properties"),
        named(&[
            "allocated-offsets",
            "allocated-bitmap",
            "bitmap-format",
            "allocations",
            "cooling-down",
            "set-aside",
            "total",
            "used",
            "free",
            "conditions",
        ])
    );
}
