//! What this process has read of a ring, and when its own turn comes.
//!
//! Guarantee: waiting for a turn ends. Each member before this one is waited for about as long as a turn takes, counted
//! from when it became the first. What was read may be outdated.

use std::cmp;
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures::StreamExt;
use kube::Api;
use kube::api::{WatchEvent, WatchParams};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use tokio::sync::watch;

use super::ring::Ring;
use crate::Version;

/// What a turn is thought to take before one was seen. Too little makes members pass each other over.
const FIRST_GUESS: Duration = Duration::from_millis(100);
/// A member that has the turn longer than this many times the time for a silent member has lost it.
const LONGEST_HOLD: u32 = 3;
/// The ring is followed for this long after the last wait for a turn.
const FOLLOWED_FOR: Duration = Duration::from_secs(5);

/// Bounds of the time that one member's turn is waited for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    pub least: Duration,
    pub longest: Duration,
    /// Whether others' turns tell how long one takes; not where one is several writes with pauses between them.
    pub from_others: bool,
}

#[derive(Debug)]
pub(crate) struct Line {
    prefix: String,
    patience: Patience,
    known: watch::Sender<Known>,
    /// How long a turn takes, as of late.
    usual: Mutex<Duration>,
    followed: AtomicBool,
    waited_at: Mutex<Instant>,
}

#[derive(Clone, Debug)]
struct Known {
    version: Version,
    ring: Ring,
    changed_at: Instant,
    /// When the member whose turn it is became that.
    turn_since: Instant,
}

impl Line {
    /// A line for the ring whose keys begin with `prefix`.
    pub(crate) fn new(prefix: impl Into<String>, patience: Patience) -> Self {
        let known = Known {
            version: Version::default(),
            ring: Ring::default(),
            changed_at: Instant::now(),
            turn_since: Instant::now(),
        };
        Self {
            prefix: prefix.into(),
            patience,
            known: watch::Sender::new(known),
            usual: Mutex::new(FIRST_GUESS),
            followed: AtomicBool::new(false),
            waited_at: Mutex::new(Instant::now()),
        }
    }

    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The ring as it was just read or written.
    pub(crate) fn learn(&self, version: Version, ring: Ring) {
        self.known
            .send_modify(|known| self.take(known, version, ring));
    }

    /// What a watch tells: news only if it is newer.
    pub(crate) fn hear(&self, version: Version, ring: Ring) {
        self.known.send_if_modified(|known| {
            let is_newer = version.order(&known.version) == Some(cmp::Ordering::Greater);
            let is_news = is_newer || known.version == Version::default();
            if is_news {
                self.take(known, version, ring);
            }
            is_news
        });
    }

    fn take(&self, known: &mut Known, version: Version, ring: Ring) {
        let now = Instant::now();
        if known.ring.next() != ring.next() {
            if self.patience.from_others && known.ring.next().is_some() {
                self.took(now - known.turn_since);
            }
            known.turn_since = now;
        }
        known.changed_at = now;
        known.version = version;
        known.ring = ring;
    }

    pub(crate) fn version(&self) -> Version {
        self.known.borrow().version.clone()
    }

    pub(crate) fn ring(&self) -> Ring {
        self.known.borrow().ring.clone()
    }

    /// A turn took this long.
    pub(crate) fn took(&self, time: Duration) {
        let mut usual = self.usual.lock();
        *usual = usual.mul_f64(0.8) + time.mul_f64(0.2);
    }

    /// How long one member is waited for: thrice a turn, so that a slow one is not passed over.
    pub(crate) fn turn_time(&self) -> Duration {
        (*self.usual.lock() * 3).clamp(self.patience.least, self.patience.longest)
    }

    pub(crate) fn is_followed(&self) -> bool {
        self.followed.load(Ordering::Acquire)
    }

    /// Waits until it is `member`'s turn, and says who was waited for in vain; not at all, and `None`, for who is not in
    /// the ring.
    pub(crate) async fn turn(&self, member: &str) -> Option<Vec<String>> {
        let mut known = self.known.subscribe();
        loop {
            let due = {
                let known = known.borrow_and_update();
                let passed = known.ring.place(member)?;
                *self.waited_at.lock() = Instant::now();
                let before = u32::try_from(passed).unwrap_or(u32::MAX);
                let each = self.turn_time();
                let quiet = known.changed_at + each.saturating_mul(before);
                let over = known.turn_since + (each * LONGEST_HOLD).saturating_mul(before);
                let due = quiet.min(over);
                if due <= Instant::now() {
                    let passed = known.ring.first(passed);
                    return Some(passed.map(str::to_owned).collect());
                }
                due
            };
            // Either way the loop looks again; the sender lives as long as the line.
            let _ = tokio::time::timeout_at(due.into(), known.changed()).await;
        }
    }

    /// Waits for news of a newer state than `than`, as long as one turn. Whether there are any.
    pub(crate) async fn is_newer(&self, than: &Version) -> bool {
        let mut known = self.known.subscribe();
        let newer =
            known.wait_for(|known| known.version.order(than) == Some(cmp::Ordering::Greater));
        matches!(
            tokio::time::timeout(self.turn_time(), newer).await,
            Ok(Ok(_))
        )
    }

    /// Hears of every write of the object that the ring is on, from what is known on, while turns are waited for and a
    /// little longer.
    pub(crate) fn follow<K>(self: &Arc<Self>, api: &Api<K>, name: &str)
    where
        K: Clone + DeserializeOwned + Debug + Send + 'static,
    {
        let from = self.version();
        if from == Version::default() || self.followed.swap(true, Ordering::AcqRel) {
            return;
        }
        *self.waited_at.lock() = Instant::now();
        let line = Arc::clone(self);
        let (api, name) = (api.clone(), name.to_string());
        tokio::spawn(async move {
            if let Err(error) = line.follow_from(&api, &name, from.stored()).await {
                tracing::debug!(object = name, %error, "the watch ended");
            }
            line.followed.store(false, Ordering::Release);
        });
    }

    async fn follow_from<K>(
        &self,
        api: &Api<K>,
        name: &str,
        version: &str,
    ) -> Result<(), kube::Error>
    where
        K: Clone + DeserializeOwned + Debug + Send + 'static,
    {
        let params = WatchParams::default().fields(&format!("metadata.name={name}"));
        // Only metadata: whose turn it is, and that there is something to read.
        let mut events = api.watch_metadata(&params, version).await?.boxed();
        while self.waited_at.lock().elapsed() < FOLLOWED_FOR {
            match tokio::time::timeout(FOLLOWED_FOR, events.next()).await {
                Ok(Some(Ok(WatchEvent::Added(object) | WatchEvent::Modified(object)))) => {
                    let version = object.metadata.resource_version.unwrap_or_default();
                    let ring = Ring::read(&self.prefix, object.metadata.annotations.as_ref());
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
