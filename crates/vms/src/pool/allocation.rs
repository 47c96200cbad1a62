//! An allocation as the VM front sees it, and how it is written into a record.
//!
//! Promises that everything that must survive a restart is in the record: who has the VM, and,
//! once it was given back, that it is being cleaned, by whom, and what went wrong (I9).

use std::net::IpAddr;

use berth_core::{Address, Handle, Owner, Record};
use berth_ledger::configmap::attribute::{ALLOCATED_AT, NAMESPACE, NODE, POD};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::PoolError;

/// The VM was given back and may not be given on before it was cleaned.
const QUARANTINED_AT: &str = "quarantinedAt";
/// The node that has to clean it.
const QUARANTINED_BY: &str = "quarantinedBy";
const CLEANUP_TRIES: &str = "cleanupTries";
const CLEANUP_ERROR: &str = "cleanupError";

/// Long enough for a pod's name and a sandbox's ID with a dash between them.
const MAX_ID: usize = 512;

/// Who asks for a VM.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Applicant {
    #[serde(rename = "allocationID")]
    pub allocation_id: String,
    #[serde(default)]
    pub pod_name: String,
    #[serde(default)]
    pub pod_namespace: String,
}

impl Applicant {
    /// Names end up in logs, in a state that others read and in URLs: nothing that could be
    /// mistaken for something else gets in.
    pub fn check(&self) -> Result<(), PoolError> {
        let word = |c: char| c.is_ascii_alphanumeric() || "-._:/".contains(c);
        let name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-.".contains(c);
        let refuse = |field, value: &str, right| PoolError::Invalid {
            field,
            value: value.chars().take(80).collect(),
            right,
        };
        let id = &self.allocation_id;
        if id.is_empty() || id.len() > MAX_ID || !id.chars().all(word) {
            return Err(refuse(
                "allocationID",
                id,
                "1 to 512 letters, digits, dashes, dots, underscores, colons and slashes",
            ));
        }
        if self.pod_name.len() > 253 || !self.pod_name.chars().all(name) {
            return Err(refuse("podName", &self.pod_name, "a pod's name"));
        }
        if self.pod_namespace.len() > 63 || !self.pod_namespace.chars().all(name) {
            return Err(refuse("podNamespace", &self.pod_namespace, "a namespace"));
        }
        Ok(())
    }

    pub(super) fn record(&self, node: &str, now: Timestamp) -> Record {
        Record::new(
            Owner::new(&self.allocation_id, ""),
            Handle::new(&self.allocation_id),
        )
        .with(NODE, node)
        .with(POD, &self.pod_name)
        .with(NAMESPACE, &self.pod_namespace)
        .with(ALLOCATED_AT, now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string())
    }
}

/// One VM in somebody's hands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Allocation {
    #[serde(rename = "allocationID")]
    pub allocation_id: String,
    pub ip: IpAddr,
    pub pool: String,
    pub node_name: String,
    pub pod_name: String,
    pub pod_namespace: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocated_at: Option<String>,
    /// Given back, and not yet clean.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quarantine: Option<Quarantine>,
}

/// What is known of a cleanup that is not done yet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quarantine {
    pub since: String,
    /// The node that cleans.
    pub by: String,
    /// Tries that failed.
    pub tries: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl Allocation {
    pub(super) fn read(pool: &str, address: Address, record: &Record) -> Self {
        let text = |key| record.attribute(key).unwrap_or_default().to_string();
        Self {
            allocation_id: record.handle.to_string(),
            ip: address.into(),
            pool: pool.into(),
            node_name: text(NODE),
            pod_name: text(POD),
            pod_namespace: text(NAMESPACE),
            allocated_at: record.attribute(ALLOCATED_AT).map(Into::into),
            quarantine: Quarantine::read(record),
        }
    }
}

impl Quarantine {
    pub(super) fn read(record: &Record) -> Option<Self> {
        let since = record.attribute(QUARANTINED_AT)?.to_string();
        let by = record.attribute(QUARANTINED_BY).or(record.attribute(NODE));
        let tries = record.attribute(CLEANUP_TRIES);
        Some(Self {
            since,
            by: by.unwrap_or_default().into(),
            tries: tries.and_then(|tries| tries.parse().ok()).unwrap_or(0),
            error: record.attribute(CLEANUP_ERROR).map(Into::into),
        })
    }

    /// The record of a VM that this node is going to clean.
    pub(super) fn begin(record: &Record, node: &str, now: Timestamp) -> Record {
        let since = now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        record
            .clone()
            .with(QUARANTINED_AT, since)
            .with(QUARANTINED_BY, node)
    }

    /// The record after a cleanup that failed.
    pub(super) fn failed(record: &Record, error: &str) -> Record {
        let tries = Self::read(record).map_or(0, |quarantine| quarantine.tries);
        // Kept short: it is part of a state with a size limit.
        let error: String = error.chars().take(200).collect();
        record
            .clone()
            .with(CLEANUP_TRIES, tries.saturating_add(1).to_string())
            .with(CLEANUP_ERROR, error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn applicant(id: &str, pod: &str, namespace: &str) -> Applicant {
        Applicant {
            allocation_id: id.into(),
            pod_name: pod.into(),
            pod_namespace: namespace.into(),
        }
    }

    #[test]
    fn names_that_are_none_are_refused() {
        for (id, pod, namespace) in [
            ("nginx-8b317899", "nginx", "default"),
            ("a", "", ""),
            ("unreadable-fd00::1", "web-0.example", "kube-system"),
        ] {
            applicant(id, pod, namespace).check().unwrap();
        }
        for (id, pod, namespace, field) in [
            ("", "p", "n", "allocationID"),
            ("two words", "p", "n", "allocationID"),
            ("line\nbreak", "p", "n", "allocationID"),
            (&"x".repeat(513), "p", "n", "allocationID"),
            ("a", "Pod", "n", "podName"),
            ("a", "p/../q", "n", "podName"),
            ("a", "p", &"n".repeat(64), "podNamespace"),
            ("a", "p", "<script>", "podNamespace"),
        ] {
            let error = applicant(id, pod, namespace).check().unwrap_err();
            assert!(error.to_string().contains(field), "{error}");
        }
    }

    #[test]
    fn a_quarantine_survives_in_the_record() {
        let now: Timestamp = "2026-04-23T09:56:00Z".parse().unwrap();
        let record = applicant("a", "p", "n").record("worker", now);
        assert_eq!(Quarantine::read(&record), None);
        let held = Quarantine::begin(&record, "other", now);
        let failed = Quarantine::failed(&Quarantine::failed(&held, "no answer"), &"é".repeat(500));
        let quarantine = Quarantine::read(&failed).unwrap();
        assert_eq!(quarantine.since, "2026-04-23T09:56:00Z");
        assert_eq!((quarantine.by.as_str(), quarantine.tries), ("other", 2));
        assert_eq!(quarantine.error.unwrap().chars().count(), 200);
        assert!(failed.same_holder(&record));
    }
}
