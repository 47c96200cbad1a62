//! What is remembered of a pool between two looks.
//!
//! Promises: what is known of it is dropped as soon as a watch shows something else. A restart forgets all of it, and
//! costs a grace period, not a slice.

use std::collections::BTreeMap;
use std::time::Duration;

use berth_core::slice::proof::Suspicions;
use berth_core::{Moment, Prefix};
use berth_ledger::kube::slicepools::StoredSlicePool;

use crate::seen::View;

/// How long a watch may lag behind a write.
pub(super) const UNSEEN: Duration = Duration::from_secs(5);

/// What is suspected to be no longer used.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Suspect {
    /// A slice whose node, of that UID, is gone.
    Loss(Prefix, String, String),
    /// What a change to that cut would drop.
    Change(Prefix, u8),
    /// The pool: no definition wants it.
    Deletion,
}

/// What is remembered of a pool between two looks.
#[derive(Debug, Default)]
pub struct Memory {
    /// As it was last read or written; the inner none: it did not exist.
    pub(super) known: Option<Option<StoredSlicePool>>,
    /// When it was made here, until a watch has shown it.
    pub(super) made: Option<Moment>,
    pub(super) suspicions: Suspicions<Suspect>,
    /// Slices of nodes that are gone whose pools can't be read, and why.
    pub(super) unread: BTreeMap<Prefix, String>,
    /// Since when slices are known to be recalled.
    pub(super) recalled: BTreeMap<Prefix, Moment>,
}

impl Memory {
    /// Somebody else has written it: what is known is not what is there.
    pub(super) fn check(&mut self, view: &View, name: &str, now: Moment) {
        let Some(known) = &self.known else {
            return;
        };
        let head = view.heads.get(name);
        if head.is_some() {
            self.made = None;
        }
        let current = match (known, head) {
            (Some(stored), Some(_)) => stored.is_current(|object| {
                let head = view.heads.get(object)?;
                Some(head.version.clone())
            }),
            // What was made here is known before the watch shows it; else somebody has deleted it.
            (Some(_), None) => self.made.is_some_and(|made| now < made.plus(UNSEEN)),
            (None, Some(_)) => false,
            (None, None) => true,
        };
        if !current {
            self.known = None;
        }
    }

    /// The next look begins with a read.
    pub fn forget(&mut self) {
        self.known = None;
    }

    /// Counts from the first look that begins with a recall: who made it, and when, is nowhere told, and what this
    /// controller has just written it began to write some time after `now`.
    pub(super) fn note_recalled(&mut self, stored: &StoredSlicePool, now: Moment) {
        let table = &stored.pool.table;
        self.recalled.retain(|slice, _| table.is_recalled(*slice));
        for slice in table.recalled() {
            self.recalled.entry(slice).or_insert(now);
        }
    }
}
