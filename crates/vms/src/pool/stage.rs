//! The stage of an allocation, from the choice of its VM to its return, as its record stores it.
//!
//! ```text
//!   checking ──ready──► in use ──deallocate──► quarantined ──rebooted──► (released)
//!      │ └─────────────deallocate────────────────▲
//!      └── not ready: exchanged for the next VM, or released
//! ```
//!
//! Guarantees that a stage survives a restart (I9), and that each stage is ended by one change: a change names the
//! stage that it ends by a nonce ([`berth_core::STAGE`]), so that of two only one succeeds.

use std::time::Duration;

use berth_core::{Record, STAGE};
use berth_ledger::configmap::attribute::NODE;
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

const CHECKING: &str = "checking-";
const CHECKING_SINCE: &str = "checkingSince";
/// The node that checks the VM.
const CHECKING_BY: &str = "checkingBy";
/// When the check has expired: its process can no longer be working on it.
const CHECKING_UNTIL: &str = "checkingUntil";

const QUARANTINED: &str = "quarantined-";
/// The VM was deallocated and may not be allocated again before it was cleaned.
const QUARANTINED_AT: &str = "quarantinedAt";
/// The node that has to clean it.
const QUARANTINED_BY: &str = "quarantinedBy";
const CLEANUP_TRIES: &str = "cleanupTries";
const CLEANUP_ERROR: &str = "cleanupError";
/// When the last try failed.
const CLEANUP_TRIED_AT: &str = "cleanupTriedAt";

/// The stage of an allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Its VM is being checked: no request was answered with it yet.
    Checking(Checking),
    InUse,
    /// Its VM was deallocated and is not clean yet.
    Quarantined(Quarantine),
}

/// A readiness check under way.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checking {
    pub since: String,
    /// The node that checks.
    pub by: String,
    #[serde(skip)]
    pub(super) until: Option<Timestamp>,
}

/// A cleanup that is not done yet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quarantine {
    pub since: String,
    /// The node that cleans.
    pub by: String,
    /// Attempts that failed.
    pub tries: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// When its node last recorded progress.
    #[serde(skip)]
    pub(super) active_at: Option<Timestamp>,
}

impl Stage {
    pub(super) fn read(record: &Record) -> Self {
        let text = |key| record.attribute(key).unwrap_or_default().to_string();
        // A field beside the stage: older records have nothing else.
        if let Some(since) = record.attribute(QUARANTINED_AT) {
            let by = record.attribute(QUARANTINED_BY).or(record.attribute(NODE));
            let tries = record.attribute(CLEANUP_TRIES);
            return Self::Quarantined(Quarantine {
                since: since.into(),
                by: by.unwrap_or_default().into(),
                tries: tries.and_then(|tries| tries.parse().ok()).unwrap_or(0),
                error: record.attribute(CLEANUP_ERROR).map(Into::into),
                active_at: record
                    .attribute(CLEANUP_TRIED_AT)
                    .unwrap_or(since)
                    .parse()
                    .ok(),
            });
        }
        match record.attribute(STAGE) {
            Some(stage) if stage.starts_with(CHECKING) => Self::Checking(Checking {
                since: text(CHECKING_SINCE),
                by: text(CHECKING_BY),
                until: text(CHECKING_UNTIL).parse().ok(),
            }),
            _ => Self::InUse,
        }
    }

    pub(super) fn quarantine(self) -> Option<Quarantine> {
        match self {
            Self::Quarantined(quarantine) => Some(quarantine),
            Self::Checking(_) | Self::InUse => None,
        }
    }
}

/// Whether two records are of the same check.
pub(super) fn same_check(one: &Record, other: &Record) -> bool {
    one.attribute(STAGE) == other.attribute(STAGE)
}

impl Checking {
    /// The record of a VM that this node checks, until `until` at most.
    pub(super) fn begin(record: Record, node: &str, now: Timestamp, until: Timestamp) -> Record {
        record
            .with(STAGE, format!("{CHECKING}{}", nonce()))
            .with(CHECKING_SINCE, stamp(now))
            .with(CHECKING_BY, node)
            .with(CHECKING_UNTIL, stamp(until))
    }

    /// The record of a VM that was found ready.
    pub(super) fn passed(record: &Record) -> Record {
        let mut passed = record.clone();
        for key in [STAGE, CHECKING_SINCE, CHECKING_BY, CHECKING_UNTIL] {
            passed.attributes.remove(key);
        }
        passed
    }

    /// Whether it has expired: the process that checked is gone.
    pub(super) fn is_over(&self, now: Timestamp) -> bool {
        self.until.is_none_or(|until| until < now)
    }
}

impl Quarantine {
    /// The record of a VM that this node is going to clean.
    pub(super) fn begin(record: &Record, node: &str, now: Timestamp) -> Record {
        let mut held = Checking::passed(record);
        // Of the node whose cleanup this node takes over.
        for key in [CLEANUP_TRIES, CLEANUP_ERROR, CLEANUP_TRIED_AT] {
            held.attributes.remove(key);
        }
        held.with(STAGE, format!("{QUARANTINED}{}", nonce()))
            .with(QUARANTINED_AT, stamp(now))
            .with(QUARANTINED_BY, node)
    }

    /// The record after a cleanup that failed.
    pub(super) fn failed(record: &Record, error: &str, now: Timestamp) -> Record {
        let tries = Stage::read(record)
            .quarantine()
            .map_or(0, |quarantine| quarantine.tries);
        // Kept short: it is part of a state with a size limit.
        let error: String = error.chars().take(200).collect();
        record
            .clone()
            .with(CLEANUP_TRIES, tries.saturating_add(1).to_string())
            .with(CLEANUP_ERROR, error)
            .with(CLEANUP_TRIED_AT, stamp(now))
    }

    /// Whether its node has recorded nothing for so long that it can't be cleaning any more.
    pub(super) fn is_abandoned(&self, after: Duration, now: Timestamp) -> bool {
        let after = SignedDuration::try_from(after).unwrap_or(SignedDuration::MAX);
        self.active_at
            .is_none_or(|last| now.duration_since(last) > after)
    }
}

fn stamp(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

fn nonce() -> String {
    format!("{:08x}", rand::random::<u32>())
}

#[cfg(test)]
mod tests {
    use berth_core::{Handle, Owner};

    use super::*;

    fn now() -> Timestamp {
        "2026-04-23T09:56:00Z".parse().unwrap()
    }

    fn record() -> Record {
        Record::new(Owner::new("a", ""), Handle::new("a")).with(NODE, "worker")
    }

    #[test]
    fn a_check_survives_in_the_record_and_leaves_nothing_behind() {
        let until: Timestamp = "2026-04-23T09:57:00Z".parse().unwrap();
        let checked = Checking::begin(record(), "worker", now(), until);
        let Stage::Checking(check) = Stage::read(&checked) else {
            panic!("{checked:?}");
        };
        assert_eq!((check.by.as_str(), check.until), ("worker", Some(until)));
        assert!(!check.is_over(until) && check.is_over("2026-04-23T09:57:01Z".parse().unwrap()));
        assert_eq!(Checking::passed(&checked), record());
        let again = Checking::begin(record(), "worker", now(), until);
        assert!(
            !again.same_holder(&checked),
            "another check is another stage"
        );
        assert!(!checked.same_holder(&record()));
    }

    #[test]
    fn a_quarantine_survives_in_the_record() {
        assert_eq!(Stage::read(&record()), Stage::InUse);
        let checked = Checking::begin(record(), "worker", now(), now());
        let held = Quarantine::begin(&checked, "other", now());
        let later: Timestamp = "2026-04-23T10:06:00Z".parse().unwrap();
        let failed = Quarantine::failed(&held, "no answer", now());
        let failed = Quarantine::failed(&failed, &"é".repeat(500), later);
        let quarantine = Stage::read(&failed).quarantine().unwrap();
        assert_eq!(quarantine.since, "2026-04-23T09:56:00Z");
        assert_eq!((quarantine.by.as_str(), quarantine.tries), ("other", 2));
        assert_eq!(quarantine.error.unwrap().chars().count(), 200);
        assert!(failed.same_holder(&held));
        assert_eq!(failed.attribute(CHECKING_BY), None);
        let limit = Duration::from_secs(600);
        let old = Stage::read(&held).quarantine().unwrap();
        assert!(!old.is_abandoned(limit, later) && old.is_abandoned(limit / 2, later));
        let tried = Stage::read(&failed).quarantine().unwrap();
        assert!(!tried.is_abandoned(limit / 2, later), "it is at work");
        let taken = Quarantine::begin(&failed, "worker", later);
        let taken = Stage::read(&taken).quarantine().unwrap();
        assert_eq!(
            (taken.by.as_str(), taken.tries, taken.error),
            ("worker", 0, None)
        );
        // As written by versions without stages.
        let older = record().with(QUARANTINED_AT, "2026-01-01T00:00:00Z");
        assert_eq!(Stage::read(&older).quarantine().unwrap().by, "worker");
    }
}
