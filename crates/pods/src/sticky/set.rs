//! A StatefulSet, as far as it says which pods it will create again.

use serde::Deserialize;

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
pub struct StatefulSet {
    metadata: Metadata,
    #[serde(default)]
    spec: Spec,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    #[serde(default)]
    deletion_timestamp: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
struct Spec {
    #[serde(default)]
    replicas: Option<u64>,
    #[serde(default)]
    ordinals: Option<Ordinals>,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
struct Ordinals {
    #[serde(default)]
    start: u64,
}

impl StatefulSet {
    /// Whether the pod of that ordinal belongs to the set as it is to be. One that was scaled away does not.
    pub fn wants(&self, ordinal: u64) -> bool {
        let start = self.spec.ordinals.as_ref().map_or(0, |from| from.start);
        let replicas = self.spec.replicas.unwrap_or(1);
        self.metadata.deletion_timestamp.is_none() && ordinal >= start && ordinal - start < replicas
    }
}

/// The set and the ordinal that a pod's name would be of: `web-0`. No other pod of that name can exist beside the set's.
pub(super) fn parse(pod: &str) -> Option<(&str, u64)> {
    let (set, ordinal) = pod.rsplit_once('-')?;
    let plain = !ordinal.is_empty()
        && ordinal.bytes().all(|byte| byte.is_ascii_digit())
        && (ordinal == "0" || !ordinal.starts_with('0'));
    (plain && !set.is_empty()).then_some(())?;
    Some((set, ordinal.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pods_name_tells_its_set_and_ordinal() {
        assert_eq!(parse("web-0"), Some(("web", 0)));
        assert_eq!(parse("my-db-12"), Some(("my-db", 12)));
        for other in [
            "web",
            "web-",
            "-0",
            "web-x1",
            "web-01",
            "web-5d8f",
            "web-99999999999999999999",
        ] {
            assert_eq!(parse(other), None, "{other}");
        }
    }

    #[test]
    fn a_set_wants_its_replicas_and_no_others() {
        let set = |value| serde_json::from_value::<StatefulSet>(value).unwrap();
        let three = set(json!({ "metadata": {}, "spec": { "replicas": 3 } }));
        assert!(three.wants(0) && three.wants(2) && !three.wants(3));
        let default = set(json!({ "metadata": {} }));
        assert!(default.wants(0) && !default.wants(1));
        let from_five =
            set(json!({ "metadata": {}, "spec": { "replicas": 2, "ordinals": { "start": 5 } } }));
        assert!(!from_five.wants(4) && from_five.wants(6) && !from_five.wants(7));
        let going = set(
            json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" }, "spec": { "replicas": 3 } }),
        );
        assert!(!going.wants(0));
    }
}
