//! Asynchronous operations: each ends at a set time, and takes effect then.

use std::time::Instant;

use serde_json::{Value, json};

use crate::project::Effect;

/// Where an operation is found.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    Zone(String),
    Region(String),
    /// Of the Network Connectivity API.
    Global,
}

#[derive(Clone, Debug)]
pub struct Operation {
    pub name: String,
    pub scope: Scope,
    pub kind: &'static str,
    pub target: String,
    pub request_id: Option<String>,
    /// None never comes.
    pub ends: Option<Instant>,
    pub error: Option<(String, String, u16)>,
    /// Taken when the operation ends.
    pub effect: Option<Effect>,
    pub done: bool,
    /// The answer of a long-running operation of the Network Connectivity API.
    pub response: Option<Value>,
}

impl Operation {
    /// As the Compute API shows it.
    pub fn compute(&self, project: &str, base: &str) -> Value {
        let (level, place) = match &self.scope {
            Scope::Zone(zone) => ("zone", format!("zones/{zone}")),
            Scope::Region(region) => ("region", format!("regions/{region}")),
            Scope::Global => ("global", "global".to_owned()),
        };
        let parent = format!("{base}/compute/v1/projects/{project}");
        let mut value = json!({
            "kind": "compute#operation",
            "id": self.name.trim_start_matches("operation-"),
            "name": self.name,
            "operationType": self.kind,
            "targetLink": format!("{parent}/{}", self.target),
            "status": if self.done { "DONE" } else { "RUNNING" },
            "progress": if self.done { 100 } else { 0 },
            "selfLink": format!("{parent}/{place}/operations/{}", self.name),
        });
        if level != "global" {
            value[level] = json!(format!("{parent}/{place}"));
        }
        if let Some(id) = &self.request_id {
            value["clientOperationId"] = json!(id);
        }
        if let (true, Some((code, message, status))) = (self.done, &self.error) {
            value["error"] = json!({ "errors": [{ "code": code, "message": message }] });
            value["httpErrorStatusCode"] = json!(status);
            value["httpErrorMessage"] = json!(code);
        }
        value
    }

    /// As the Network Connectivity API shows it.
    pub fn long_running(&self, project: &str) -> Value {
        let mut value = json!({
            "name": format!("projects/{project}/locations/global/operations/{}", self.name),
            "done": self.done,
            "metadata": { "verb": self.kind, "target": self.target },
        });
        match (&self.error, self.done) {
            (Some((code, message, _)), true) => {
                value["error"] = json!({ "code": 9, "message": format!("{code}: {message}") });
            }
            (None, true) => value["response"] = self.response.clone().unwrap_or_else(|| json!({})),
            _ => {}
        }
        value
    }
}
