//! The conditions of pool policies, in kubernetes-nmstate's words: what their enactments say, counted.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::seen::{EnactmentSeen, PolicySeen, Seen};
use crate::handler::{Phase, enact};
use crate::objects;

/// The status conditions that a policy should have, or none if it has them.
pub fn conditions(seen: &Seen, name: &str, policy: &PolicySeen) -> Option<Value> {
    let (uid, generation) = (
        objects::uid(&policy.object),
        objects::generation(&policy.object),
    );
    let selected = seen.nodes().filter(|(_, labels)| policy.selects(labels));
    let nodes: Vec<&String> = selected.map(|(node, _)| node).collect();
    let current = |one: &&EnactmentSeen| {
        one.policy == name && one.generation == generation && one.policy_uid == uid
    };
    let enactments: BTreeMap<&str, &EnactmentSeen> = seen
        .enactments()
        .filter(current)
        .map(|one| (one.node.as_str(), one))
        .collect();
    let of_nodes = nodes
        .iter()
        .filter_map(|node| enactments.get(node.as_str()));
    let of_nodes: Vec<&&EnactmentSeen> = of_nodes.collect();
    let wanted = summary(nodes.len(), &of_nodes);
    let before = policy.object.pointer("/status/conditions");
    let before = before.cloned().unwrap_or_default();
    let same = wanted.iter().all(|(kind, status, reason, message)| {
        let mut known = before.as_array().into_iter().flatten();
        known.any(|one| {
            one["type"] == *kind
                && one["status"] == *status
                && one["reason"].as_str().unwrap_or("") == *reason
                && one["message"].as_str().unwrap_or("") == message.as_str()
        })
    });
    if same {
        return None;
    }
    let wanted: Vec<(&str, &str, &str, &str)> = wanted
        .iter()
        .map(|(kind, status, reason, message)| (*kind, *status, *reason, message.as_str()))
        .collect();
    Some(json!({ "status": { "conditions": enact::conditions(&before, &wanted) } }))
}

type Condition = (&'static str, &'static str, &'static str, String);

/// Upstream's four conditions for so many nodes and these enactments.
fn summary(nodes: usize, enactments: &[&&EnactmentSeen]) -> [Condition; 4] {
    let count = |phase: Phase| enactments.iter().filter(|one| one.phase == phase).count();
    let (failed, aborted) = (count(Phase::Failing), count(Phase::Aborted));
    let (available, pending) = (count(Phase::Available), count(Phase::Pending));
    let finished = failed + aborted + available;
    let all = |values: [&'static str; 4], reason: &'static str, message: String| {
        let kinds = ["Available", "Degraded", "Progressing", "Ignored"];
        let mut place = 0;
        kinds.map(|kind| {
            let status = values.get(place).copied().unwrap_or("Unknown");
            place += 1;
            let message = match status {
                "True" => message.clone(),
                _ => String::new(),
            };
            (kind, status, reason, message)
        })
    };
    if nodes == 0 {
        let message = "Policy does not match any node".to_owned();
        return all(
            ["Unknown", "Unknown", "Unknown", "True"],
            "NoMatchingNode",
            message,
        );
    }
    if finished < nodes {
        let waiting = match pending {
            0 => String::new(),
            pending => format!(", {pending} pending"),
        };
        let message = format!("Policy is progressing {finished}/{nodes} nodes finished{waiting}");
        return all(
            ["Unknown", "Unknown", "True", "False"],
            "ConfigurationProgressing",
            message,
        );
    }
    if failed + aborted > 0 {
        let stopped = match aborted {
            0 => String::new(),
            aborted => format!(", {aborted} nodes aborted configuration"),
        };
        let why = enactments.iter().find(|one| one.phase == Phase::Failing);
        let why = why.map(|one| format!(": {}: {}", one.node, one.message));
        let why = why.unwrap_or_default();
        let message = format!("{failed}/{nodes} nodes failed to configure{stopped}{why}");
        return all(
            ["False", "True", "False", "False"],
            "FailedToConfigure",
            message,
        );
    }
    let message = format!("{available}/{nodes} nodes successfully configured");
    all(
        ["True", "False", "False", "False"],
        "SuccessfullyConfigured",
        message,
    )
}
