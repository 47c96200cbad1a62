//! What this process knows of one pool's object, and when its turn to write it comes.
//!
//! Promises that waiting for a turn ends: each member before this one is waited for about as long as a
//! write takes, counted from when the first of them became the first. Does not promise that what it knows
//! is of now: a write under its version finds that out.

use std::cmp;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{WatchEvent, WatchParams};
use tokio::sync::watch;

use super::object::Stored;
use super::ring::Ring;
use crate::Version;

/// Bounds of the time that one member's turn is waited for.
const LEAST_TURN: Duration = Duration::from_millis(50);
const LONGEST_TURN: Duration = Duration::from_secs(1);
/// What a write is thought to take before one was seen. Too little makes members pass each other over.
const FIRST_GUESS: Duration = Duration::from_millis(100);
/// A turn is over after this many changes: one write of all that waited, or a few of one each.
const TURN_CHANGES: usize = 3;
/// Whoever has the turn longer than this many times the time that a silent member is given has lost it.
const LONGEST_HOLD: u32 = 3;
/// The object is followed for this long after the last wait for a turn.
const FOLLOWED_FOR: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct View {
    known: watch::Sender<Known>,
    /// How long a write takes, as of late.
    usual: Mutex<Duration>,
    conflicts: AtomicU64,
    followed: AtomicBool,
    waited_at: Mutex<Instant>,
    /// Made in the turn that this process has.
    changes: AtomicUsize,
}

/// The turn to write.
#[derive(Debug)]
pub(super) struct Turn {
    /// The state to write on, unless it is yet to be read.
    pub stored: Option<Arc<Stored>>,
    /// Members that were waited for in vain.
    pub passed: usize,
}

#[derive(Clone, Debug)]
struct Known {
    /// What was last read or written, which may be older than `version`.
    stored: Option<Arc<Stored>>,
    version: Version,
    ring: Ring,
    changed_at: Instant,
    /// When the member whose turn it is became that.
    turn_since: Instant,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Default for View {
    fn default() -> Self {
        let known = Known {
            stored: None,
            version: Version::default(),
            ring: Ring::default(),
            changed_at: Instant::now(),
            turn_since: Instant::now(),
        };
        Self {
            known: watch::Sender::new(known),
            usual: Mutex::new(FIRST_GUESS),
            conflicts: AtomicU64::new(0),
            followed: AtomicBool::new(false),
            waited_at: Mutex::new(Instant::now()),
            changes: AtomicUsize::new(0),
        }
    }
}

impl View {
    pub(super) fn last(&self) -> Option<Arc<Stored>> {
        self.known.borrow().stored.clone()
    }

    /// The state as it was just read or written.
    pub(super) fn learn(&self, stored: Arc<Stored>) {
        self.known.send_modify(|known| {
            known.take(stored.version(), stored.ring().clone());
            known.stored = Some(stored);
        });
    }

    /// What a watch tells: news only if it is newer.
    fn hear(&self, version: Version, ring: Ring) {
        self.known.send_if_modified(|known| {
            let is_news = version.order(&known.version) == Some(cmp::Ordering::Greater);
            if is_news {
                known.take(version, ring);
            }
            is_news
        });
    }

    pub(super) fn has_member(&self, member: &str) -> bool {
        self.known.borrow().ring.place(member).is_some()
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

    /// A turn begins anew.
    pub(super) fn new_turn(&self) {
        self.changes.store(0, Ordering::Relaxed);
    }

    pub(super) fn conflicts(&self) -> u64 {
        self.conflicts.load(Ordering::Relaxed)
    }

    pub(super) fn collided(&self) {
        self.conflicts.fetch_add(1, Ordering::Relaxed);
    }

    /// A write that counted took this long.
    pub(super) fn wrote(&self, took: Duration) {
        let mut usual = lock(&self.usual);
        *usual = usual.mul_f64(0.8) + took.mul_f64(0.2);
    }

    /// How long one member is waited for: thrice a write, so that a slow one is not passed over.
    pub(super) fn turn_time(&self) -> Duration {
        (*lock(&self.usual) * 3).clamp(LEAST_TURN, LONGEST_TURN)
    }

    pub(super) fn is_followed(&self) -> bool {
        self.followed.load(Ordering::Acquire)
    }

    /// Waits until it is `member`'s turn; not at all, and `None`, for who is not in the ring.
    pub(super) async fn turn(&self, member: &str) -> Option<Turn> {
        let mut known = self.known.subscribe();
        loop {
            let due = {
                let known = known.borrow_and_update();
                let passed = known.ring.place(member)?;
                *lock(&self.waited_at) = Instant::now();
                let before = u32::try_from(passed).unwrap_or(u32::MAX);
                let each = self.turn_time();
                let quiet = known.changed_at + each.saturating_mul(before);
                let over = known.turn_since + (each * LONGEST_HOLD).saturating_mul(before);
                let due = quiet.min(over);
                if due <= Instant::now() {
                    let is_newest = |stored: &Arc<Stored>| stored.version() == known.version;
                    let stored = known.stored.clone().filter(is_newest);
                    return Some(Turn { stored, passed });
                }
                due
            };
            // Either way the loop looks again; the sender lives as long as the view.
            let _ = tokio::time::timeout_at(due.into(), known.changed()).await;
        }
    }

    /// Waits for news of a newer state than `than`, as long as one turn. Whether there are any.
    pub(super) async fn is_newer(&self, than: &Stored) -> bool {
        let mut known = self.known.subscribe();
        let than = than.version();
        let newer =
            known.wait_for(|known| known.version.order(&than) == Some(cmp::Ordering::Greater));
        matches!(
            tokio::time::timeout(self.turn_time(), newer).await,
            Ok(Ok(_))
        )
    }

    /// Hears of every write by anyone, while turns are waited for and a little longer.
    pub(super) fn follow(self: &Arc<Self>, api: &Api<ConfigMap>, name: &str) {
        let Some(last) = self.last() else {
            return;
        };
        if self.followed.swap(true, Ordering::AcqRel) {
            return;
        }
        let view = Arc::clone(self);
        let (api, name) = (api.clone(), name.to_string());
        tokio::spawn(async move {
            let from = last.version();
            if let Err(error) = view.follow_from(&api, &name, from.stored()).await {
                tracing::debug!(configmap = name, %error, "the watch ended");
            }
            view.followed.store(false, Ordering::Release);
        });
    }

    async fn follow_from(
        &self,
        api: &Api<ConfigMap>,
        name: &str,
        version: &str,
    ) -> Result<(), kube::Error> {
        let params = WatchParams::default().fields(&format!("metadata.name={name}"));
        // Only metadata: whose turn it is, and that there is something to read.
        let mut events = api.watch_metadata(&params, version).await?.boxed();
        while lock(&self.waited_at).elapsed() < FOLLOWED_FOR {
            match tokio::time::timeout(FOLLOWED_FOR, events.next()).await {
                Ok(Some(Ok(WatchEvent::Added(object) | WatchEvent::Modified(object)))) => {
                    let version = object.metadata.resource_version.unwrap_or_default();
                    let ring = Ring::read(object.metadata.annotations.as_ref());
                    self.hear(Version::new(version), ring);
                }
                Ok(Some(Ok(WatchEvent::Bookmark(_)))) => {}
                Ok(Some(Err(error))) => return Err(error),
                // The end, a deletion or an error in the stream: reads say what is the matter.
                Ok(_) => return Ok(()),
                Err(_) => {}
            }
        }
        Ok(())
    }
}

impl Known {
    fn take(&mut self, version: Version, ring: Ring) {
        let now = Instant::now();
        if self.ring.next() != ring.next() {
            self.turn_since = now;
        }
        self.changed_at = now;
        self.version = version;
        self.ring = ring;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::configmap::object::tests::stored;

    fn hear(view: &View, version: u64, ring: &[(&str, u64)]) {
        let heard = stored(version, ring);
        view.hear(heard.version(), heard.ring().clone());
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
