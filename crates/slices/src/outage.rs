//! Publications while the API server fails to answer them: one is tried at a time, by growing pauses.
//!
//! Promises: while they fail a node makes at most one publication a pause, whatever the number of its networks; the pauses
//! grow to a minute and differ from node to node; the first one that succeeds ends that. A node never has more than
//! [`AT_ONCE`] of them under way.

use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use berth_kube::{Backoff, RetryPolicy};
use rand::RngExt;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::Instant;

use crate::error::SliceError;
use crate::world::locked;

/// Publications of one node that are under way at the same time.
const AT_ONCE: usize = 4;
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// No longer, whatever the API server asks for.
const LONGEST_ASKED: Duration = Duration::from_secs(300);
/// How soon a range looks again whether the one that is tried succeeded.
const NEXT_LOOK: Duration = Duration::from_secs(1);
/// Pauses never end by themselves.
const FOREVER: Duration = Duration::from_secs(10 * 365 * 86_400);

/// The pauses between tries of what fails.
pub(crate) fn pauses() -> Backoff {
    RetryPolicy {
        timeout: FOREVER,
        retries: u32::MAX,
        base: FIRST_PAUSE * 2,
        factor: 2.0,
        max: LONGEST_PAUSE,
    }
    .start()
}

/// The next pause: at least as long as the API server asks for, and nodes apart from each other.
pub(crate) fn pause(pauses: &mut Backoff, error: &SliceError) -> Duration {
    let own = pauses.pause(None).unwrap_or(LONGEST_PAUSE);
    let asked = error.retry_after().unwrap_or_default().min(LONGEST_ASKED);
    own.max(asked.mul_f64(rand::rng().random_range(1.0..1.25)))
}

#[derive(Debug)]
pub(crate) struct Outage {
    state: Mutex<Option<Failing>>,
    slots: Semaphore,
}

#[derive(Debug)]
struct Failing {
    pauses: Backoff,
    until: Instant,
    is_probing: bool,
}

/// The right to publish now.
pub(crate) struct Turn<'a> {
    outage: &'a Outage,
    is_probe: bool,
    _slot: Option<SemaphorePermit<'a>>,
}

impl Default for Outage {
    fn default() -> Self {
        Self {
            state: Mutex::default(),
            slots: Semaphore::new(AT_ONCE),
        }
    }
}

impl Outage {
    /// The right to publish, or when to ask again. `failed`: this range's last publication did, so that it has something to
    /// publish, and its success means that the API server takes publications.
    pub async fn turn(&self, failed: bool) -> Result<Turn<'_>, Instant> {
        let now = Instant::now();
        let is_probe = match &mut *self.lock() {
            None => false,
            Some(failing) => {
                // Ranges that failed may have ended: anyone's turn after a while.
                let mine = failed || now >= failing.until + LONGEST_PAUSE;
                if failing.is_probing || now < failing.until || !mine {
                    return Err(failing.until.max(now + NEXT_LOOK));
                }
                failing.is_probing = true;
                true
            }
        };
        let mut turn = Turn {
            outage: self,
            is_probe,
            _slot: None,
        };
        // Never closed.
        turn._slot = self.slots.acquire().await.ok();
        // What went before may have failed while this one waited.
        let failing = match &*self.lock() {
            Some(failing) if !is_probe => Some(failing.until),
            _ => None,
        };
        failing.map_or(Ok(turn), Err)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Failing>> {
        locked(&self.state)
    }
}

impl Turn<'_> {
    /// The API server took it. Whether others wait for that.
    pub fn succeeded(self) -> bool {
        self.outage.lock().take().is_some()
    }

    /// The API server did not answer, or was too busy to. When this node tries again.
    pub fn failed(self, error: &SliceError) -> Instant {
        let mut state = self.outage.lock();
        let failing = match &mut *state {
            // Begun before the first failure was known: the same outage.
            Some(failing) if !self.is_probe => return failing.until,
            Some(failing) => failing,
            none => none.insert(Failing {
                pauses: pauses(),
                until: Instant::now(),
                is_probing: false,
            }),
        };
        failing.is_probing = false;
        failing.until = Instant::now() + pause(&mut failing.pauses, error);
        failing.until
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if self.is_probe
            && let Some(failing) = &mut *self.outage.lock()
        {
            failing.is_probing = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use berth_ledger::LedgerError;

    use super::*;

    fn busy(retry_after: Option<u64>) -> SliceError {
        SliceError::Store(LedgerError::Unavailable {
            target: "an IPPool".into(),
            why: "too many requests".into(),
            retry_after: retry_after.map(Duration::from_secs),
        })
    }

    #[test]
    fn pauses_grow_to_a_minute_and_are_as_long_as_the_api_server_asks() {
        let mut growing = pauses();
        let all: Vec<Duration> = (0..40).map(|_| pause(&mut growing, &busy(None))).collect();
        assert!(
            all[0] >= FIRST_PAUSE && all[0] <= FIRST_PAUSE * 2,
            "{all:?}"
        );
        assert!(all.iter().all(|pause| *pause <= LONGEST_PAUSE), "{all:?}");
        assert!(
            all[10..].iter().all(|pause| *pause >= LONGEST_PAUSE / 2),
            "{all:?}"
        );
        let asked = pause(&mut pauses(), &busy(Some(100)));
        assert!(asked >= Duration::from_secs(100), "{asked:?}");
        let asked = pause(&mut pauses(), &busy(Some(100_000)));
        assert!(asked <= LONGEST_ASKED.mul_f64(1.25), "{asked:?}");
    }

    /// Ten ranges whose publications all fail, for ten minutes: one request a pause.
    #[tokio::test(start_paused = true)]
    async fn a_node_tries_one_publication_at_a_time_while_they_fail() {
        let outage = Outage::default();
        let (began, mut made, mut next) = (Instant::now(), 0, [Instant::now(); 10]);
        while began.elapsed() < Duration::from_secs(600) {
            for (range, next) in next.iter_mut().enumerate() {
                if *next > Instant::now() {
                    continue;
                }
                *next = match outage.turn(range % 2 == 0).await {
                    Ok(turn) => {
                        made += 1;
                        turn.failed(&busy(None))
                    }
                    Err(later) => later,
                };
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        assert!((10..40).contains(&made), "{made} publications");
        // All at once after that.
        let probe = async || {
            loop {
                if let Ok(turn) = outage.turn(true).await {
                    return turn;
                }
                tokio::time::sleep(NEXT_LOOK).await;
            }
        };
        let turn = probe().await;
        assert!(outage.turn(true).await.is_err(), "one at a time");
        assert!(turn.succeeded(), "others wait");
        assert!(!outage.turn(false).await.unwrap().succeeded());
    }

    #[tokio::test(start_paused = true)]
    async fn a_probe_that_is_given_up_lets_the_next_one_go() {
        let outage = Outage::default();
        outage.turn(false).await.unwrap().failed(&busy(None));
        tokio::time::sleep(FIRST_PAUSE * 2).await;
        drop(outage.turn(true).await.unwrap());
        assert!(outage.turn(true).await.is_ok());
    }
}
