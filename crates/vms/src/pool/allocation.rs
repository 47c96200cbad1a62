//! An allocation in the VM front's terms, and how it is written into a record.
//!
//! Guarantees that everything that must survive a restart is in the record: the VM's owner, and whether it is being
//! checked or cleaned ([`super::stage`], I9).

use std::net::IpAddr;

use berth_core::{Address, Handle, Owner, Record};
use berth_ledger::configmap::attribute::{ALLOCATED_AT, NAMESPACE, NODE, POD};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::PoolError;
use super::stage::{Checking, Quarantine, Stage};

/// Also the limit of a URL's label, a log line and a state of limited size.
const MAX_ID: usize = 253;
/// IDs of VMs that are held because a state could not be read.
const UNREADABLE: &str = "unreadable-";

/// The owner that a VM is requested for.
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
    /// Names end up in logs, in a shared state and in URLs: only unambiguous characters are accepted.
    pub fn check(&self) -> Result<(), PoolError> {
        let name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-.".contains(c);
        let refuse = |field, value: &str, right| PoolError::Invalid {
            field,
            value: shortened(value),
            right,
        };
        let id = &self.allocation_id;
        if !is_usable(id) {
            return Err(refuse(
                "allocationID",
                id,
                "1 to 253 letters, digits, dashes, dots, underscores and colons, without \"..\" and not unreadable-*",
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

fn is_usable(id: &str) -> bool {
    let word = |c: char| c.is_ascii_alphanumeric() || "-._:".contains(c);
    (1..=MAX_ID).contains(&id.len())
        && id.chars().all(word)
        && !id.contains("..")
        && !id.starts_with(UNREADABLE)
}

/// An ID as a log may show it: whole only if a new allocation could have it. Any other ID may contain anything that
/// its sender chose.
pub(crate) fn shown(id: &str) -> String {
    match is_usable(id.strip_prefix(UNREADABLE).unwrap_or(id)) {
        true => id.into(),
        false => shortened(id),
    }
}

/// Enough to recognise it, but never all of it.
fn shortened(text: &str) -> String {
    let count = text.chars().count();
    let kept: String = text.chars().take((count / 2).min(16)).collect();
    format!("{kept}... ({} bytes)", text.len())
}

/// One allocated VM.
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
    /// Not yet found ready: no request was answered with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checking: Option<Checking>,
    /// Deallocated, and not yet clean.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quarantine: Option<Quarantine>,
}

impl Allocation {
    pub(super) fn read(pool: &str, address: Address, record: &Record) -> Self {
        let text = |key| record.attribute(key).unwrap_or_default().to_string();
        let (checking, quarantine) = match Stage::read(record) {
            Stage::Checking(checking) => (Some(checking), None),
            Stage::InUse => (None, None),
            Stage::Quarantined(quarantine) => (None, Some(quarantine)),
        };
        Self {
            allocation_id: record.handle.to_string(),
            ip: address.into(),
            pool: pool.into(),
            node_name: text(NODE),
            pod_name: text(POD),
            pod_namespace: text(NAMESPACE),
            allocated_at: record.attribute(ALLOCATED_AT).map(Into::into),
            checking,
            quarantine,
        }
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
            ("readable-fd00::1", "web-0.example", "kube-system"),
            (&"x".repeat(253), "", ""),
        ] {
            applicant(id, pod, namespace).check().unwrap();
        }
        for (id, pod, namespace, field) in [
            ("", "p", "n", "allocationID"),
            ("two words", "p", "n", "allocationID"),
            ("line\nbreak", "p", "n", "allocationID"),
            (&"x".repeat(254), "p", "n", "allocationID"),
            ("a/b", "p", "n", "allocationID"),
            ("a..b", "p", "n", "allocationID"),
            ("unreadable-10.0.0.1", "p", "n", "allocationID"),
            ("a", "Pod", "n", "podName"),
            ("a", "p/../q", "n", "podName"),
            ("a", "p", &"n".repeat(64), "podNamespace"),
            ("a", "p", "<script>", "podNamespace"),
        ] {
            let error = applicant(id, pod, namespace).check().unwrap_err();
            assert!(error.to_string().contains(field), "{error}");
            if field == "allocationID" && !id.is_empty() {
                assert!(!error.to_string().contains(id), "never whole: {error}");
                assert!(!shown(id).contains(id) || id.starts_with(UNREADABLE));
            }
        }
        assert_eq!(shown("unreadable-10.0.0.1"), "unreadable-10.0.0.1");
        assert_eq!(
            shown(&"é".repeat(400))
                .chars()
                .filter(|c| *c == 'é')
                .count(),
            16
        );
    }
}
