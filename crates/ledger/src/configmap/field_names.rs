//! Field names in another case than ours: Go's decoder takes `AllocatedIPs` for `allocatedIPs`, so other programs may write it.
//!
//! Guarantees that such a field is read as what it means and never as an unknown one, which would make its addresses appear
//! free (I4). A document that has a name twice, in two cases, is refused: which of them counts depends on their order.

use serde::de::Error;
use serde_json::{Map, Value};

use super::document::Document;

pub(super) const DOCUMENT: [&str; 4] = ["allocatedIPs", "availableIPs", "lastUpdated", "version"];
pub(super) const ALLOCATION: [&str; 6] = [
    "allocationID",
    "ip",
    "nodeName",
    "podName",
    "podNamespace",
    "allocatedAt",
];

/// Whether one of these fields, which were taken for unknown, is a known one.
pub(super) fn in_another_case(others: &Map<String, Value>, known: &[&str]) -> bool {
    others.keys().any(|name| known_name(name, known).is_some())
}

/// The document with all names as we write them.
pub(super) fn decode(text: &str) -> Result<Document, serde_json::Error> {
    let mut fields = renamed(serde_json::from_str(text)?, &DOCUMENT)?;
    if let Some(Value::Object(entries)) = fields.get_mut(DOCUMENT[0]) {
        for entry in entries.values_mut() {
            if let Value::Object(fields) = entry {
                *fields = renamed(std::mem::take(fields), &ALLOCATION)?;
            }
        }
    }
    serde_json::from_value(Value::Object(fields))
}

fn renamed(
    fields: Map<String, Value>,
    known: &[&str],
) -> Result<Map<String, Value>, serde_json::Error> {
    let mut named = Map::new();
    for (name, value) in fields {
        let right = known_name(&name, known).unwrap_or(&name).to_string();
        if named.insert(right, value).is_some() {
            return Err(serde_json::Error::custom(format!(
                "the field {name:?} is there twice, in two cases"
            )));
        }
    }
    Ok(named)
}

pub(super) fn known_name<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    let folded = fold(name);
    known.iter().copied().find(|known| fold(known) == folded)
}

/// As Go folds: `ſ` is an s and the Kelvin sign a k.
fn fold(name: &str) -> String {
    let lower = name.chars().flat_map(char::to_lowercase);
    lower.flat_map(char::to_uppercase).collect()
}
