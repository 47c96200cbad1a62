//! The state document of a VM pool, as live clusters hold it in one key of a ConfigMap.
//!
//! Guarantees: what other programs wrote is read, fields that Berth does not know are kept (I7), and
//! what Berth writes is byte for byte what the Go program would write. What is no such document
//! is an error and never an empty one (I5). Does not check the content: an entry without an
//! address is an entry.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};
use thiserror::Error;

use super::{field_names, gojson};

/// The whole state of a pool.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Document {
    /// By allocation ID, in the order of its bytes, as Go orders the keys of a map.
    #[serde(rename = "allocatedIPs", default, deserialize_with = "null_as_default")]
    pub allocated: BTreeMap<String, Allocation>,
    /// The free addresses, in the order in which they are chosen from.
    #[serde(rename = "availableIPs", default, deserialize_with = "null_as_default")]
    pub available: Vec<String>,
    #[serde(rename = "lastUpdated", default, with = "go_time")]
    pub last_updated: Option<Timestamp>,
    /// Grows with each write.
    #[serde(default)]
    pub version: i64,
    /// Fields of other programs (I7), in their order, after ours.
    #[serde(flatten)]
    pub others: Map<String, Value>,
}

/// One address in use.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Allocation {
    #[serde(rename = "allocationID", default)]
    pub allocation_id: String,
    #[serde(default)]
    pub ip: String,
    #[serde(rename = "nodeName", default)]
    pub node_name: String,
    #[serde(rename = "podName", default)]
    pub pod_name: String,
    /// Absent in what older programs wrote, and then kept absent.
    #[serde(
        rename = "podNamespace",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub pod_namespace: Option<String>,
    #[serde(rename = "allocatedAt", default, with = "go_time")]
    pub allocated_at: Option<Timestamp>,
    #[serde(flatten)]
    pub others: Map<String, Value>,
}

/// The text is not a state document. It must be kept as it is (I5).
#[derive(Debug, Error)]
#[error("not a state document")]
pub struct DocumentError(#[from] serde_json::Error);

impl Document {
    pub fn decode(text: &str) -> Result<Self, DocumentError> {
        let document: Self = serde_json::from_str(text)?;
        let entries = document.allocated.values();
        let in_another_case =
            field_names::in_another_case(&document.others, &field_names::DOCUMENT)
                || entries.into_iter().any(|entry| {
                    field_names::in_another_case(&entry.others, &field_names::ALLOCATION)
                });
        if in_another_case {
            return Ok(field_names::decode(text)?);
        }
        Ok(document)
    }

    pub fn encode(&self) -> Result<String, DocumentError> {
        Ok(gojson::to_string(self)?)
    }
}

/// A nil map or slice of the Go program is `null`: nothing is in it.
fn null_as_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + DeserializeOwned,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// Whole seconds, UTC; the zero time is `null`.
mod go_time {
    use super::{Deserialize, Deserializer, Serialize, Serializer, Timestamp};

    pub fn serialize<S: Serializer>(time: &Option<Timestamp>, s: S) -> Result<S::Ok, S::Error> {
        let text = time.map(|time| time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string());
        text.serialize(s)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Timestamp>, D::Error> {
        let Some(text) = Option::<String>::deserialize(d)? else {
            return Ok(None);
        };
        text.parse().map(Some).map_err(|error| {
            serde::de::Error::custom(format!("{text:?} is no RFC 3339 time: {error}"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    // Written by Go 1.26's encoding/json from the structs of the design document.
    const USUAL: &str = include_str!("testdata/usual.json");
    const EMPTY: &str = include_str!("testdata/empty.json");
    const NULL: &str = include_str!("testdata/null.json");
    const ESCAPES: &str = include_str!("testdata/escapes.json");

    #[test]
    fn what_go_wrote_is_written_again_byte_for_byte() {
        for text in [USUAL, EMPTY, ESCAPES] {
            let document = Document::decode(text).unwrap();
            assert_eq!(document.encode().unwrap(), text);
        }
    }

    #[test]
    fn escaped_characters_are_read() {
        let document = Document::decode(ESCAPES).unwrap();
        let allocation = &document.allocated["a<b>&c"];
        assert_eq!(allocation.node_name, "\"quoted\"\\back/slash");
        assert_eq!(
            allocation.pod_namespace.as_deref(),
            Some("ls\u{2028}ps\u{2029}emoji😀")
        );
        assert_eq!(document.version, i64::MAX);
    }

    #[test]
    fn null_maps_are_empty_ones() {
        let document = Document::decode(NULL).unwrap();
        assert_eq!(document, Document::default());
        // Written as empty ones: the Go program panics when it adds to a null map.
        let text = document.encode().unwrap();
        assert!(text.contains("\"allocatedIPs\": {}"), "{text}");
        assert!(text.contains("\"availableIPs\": []"), "{text}");
        assert_eq!(Document::decode("{}").unwrap(), Document::default());
    }

    #[test]
    fn a_missing_pod_namespace_stays_missing() {
        let old = USUAL.replace(
            "      \"podName\": \"Nginx\",\n      \"podNamespace\": \"kube-system\",\n",
            "      \"podName\": \"Nginx\",\n",
        );
        assert_ne!(old, USUAL);
        let document = Document::decode(&old).unwrap();
        assert_eq!(document.allocated["Nginx-00000000"].pod_namespace, None);
        assert_eq!(document.encode().unwrap(), old);
    }

    #[test]
    fn unknown_fields_are_kept() {
        let text = r#"{"generation":{"by":"another","n":[1,2.5,null]},"version":3,
            "allocatedIPs":{"a":{"zone":"eu<1>","ip":"10.0.0.1","weight":7}},"availableIPs":[]}"#;
        let mut document = Document::decode(text).unwrap();
        document.version += 1;
        let again: Value = serde_json::from_str(&document.encode().unwrap()).unwrap();
        assert_eq!(again["generation"]["n"][1], 2.5);
        assert_eq!(again["allocatedIPs"]["a"]["zone"], "eu<1>");
        assert_eq!(again["allocatedIPs"]["a"]["weight"], 7);
        assert_eq!(again["version"], 4);
    }

    #[test]
    fn times_of_any_zone_become_utc_seconds() {
        let text = r#"{"lastUpdated":"2026-04-23T11:56:00.75+02:00"}"#;
        let again = Document::decode(text).unwrap().encode().unwrap();
        assert!(again.contains("\"2026-04-23T09:56:00Z\""), "{again}");
    }

    #[test]
    fn berth_15_9_names_in_another_case_are_read_as_go_reads_them() {
        let text = r#"{"AllocatedIPs":{"a":{"AllocationID":"a","IP":"10.9.0.2","NODENAME":"w","podNameſpace":"n","zone":"eu"}},
            "AVAILABLEIPS":["10.9.0.3"],"Version":7,"Zone":"eu"}"#;
        let document = Document::decode(text).unwrap();
        let entry = &document.allocated["a"];
        assert_eq!(
            (entry.ip.as_str(), entry.node_name.as_str()),
            ("10.9.0.2", "w")
        );
        assert_eq!(entry.pod_namespace.as_deref(), Some("n"));
        assert_eq!(document.available, ["10.9.0.3"]);
        assert_eq!(
            (document.version, &document.others["Zone"]),
            (7, &Value::from("eu"))
        );
        // Which of the two Go takes depends on their order: nothing may be free by it.
        for both in [
            r#"{"allocatedIPs":{},"AllocatedIPs":{"a":{"ip":"10.9.0.2"}}}"#,
            r#"{"allocatedIPs":{"a":{"ip":"10.9.0.2","IP":"10.9.0.3"}}}"#,
        ] {
            Document::decode(both).expect_err(both);
        }
    }

    #[test]
    fn what_is_no_document_is_an_error() {
        let cut = &USUAL[..USUAL.len() / 2];
        for text in [
            "",
            "not json",
            cut,
            "[]",
            r#"{"version":"3"}"#,
            r#"{"allocatedIPs":[]}"#,
            r#"{"availableIPs":[1]}"#,
            r#"{"lastUpdated":"yesterday"}"#,
            r#"{"version":1,"version":2}"#,
        ] {
            let error = Document::decode(text).expect_err(text);
            assert!(std::error::Error::source(&error).is_some());
        }
    }

    proptest! {
        #[test]
        fn whatever_the_strings_are_they_come_back(
            entries in proptest::collection::btree_map(".*", (".*", ".*", proptest::option::of(".*")), 0..8),
            available in proptest::collection::vec(".*", 0..8),
            version: i64,
            second in -60_000_000_000i64..200_000_000_000,
        ) {
            let time = Timestamp::from_second(second).unwrap();
            let allocated = entries.into_iter().map(|(id, (ip, pod, namespace))| {
                let allocation = Allocation {
                    allocation_id: id.clone(),
                    ip,
                    pod_name: pod,
                    pod_namespace: namespace,
                    allocated_at: Some(time),
                    ..Allocation::default()
                };
                (id, allocation)
            });
            let document = Document {
                allocated: allocated.collect(),
                available,
                last_updated: Some(time),
                version,
                others: Map::new(),
            };
            let text = document.encode().unwrap();
            let escaped = ['<', '>', '&', '\u{2028}', '\u{2029}'];
            prop_assert!(!text.contains(escaped), "{}", text);
            prop_assert_eq!(Document::decode(&text).unwrap(), document);
        }
    }
}
