//! Enactments as objects: read, and written as kubernetes-nmstate writes them.

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::phase::{Phase, Shown};
use super::plan::Enactment;
use crate::capture::Rendered;
use crate::enactment::{ANNOTATION, Claims};
use crate::objects::{NODE_LABEL, POLICY_LABEL};

/// What the plan needs of an enactment.
pub fn read(object: &Value) -> Enactment {
    let (claims, _) = Claims::read(object);
    let status = object.get("status").unwrap_or(&Value::Null);
    // Without a desired state nothing was recorded under that generation: only why not is shown.
    let recorded = status.get("desiredState").is_some();
    let generation = status["policyGeneration"].as_i64().filter(|_| recorded);
    let generation = generation.unwrap_or_default();
    let tries = status["retryCount"][generation.to_string()].as_u64();
    Enactment {
        generation,
        phase: phase(status),
        tries: tries
            .and_then(|tries| u32::try_from(tries).ok())
            .unwrap_or(0),
        claims,
    }
}

/// The condition that is True.
pub fn phase(status: &Value) -> Phase {
    let conditions = status.get("conditions").and_then(Value::as_array);
    let mut all = conditions.into_iter().flatten();
    let current = all.find(|one| one["status"] == "True");
    let name = current.and_then(|one| one["type"].as_str());
    name.and_then(Phase::of_condition).unwrap_or_default()
}

/// The message of the condition that is True.
pub fn message(status: &Value) -> &str {
    let conditions = status.get("conditions").and_then(Value::as_array);
    let mut all = conditions.into_iter().flatten();
    let current = all.find(|one| one["status"] == "True");
    current
        .and_then(|one| one["message"].as_str())
        .unwrap_or("")
}

/// A new enactment, owned by its node.
pub fn fresh(name: &str, node: (&str, &str), policy: &str, claims: &Claims) -> Value {
    let (node, uid) = node;
    let mut metadata = json!({
        "name": name,
        "labels": { NODE_LABEL: node, POLICY_LABEL: policy },
        "ownerReferences": [{ "apiVersion": "v1", "kind": "Node", "name": node, "uid": uid }],
    });
    if !claims.is_empty() {
        metadata["annotations"] = json!({ ANNOTATION: claims.annotation() });
    }
    json!({
        "apiVersion": "nmstate.io/v1beta1",
        "kind": "NodeNetworkConfigurationEnactment",
        "metadata": metadata,
    })
}

/// The status with claims, captured states and the rendered state, under a generation; all conditions Unknown.
pub fn record(status: &Value, generation: i64, claims: &Claims, rendered: &Rendered) -> Value {
    let mut status = map(status);
    let meta = json!({ "time": now(), "version": env!("CARGO_PKG_VERSION") });
    let captured = rendered.captured.iter();
    let captured: Map<String, Value> = captured
        .map(|(name, state)| (name.clone(), json!({ "state": state, "metaInfo": meta })))
        .collect();
    status.insert("desiredState".to_owned(), rendered.desired_state.clone());
    status.insert("desiredStateMetaInfo".to_owned(), meta);
    status.insert("capturedStates".to_owned(), captured.into());
    status.insert("ippool".to_owned(), claims.ippool());
    status.insert("policyGeneration".to_owned(), generation.into());
    status.shift_remove("retryCount");
    let unknown = Shown::new(Phase::New, "", "");
    show(&Value::Object(status), &unknown)
}

/// The status of a generation that could not be recorded: what belongs to an older one goes, the claims stay.
pub fn unrecorded(status: &Value, generation: i64) -> Value {
    let mut status = map(status);
    for field in [
        "desiredState",
        "desiredStateMetaInfo",
        "capturedStates",
        "retryCount",
    ] {
        status.shift_remove(field);
    }
    status.insert("policyGeneration".to_owned(), generation.into());
    Value::Object(status)
}

/// The status after another try.
pub fn tried(status: &Value, generation: i64, tries: u32) -> Value {
    let mut status = map(status);
    let count = json!({ generation.to_string(): tries });
    status.insert("retryCount".to_owned(), count);
    Value::Object(status)
}

/// The status with these conditions.
pub fn show(status: &Value, shown: &Shown) -> Value {
    let mut status = map(status);
    let before = status.get("conditions").cloned().unwrap_or_default();
    let conditions = conditions(&before, &shown.conditions());
    status.insert("conditions".to_owned(), conditions);
    Value::Object(status)
}

/// Whether a status says that already.
pub fn shows(status: &Value, shown: &Shown) -> bool {
    let found = status.get("conditions").and_then(Value::as_array);
    let Some(found) = found else {
        return false;
    };
    shown
        .conditions()
        .iter()
        .all(|(kind, value, reason, message)| {
            found.iter().any(|one| {
                one["type"] == *kind
                    && one["status"] == *value
                    && one["reason"].as_str().unwrap_or("") == *reason
                    && one["message"].as_str().unwrap_or("") == *message
            })
        })
}

/// Conditions as kubernetes-nmstate has them: a time of the last transition, which is that of the status alone.
pub fn conditions(before: &Value, wanted: &[(&str, &str, &str, &str)]) -> Value {
    let now = now();
    let list = wanted.iter().map(|(kind, status, reason, message)| {
        let mut known = before.as_array().into_iter().flatten();
        let same = known.find(|one| one["type"] == *kind && one["status"] == *status);
        let since = same.and_then(|one| one["lastTransitionTime"].as_str());
        json!({
            "type": kind, "status": status, "reason": reason, "message": message,
            "lastHeartbeatTime": now,
            "lastTransitionTime": since.unwrap_or(&now),
        })
    });
    list.collect()
}

fn map(status: &Value) -> Map<String, Value> {
    status.as_object().cloned().unwrap_or_default()
}

/// RFC 3339 in whole seconds, as the schema wants it.
pub fn now() -> String {
    let now = Timestamp::now();
    let whole = Timestamp::from_second(now.as_second()).unwrap_or(now);
    whole.to_string()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn what_is_recorded_is_read() {
        let mut claims = Claims::default();
        claims.set("traffic-1", "a", "10.10.10.8".parse().unwrap());
        let rendered = Rendered {
            desired_state: json!({ "interfaces": [] }),
            capture: BTreeMap::new(),
            captured: BTreeMap::from([("a".to_owned(), json!({ "ip": "10.10.10.8" }))]),
        };
        let status = record(&Value::Null, 3, &claims, &rendered);
        let object = json!({ "status": tried(&status, 3, 2) });
        let enactment = read(&object);
        assert_eq!((enactment.generation, enactment.tries), (3, 2));
        assert_eq!(enactment.claims, claims);
        assert_eq!(enactment.phase, Phase::New);
        assert_eq!(
            status["ippool"]["traffic-1"]["allocated"],
            json!(["10.10.10.8"])
        );
        let failing = Shown::new(Phase::Failing, "FailedToConfigure", "no");
        let status = show(&status, &failing);
        assert_eq!(read(&json!({ "status": status })).phase, Phase::Failing);
        assert!(shows(&status, &failing));
        assert_eq!(message(&status), "no");
        let next = unrecorded(&status, 4);
        let enactment = read(&json!({ "status": next }));
        assert_eq!((enactment.generation, enactment.claims), (0, claims));
    }
}
