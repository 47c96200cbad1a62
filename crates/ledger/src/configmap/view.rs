//! What this process knows of one pool's object, and when it may write it.
//!
//! What it knows may be out of date: a write under its version finds that out.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use parking_lot::{Mutex, MutexGuard};

use super::conflict_log::ConflictLog;
use super::document::Allocation;
use super::foreign_writes::{ForeignWrites, Kept};
use super::object::Stored;
use crate::turns::{Line, PREFIX, Patience};

const PATIENCE: Patience = Patience {
    least: Duration::from_millis(50),
    longest: Duration::from_secs(1),
    from_others: false,
};
/// A turn is over after this many changes: one write of all that waited, or a few of one each.
const TURN_CHANGES: usize = 3;

#[derive(Debug)]
pub(super) struct View {
    line: Arc<Line>,
    /// What was last read or written, which may be older than what the queue knows of.
    stored: Mutex<Option<Arc<Stored>>>,
    conflicts: AtomicU64,
    /// Conflicts to be logged once a write got through.
    resolved: Mutex<ConflictLog>,
    /// This node's allocations, against other programs' writes.
    kept: Mutex<Kept>,
    /// Entries that could not be parsed, or VMs of a state that could not.
    unparsed: AtomicU64,
    /// Made in the turn that this process has.
    changes: AtomicUsize,
}

/// The turn to write.
#[derive(Debug)]
pub(super) struct Turn {
    /// The state to write on, unless it is yet to be read.
    pub stored: Option<Arc<Stored>>,
    /// Members that were waited for and did not write.
    pub passed: usize,
}

impl Default for View {
    fn default() -> Self {
        Self {
            line: Arc::new(Line::new(PREFIX, PATIENCE)),
            stored: Mutex::default(),
            conflicts: AtomicU64::new(0),
            resolved: Mutex::default(),
            kept: Mutex::default(),
            unparsed: AtomicU64::new(0),
            changes: AtomicUsize::new(0),
        }
    }
}

impl View {
    pub(super) fn last(&self) -> Option<Arc<Stored>> {
        let stored = self.stored.lock();
        stored.clone()
    }

    /// Restores in a state that was read what another program erased. A state older than the last one is ignored.
    pub(super) fn restore(&self, pool: &str, node: &str, stored: &mut Stored) {
        let last = self.last().map(|last| last.version());
        if last.is_some_and(|last| stored.version().order(&last) == Some(std::cmp::Ordering::Less))
        {
            return;
        }
        let stamp = stored.stamp();
        self.kept().read(pool, node, stamp, stored.document_mut());
    }

    /// The state is this process's own write.
    pub(super) fn wrote_own(&self, node: &str, stored: &Stored) {
        self.kept().wrote(node, stored.stamp(), stored.document());
    }

    /// Whether the state lacks what this process has restored.
    pub(super) fn is_owing(&self) -> bool {
        self.kept().is_owing()
    }

    pub(super) fn known_entries(&self) -> BTreeMap<String, Allocation> {
        self.kept().entries().clone()
    }

    pub(super) fn foreign(&self) -> ForeignWrites {
        self.kept().counts()
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock()
    }

    /// So many entries were set aside.
    pub(super) fn set_aside(&self, entries: usize) {
        let entries = u64::try_from(entries).unwrap_or(u64::MAX);
        self.unparsed.fetch_add(entries, Ordering::Relaxed);
    }

    pub(super) fn unparsed(&self) -> u64 {
        self.unparsed.load(Ordering::Relaxed)
    }

    /// The state as it was just read or written.
    pub(super) fn learn(&self, stored: Arc<Stored>) {
        let (version, ring) = (stored.version(), stored.ring().clone());
        *self.stored.lock() = Some(stored);
        self.line.learn(version, ring);
    }

    pub(super) fn has_member(&self, member: &str) -> bool {
        self.line.ring().place(member).is_some()
    }

    /// Whether a write of so many changes leaves the turn with its writer. Only the first write of a turn
    /// has to read the state, so that a few small ones are cheaper together.
    pub(super) fn keeps_turn(&self, changes: usize) -> bool {
        let made = self.changes.fetch_add(changes, Ordering::Relaxed) + changes;
        if made >= TURN_CHANGES {
            self.changes.store(0, Ordering::Relaxed);
        }
        made < TURN_CHANGES
    }

    /// A new turn begins.
    pub(super) fn new_turn(&self) {
        self.changes.store(0, Ordering::Relaxed);
    }

    pub(super) fn conflicts(&self) -> u64 {
        self.conflicts.load(Ordering::Relaxed)
    }

    pub(super) fn collided(&self) {
        self.conflicts.fetch_add(1, Ordering::Relaxed);
        self.resolved.lock().met();
    }

    /// How many conflicts the write that just got through has resolved, if that is to be logged now.
    pub(super) fn resolved(&self) -> Option<u64> {
        self.resolved.lock().due(Instant::now())
    }

    /// A write that succeeded took this long.
    pub(super) fn wrote(&self, took: Duration) {
        self.line.took(took);
    }

    pub(super) fn turn_time(&self) -> Duration {
        self.line.turn_time()
    }

    pub(super) fn is_followed(&self) -> bool {
        self.line.is_followed()
    }

    /// Waits until it is `member`'s turn; returns `None` at once for a process that is not in the queue.
    pub(super) async fn turn(&self, member: &str) -> Option<Turn> {
        let passed = self.line.turn(member).await?.len();
        let newest = self.line.version();
        let stored = self.last().filter(|stored| stored.version() == newest);
        Some(Turn { stored, passed })
    }

    /// Waits for a newer state than `than`, as long as one turn. Whether there is one.
    pub(super) async fn is_newer(&self, than: &Stored) -> bool {
        self.line.is_newer(&than.version()).await
    }

    /// Watches the object, while turns are waited for and a little longer.
    pub(super) fn follow(&self, api: &Api<ConfigMap>, name: &str) {
        self.line.follow(api, name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::configmap::object::tests::stored;

    fn hear(view: &View, version: u64, ring: &[(&str, u64)]) {
        let heard = stored(version, ring);
        view.line.hear(heard.version(), heard.ring().clone());
    }

    #[tokio::test]
    async fn who_is_not_in_the_ring_does_not_wait_and_the_next_goes_at_once() {
        let view = View::default();
        assert!(view.turn("a").await.is_none());
        view.learn(stored(7, &[("a", 1), ("b", 2)]));
        assert!(view.turn("c").await.is_none());
        let turn = view.turn("a").await.unwrap();
        assert_eq!((turn.passed, turn.stored.is_some()), (0, true));
        hear(&view, 8, &[("a", 1), ("b", 2)]);
        assert!(view.turn("a").await.unwrap().stored.is_none(), "it is old");
    }

    #[tokio::test]
    async fn a_member_that_died_is_passed_over_however_often_others_write() {
        let view = Arc::new(View::default());
        view.learn(stored(7, &[("dead", 1), ("b", 2)]));
        let writes = tokio::spawn({
            let view = Arc::clone(&view);
            async move {
                for version in 8.. {
                    hear(&view, version, &[("dead", 1), ("b", 2)]);
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
            }
        });
        assert_eq!(view.turn("b").await.unwrap().passed, 1);
        writes.abort();
    }

    #[tokio::test]
    async fn a_write_passes_the_turn_on_and_old_news_do_not() {
        let view = Arc::new(View::default());
        // Long turns: only the write can let b through.
        view.wrote(Duration::from_secs(600));
        view.learn(stored(7, &[("a", 1), ("b", 2)]));
        hear(&view, 6, &[("b", 0)]);
        let waits = tokio::spawn({
            let view = Arc::clone(&view);
            async move { view.turn("b").await }
        });
        tokio::task::yield_now().await;
        assert!(!waits.is_finished());
        hear(&view, 8, &[("b", 2), ("a", 3)]);
        assert_eq!(waits.await.unwrap().unwrap().passed, 0);
    }

    #[test]
    fn a_turn_is_a_few_small_writes_or_a_large_one() {
        let view = View::default();
        let kept: Vec<bool> = [1, 1, 1, 8, 1, 2]
            .iter()
            .map(|changes| view.keeps_turn(*changes))
            .collect();
        assert_eq!(kept, [true, true, false, false, true, false]);
    }
}
