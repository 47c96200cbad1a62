//! Object to pool and back; pure.
//!
//! Guarantees: what is not understood is kept as it is and reported (I5, I7); the counters are what the entries say after
//! every write; decoding what was encoded gives the same pool.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use berth_core::{Address, Handle, NODE, Owner, Pool, Record, Unparsed};
use ipnet::Ipv4Net;
use serde_json::{Map, Value, json};
use thiserror::Error;

use super::attributes::{ALLOCATED_AT, INSTANCE, VITAL};
use super::pages::{self, PageOf, Pages};
use super::{DEFAULT_RANGE, gateway};

/// What must not be lost of an entry besides upstream's fields (a move and its phase, a marker): a JSON object from address to
/// attributes. An annotation, because upstream's definition and plugin drop what they do not know of an entry.
pub const ATTRIBUTES: &str = "berth.dev/attributes";
/// What else Berth keeps, in the entry itself: Berth's definition has the field. Where another program has dropped it, the
/// node's own file has the container, and the Node the VM.
const OWN: &str = "berth";
/// In the annotation: whose attributes they are. Another program may have allocated the address to another pod meanwhile.
const UID: &str = "podUID";
/// The container.
const CONTAINER: &str = "containerID";

/// A pool as its object says.
#[derive(Clone, Debug)]
pub struct IpPool {
    pub cidr: Ipv4Net,
    /// `projects/{project}/regions/{region}/subnetworks/{name}`.
    pub subnet: String,
    pub range: String,
    /// The pool that this object is a page of.
    pub page_of: Option<PageOf>,
    pub pages: Pages,
    pub pool: Pool,
    pub findings: Vec<Finding>,
}

/// What an administrator should know about an object that is usable all the same.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Finding {
    #[error(
        "spec.allocations[{address}]: the gateway is allocated to {pod}; the entry is kept, and no pod gets it again"
    )]
    GatewayAllocated { address: Ipv4Addr, pod: String },
    #[error("spec.allocations[{key}]: {why}; the entry is kept and not touched")]
    Unparsed { key: String, why: String },
    #[error(
        "annotation {ATTRIBUTES} can't be read: {0}; it is left as it is, and nothing is allocated or released until it is corrected"
    )]
    Attributes(String),
    #[error("{0}; nothing is allocated until it is corrected")]
    Pages(String),
}

impl Finding {
    /// The object must not be written until it is corrected (I5).
    pub fn stops_writes(&self) -> bool {
        matches!(self, Finding::Attributes(_) | Finding::Pages(_))
    }
}

/// Why an object is not used at all.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PoolError {
    #[error("spec.cidr: '{0}' is not an IPv4 range such as 10.111.0.0/16")]
    Cidr(String),
    #[error("{field}: {found} is not {wanted}")]
    Shape {
        field: &'static str,
        found: String,
        wanted: &'static str,
    },
}

/// Reads an object.
pub fn decode(object: &Value) -> Result<IpPool, PoolError> {
    let spec = &object["spec"];
    let text = |field: &'static str| match &spec[field] {
        Value::Null => Ok(String::new()),
        Value::String(text) => Ok(text.clone()),
        other => Err(shape(field, other, "text")),
    };
    let cidr = text("cidr")?;
    let cidr: Ipv4Net = cidr.parse().map_err(|_| PoolError::Cidr(cidr))?;
    let cidr = cidr.trunc();
    let mut findings = Vec::new();
    let attributes = attributes(object, &mut findings);
    let mut unreadable = |why: String| findings.push(Finding::Pages(why));
    let page_of = pages::page_of(object).unwrap_or_else(|why| {
        unreadable(why);
        None
    });
    let pages = pages::pages_of(object).unwrap_or_else(|why| {
        unreadable(why);
        Pages::new()
    });
    if let Some(why) = pages::foreign_write(object, &pages) {
        unreadable(why);
    }
    let empty = Map::new();
    let entries = match &spec["allocations"] {
        Value::Null => &empty,
        Value::Object(entries) => entries,
        other => return Err(shape("spec.allocations", other, "an object")),
    };
    let mut pool = Pool::new();
    for (key, entry) in entries {
        match read(cidr, key, entry) {
            Ok((address, mut record)) => {
                let kept = attributes.get(&address);
                let kept = kept.filter(|kept| kept.get(UID) == Some(&record.owner.part));
                for (name, value) in kept.into_iter().flatten().filter(|(name, _)| *name != UID) {
                    record.attributes.insert(name.clone(), value.clone());
                }
                if page_of.is_none() && address == gateway(cidr) {
                    let pod = record.owner.subject.clone();
                    findings.push(Finding::GatewayAllocated { address, pod });
                }
                pool.restore(Address::from(IpAddr::from(address)), record);
            }
            Err(why) => {
                let (key, why) = (key.clone(), why.to_owned());
                findings.push(Finding::Unparsed {
                    key: key.clone(),
                    why: why.clone(),
                });
                pool.restore_unparsed(Unparsed { key, why });
            }
        }
    }
    let range = Some(text("secondaryRangeName")?).filter(|range| !range.is_empty());
    Ok(IpPool {
        cidr,
        subnet: text("subnet")?,
        range: range.unwrap_or_else(|| DEFAULT_RANGE.to_owned()),
        page_of,
        pages,
        pool,
        findings,
    })
}

/// Writes a pool into the object that it was read from: entries, attributes and counters; everything else stays. Attributes that
/// can't be read are not overwritten (I5).
pub fn encode(before: &Value, cidr: Ipv4Net, pool: &Pool) -> Value {
    let mut object = before.clone();
    let listed = pages::pages_of(before).unwrap_or_default();
    let old = before["spec"]["allocations"].as_object();
    let mut entries = Map::new();
    let mut attributes: BTreeMap<String, BTreeMap<String, String>> = BTreeMap::new();
    // A stray is not Berth's to change.
    for stray in pool.unparsed() {
        if let Some(entry) = old.and_then(|old| old.get(&stray.key)) {
            entries.insert(stray.key.clone(), entry.clone());
        }
    }
    for (address, record) in pool.records() {
        let key = address.to_string();
        let same = old.and_then(|old| old.get(&key));
        entries.insert(key.clone(), entry_of(record, same));
        let mut kept = vital(record);
        if !kept.is_empty() {
            kept.insert(UID.to_owned(), record.owner.part.clone());
            attributes.insert(key, kept);
        }
    }
    let allocated = u64::try_from(entries.len()).unwrap_or(u64::MAX);
    let capacity = match pages::page_of(before) {
        Ok(Some(page_of)) => pages::capacity_of(page_of.cidr, Some(cidr), &Pages::new()),
        _ => pages::capacity_of(cidr, None, &listed),
    };
    set(
        &mut object,
        &["spec", "allocations"],
        Value::Object(entries),
    );
    let counters = [
        ("capacity", capacity),
        ("allocated", allocated),
        ("available", capacity.saturating_sub(allocated)),
    ];
    for (name, value) in counters {
        set(&mut object, &["status", name], json!(value));
    }
    pages::note_digest(&mut object, &listed);
    if parsed_attributes(before).is_err() {
        return object;
    }
    let text = (!attributes.is_empty()).then(|| json!(attributes).to_string());
    match text {
        Some(text) => set(
            &mut object,
            &["metadata", "annotations", ATTRIBUTES],
            json!(text),
        ),
        None => {
            if let Some(annotations) = object["metadata"]["annotations"].as_object_mut() {
                annotations.remove(ATTRIBUTES);
            }
        }
    }
    object
}

fn read(cidr: Ipv4Net, key: &str, entry: &Value) -> Result<(Ipv4Addr, Record), &'static str> {
    let address: Ipv4Addr = key.parse().map_err(|_| "it is not an IPv4 address")?;
    if !cidr.contains(&address) {
        return Err("it is not in spec.cidr");
    }
    let text = |field: &str| entry[field].as_str().filter(|text| !text.is_empty());
    let (Some(namespace), Some(name)) = (text("podNamespace"), text("podName")) else {
        return Err("podNamespace or podName is missing");
    };
    let owner = Owner::new(
        format!("{namespace}/{name}"),
        text("podUID").unwrap_or_default(),
    );
    let mut record = Record::new(owner, Handle::new(""));
    for (field, attribute) in [("nodeName", NODE), (ALLOCATED_AT, ALLOCATED_AT)] {
        if let Some(value) = text(field) {
            record = record.with(attribute, value);
        }
    }
    for (name, value) in entry[OWN].as_object().into_iter().flatten() {
        match (name.as_str(), value.as_str().unwrap_or_default()) {
            (CONTAINER, value) => record.handle = Handle::new(value),
            (name, value) => record = record.with(name, value),
        }
    }
    Ok((address, record))
}

/// Upstream's fields of an entry; what else the same entry had is kept.
fn entry_of(record: &Record, before: Option<&Value>) -> Value {
    let (namespace, name) = record
        .owner
        .subject
        .split_once('/')
        .unwrap_or(("", &record.owner.subject));
    let same = before.filter(|before| {
        before["podUID"] == record.owner.part.as_str() && before["podName"] == name
    });
    let mut entry = same.and_then(Value::as_object).cloned().unwrap_or_default();
    let mut put = |field: &str, value: &str| entry.insert(field.to_owned(), json!(value));
    put("podName", name);
    put("podNamespace", namespace);
    put("podUID", &record.owner.part);
    put("nodeName", record.attribute(NODE).unwrap_or_default());
    if let Some(at) = record.attribute(ALLOCATED_AT) {
        put(ALLOCATED_AT, at);
    }
    match own_of(record) {
        own if own.is_empty() => drop(entry.remove(OWN)),
        own => drop(entry.insert(OWN.to_owned(), Value::Object(own))),
    }
    Value::Object(entry)
}

/// Bytes that an entry takes in the object, with what the annotation has of it.
pub(super) fn entry_size(address: Address, record: &Record) -> usize {
    let entry = json!({ address.to_string(): entry_of(record, None) });
    entry.to_string().len() + json!(vital(record)).to_string().len()
}

fn vital(record: &Record) -> BTreeMap<String, String> {
    let mut kept = record.attributes.clone();
    kept.retain(|name, _| VITAL.contains(&name.as_str()));
    kept
}

/// What the entry itself keeps besides upstream's fields.
fn own_of(record: &Record) -> Map<String, Value> {
    let elsewhere = |name: &str| [NODE, ALLOCATED_AT].contains(&name) || VITAL.contains(&name);
    let implied =
        |name: &str, value: &str| name == INSTANCE && record.attribute(NODE) == Some(value);
    let attributes = record.attributes.iter();
    let mut own: Map<String, Value> = attributes
        .filter(|(name, value)| !elsewhere(name) && !implied(name, value))
        .map(|(name, value)| (name.clone(), json!(value)))
        .collect();
    if !record.handle.as_str().is_empty() {
        own.insert(CONTAINER.to_owned(), json!(record.handle));
    }
    own
}

/// By address.
type Attributes = BTreeMap<Ipv4Addr, BTreeMap<String, String>>;

fn attributes(object: &Value, findings: &mut Vec<Finding>) -> Attributes {
    parsed_attributes(object).unwrap_or_else(|why| {
        findings.push(Finding::Attributes(why));
        BTreeMap::new()
    })
}

fn parsed_attributes(object: &Value) -> Result<Attributes, String> {
    match &object["metadata"]["annotations"][ATTRIBUTES] {
        Value::Null => Ok(BTreeMap::new()),
        Value::String(text) => serde_json::from_str(text).map_err(|error| error.to_string()),
        other => Err(format!("{other} is not text")),
    }
}

fn set(object: &mut Value, path: &[&str], value: Value) {
    let mut place = object;
    for name in path {
        if !place.is_object() {
            *place = json!({});
        }
        place = &mut place[*name];
    }
    *place = value;
}

fn shape(field: &'static str, found: &Value, wanted: &'static str) -> PoolError {
    let found: String = found.to_string().chars().take(60).collect();
    PoolError::Shape {
        field,
        found,
        wanted,
    }
}

#[cfg(test)]
mod tests {
    use berth_core::STAGE;

    use super::*;

    fn upstream() -> Value {
        json!({
            "apiVersion": "ipam.gcp-cni.cast.ai/v1alpha1", "kind": "IPPool",
            "metadata": { "name": "ippool-nodes", "resourceVersion": "7", "labels": { "team": "x" }, "annotations": { "other": "stays" } },
            "spec": {
                "cidr": "10.111.0.0/16", "subnet": "projects/p/regions/r/subnetworks/nodes", "secondaryRangeName": "live",
                "allocations": {
                    "10.111.0.1": { "podName": "first", "podNamespace": "d", "podUID": "u1", "nodeName": "node-a", "allocatedAt": "2025-11-26T10:00:00Z" },
                    "10.111.0.2": { "podName": "second", "podNamespace": "d", "podUID": "u2", "nodeName": "node-a", "allocatedAt": "2025-11-26T10:00:03Z" },
                },
            },
            "status": { "capacity": 65534, "allocated": 2, "available": 65532 },
        })
    }

    #[test]
    fn a_fresh_pool_counts_as_the_seed_says() {
        let object =
            json!({ "spec": { "cidr": "10.111.0.0/16", "subnet": "s", "allocations": {} } });
        let read = decode(&object).unwrap();
        assert_eq!(read.range, "live");
        let written = encode(&object, read.cidr, &read.pool);
        assert_eq!(
            written["status"],
            json!({ "capacity": 65534, "allocated": 0, "available": 65534 })
        );
    }

    #[test]
    fn upstreams_object_is_read_and_written_back_as_it_was() {
        let read = decode(&upstream()).unwrap();
        assert_eq!(read.pool.len(), 2);
        let record = read.pool.get("10.111.0.2".parse().unwrap()).unwrap();
        assert_eq!(record.owner, Owner::new("d/second", "u2"));
        assert_eq!(record.attribute(NODE), Some("node-a"));
        let gateway = Finding::GatewayAllocated {
            address: "10.111.0.1".parse().unwrap(),
            pod: "d/first".to_owned(),
        };
        assert_eq!(read.findings, [gateway], "kept and reported");
        assert_eq!(encode(&upstream(), read.cidr, &read.pool), upstream());
    }

    #[test]
    fn what_must_not_be_lost_lies_in_an_annotation() {
        let mut read = decode(&upstream()).unwrap();
        let address: Address = "10.111.0.9".parse().unwrap();
        let record = Record::new(Owner::new("d/third", "u3"), Handle::new("c3"))
            .with(NODE, "node-b")
            .with(ALLOCATED_AT, "2026-11-17T00:00:00Z")
            .with("zone", "us-central1-a")
            .with(INSTANCE, "node-b")
            .with(STAGE, "detached")
            .with("move", "{}");
        read.pool.restore(address, record.clone());
        let written = encode(&upstream(), read.cidr, &read.pool);
        let entry = &written["spec"]["allocations"]["10.111.0.9"];
        let fields: Vec<&String> = entry.as_object().unwrap().keys().collect();
        assert_eq!(
            fields,
            [
                "podName",
                "podNamespace",
                "podUID",
                "nodeName",
                "allocatedAt",
                "berth"
            ]
        );
        let own = json!({ "zone": "us-central1-a", "containerID": "c3" });
        assert_eq!(entry["berth"], own);
        assert_eq!(
            written["status"],
            json!({ "capacity": 65534, "allocated": 3, "available": 65531 })
        );
        assert_eq!(written["metadata"]["annotations"]["other"], "stays");
        // Where it is the node's name, the VM's is not written.
        let implied = Record {
            attributes: record
                .attributes
                .clone()
                .into_iter()
                .filter(|(name, _)| name != INSTANCE)
                .collect(),
            ..record.clone()
        };
        assert_eq!(decode(&written).unwrap().pool.get(address), Some(&implied));
        // Another program that dropped the field, and one that gave the address to another pod.
        let mut dropped = written.clone();
        drop(
            dropped["spec"]["allocations"]["10.111.0.9"]
                .as_object_mut()
                .unwrap()
                .remove("berth"),
        );
        let held = decode(&dropped).unwrap().pool;
        assert_eq!(
            held.get(address).unwrap().attribute(STAGE),
            Some("detached")
        );
        dropped["spec"]["allocations"]["10.111.0.9"]["podUID"] = json!("u4");
        let held = decode(&dropped).unwrap().pool;
        assert_eq!(
            held.get(address).unwrap().attribute(STAGE),
            None,
            "the move was another pod's"
        );
        // Without it the annotation goes too.
        let again = encode(&written, read.cidr, &decode(&upstream()).unwrap().pool);
        assert_eq!(again, upstream());
    }

    #[test]
    fn what_is_not_understood_is_kept_and_reported() {
        let mut object = upstream();
        object["spec"]["unknown"] = json!(1);
        object["spec"]["allocations"]["10.112.0.4"] =
            json!({ "podName": "x", "podNamespace": "d" });
        object["spec"]["allocations"]["nonsense"] = json!({ "podName": "x", "podNamespace": "d" });
        object["spec"]["allocations"]["10.111.0.4"] = json!("text");
        object["metadata"]["annotations"][ATTRIBUTES] = json!("{");
        let read = decode(&object).unwrap();
        assert_eq!(read.pool.unparsed().len(), 3);
        assert_eq!(read.findings.len(), 5, "{:?}", read.findings);
        let written = encode(&object, read.cidr, &read.pool);
        for key in ["10.112.0.4", "nonsense", "10.111.0.4"] {
            assert_eq!(
                written["spec"]["allocations"][key],
                object["spec"]["allocations"][key]
            );
        }
        assert_eq!(written["spec"]["unknown"], 1);
        assert_eq!(
            written["metadata"]["annotations"][ATTRIBUTES], "{",
            "what can't be read is not overwritten"
        );
        assert_eq!(written["status"]["allocated"], 5, "a stray takes its place");
    }

    #[test]
    fn an_object_that_can_not_be_used_is_refused_with_its_field() {
        for (cidr, text) in [
            (json!("fd00::/64"), "fd00::/64"),
            (json!(""), "spec.cidr"),
            (json!(7), "cidr: 7 is not text"),
        ] {
            let mut object = upstream();
            object["spec"]["cidr"] = cidr;
            let error = decode(&object).unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
        }
        let mut object = upstream();
        object["spec"]["allocations"] = json!([]);
        assert!(
            decode(&object)
                .unwrap_err()
                .to_string()
                .contains("spec.allocations")
        );
    }
}
