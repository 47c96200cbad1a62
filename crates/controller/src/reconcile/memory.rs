//! What is remembered of a pool between two passes.
//!
//! Guarantees: it is dropped as soon as a watch shows something else. A restart forgets all of it, which costs a grace
//! period, not a slice.

use std::collections::BTreeMap;
use std::time::Duration;

use berth_core::slice::grace::Suspicions;
use berth_core::{Moment, Prefix};
use berth_whereabouts::slicepools::StoredSlicePool;

use crate::watch_cache::View;

/// How long a watch may lag behind a write.
pub(super) const UNSEEN: Duration = Duration::from_secs(5);

/// What is suspected to be unused.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Suspect {
    /// A slice whose node, of that UID, is gone.
    Loss(Prefix, String, String),
    /// What a change to that cut would drop.
    Change(Prefix, u8),
    /// The pool: no definition wants it.
    Deletion,
}

/// What is remembered of a pool between two passes.
#[derive(Debug, Default)]
pub struct Memory {
    /// As last read or written; the inner `None`: it did not exist.
    pub(super) known: Option<Option<StoredSlicePool>>,
    /// When it was created here, until a watch has shown it.
    pub(super) made: Option<Moment>,
    pub(super) suspicions: Suspicions<Suspect>,
    /// Slices of nodes that are gone whose pools can't be read, and why.
    pub(super) unread: BTreeMap<Prefix, String>,
    /// Since when slices are known to be recalled.
    pub(super) recalled: BTreeMap<Prefix, Moment>,
}

impl Memory {
    /// Another process has written it: what is remembered is outdated.
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
            // What was created here is known before the watch shows it; otherwise it was deleted.
            (Some(_), None) => self.made.is_some_and(|made| now < made.plus(UNSEEN)),
            (None, Some(_)) => false,
            (None, None) => true,
        };
        if !current {
            self.known = None;
        }
    }

    /// The next pass starts with a read.
    pub fn forget(&mut self) {
        self.known = None;
    }

    /// Counts from the first pass that starts with a recall: no object records who recalled it, and when, and this
    /// controller's own write started some time after `now`.
    pub(super) fn note_recalled(&mut self, stored: &StoredSlicePool, now: Moment) {
        let table = &stored.pool.table;
        self.recalled.retain(|slice, _| table.is_recalled(*slice));
        for slice in table.recalled() {
            self.recalled.entry(slice).or_insert(now);
        }
    }
}
