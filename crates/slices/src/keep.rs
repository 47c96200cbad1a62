//! The one task that keeps a range: publishes what changed, compares what is held with the cluster's objects, refills.
//!
//! ```text
//!   a change  ->  gathered for a moment  ->  examined, if something looks wrong
//!                                        ->  published, now or, while the API server is busy, later
//!                                        ->  refilled before the last slice is full
//! ```

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use berth_kube::Backoff;
use rand::RngExt;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::error::SliceError;
use crate::outage;
use crate::pool::SlicePool;
use crate::settings::SliceSettings;
use crate::sliced::Mode;

/// Looks at a range of claimed slices, of which one asks the API server.
const CALLED: u32 = 10;

/// When to publish.
struct Pace {
    settings: SliceSettings,
    last: Instant,
    /// While a node starts pod after pod, each publication would bring one or two: the longer it lasts, the more of them
    /// go together.
    gather: Duration,
    /// Until when what is to be published waits for an API server that is busy.
    put_off: Option<Instant>,
    /// The last publication failed: nothing goes before the pause is over. The pauses of this range alone, where the API
    /// server answered.
    failed: bool,
    pauses: Option<Backoff>,
}

impl Pace {
    fn new(settings: SliceSettings, now: Instant) -> Self {
        Self {
            last: now - settings.gather_busy,
            gather: settings.gather_busy,
            put_off: None,
            failed: false,
            pauses: None,
            settings,
        }
    }

    /// Waits after a publication of this range failed.
    fn fail(&mut self, error: &SliceError) {
        let pauses = self.pauses.get_or_insert_with(outage::pauses);
        self.put_off = Some(Instant::now() + outage::pause(pauses, error));
        self.failed = true;
    }

    /// How long the changes that come with one are waited for.
    fn gather(&mut self, now: Instant) -> Duration {
        if now - self.last < self.gather {
            let gather = self.gather;
            self.gather = (gather * 2).min(self.settings.gather_most);
            return gather;
        }
        self.gather = self.settings.gather_busy;
        self.settings.gather
    }

    /// Whether to publish now, where the API server asks for so much of a pause.
    fn is_due(&mut self, now: Instant, stand_back: Duration) -> bool {
        let until = match self.put_off {
            Some(until) => until,
            None if stand_back.is_zero() => now,
            // Apart from each other: all nodes feel the same.
            None => now + stand_back.mul_f64(rand::rng().random_range(0.75..1.0)),
        };
        self.put_off = (until > now).then_some(until);
        self.put_off.is_none()
    }
}

/// Why the keeper woke up.
#[derive(PartialEq)]
enum Wake {
    Change,
    Look,
    Publication,
}

impl SlicePool {
    /// Compares, and takes back what others do not want.
    async fn examine(&self) -> Result<(), SliceError> {
        let _gate = self.gate.lock().await;
        let of = self.of();
        if of.mode != Mode::Assigned && self.leave_if_told(&of).await? {
            return Ok(());
        }
        self.compare().await?;
        self.follow_plain(&of).await?;
        if self.has_rows(&of).await? {
            self.withdraw_offers(&of).await?;
        }
        Ok(())
    }

    /// Publishes, compares and refills, until told to stop.
    pub async fn keep(self: Arc<Self>, stop: CancellationToken) {
        let settings = self.world.settings.clone();
        let look = || {
            let part = rand::rng().random_range(0.75..1.25);
            Instant::now() + settings.look.mul_f64(part)
        };
        let (mut next_look, mut looks) = (look(), 0u32);
        // A look that was put off while the API server was away.
        let (mut missed, mut held_up) = (false, false);
        let mut pace = Pace::new(settings.clone(), Instant::now());
        loop {
            let put_off = pace.put_off.unwrap_or(next_look);
            let wake = tokio::select! {
                () = stop.cancelled() => break,
                () = self.kick.notified() => Wake::Change,
                () = sleep_until(next_look) => Wake::Look,
                () = sleep_until(put_off), if pace.put_off.is_some() => Wake::Publication,
            };
            if wake == Wake::Change {
                tokio::select! {
                    () = stop.cancelled() => break,
                    () = sleep(pace.gather(Instant::now())) => {}
                }
            }
            if wake == Wake::Look {
                next_look = look();
                looks = looks.wrapping_add(1);
            }
            missed |= wake == Wake::Look;
            let turn = match self.world.outage.turn(pace.failed).await {
                Ok(turn) => turn,
                Err(later) => {
                    pace.put_off = Some(later);
                    held_up = true;
                    if self.suspect.load(Ordering::Acquire) || self.returned.load(Ordering::Acquire)
                    {
                        self.look_around(false, looks).await;
                    }
                    continue;
                }
            };
            if held_up {
                pace.put_off = None;
            }
            let deep = self.look_around(missed, looks).await;
            (missed, held_up) = (false, false);
            let now = Instant::now();
            let stand_back = self.world.busy.stand_back(now, settings.publish_within);
            if deep {
                self.read_anew();
            }
            if pace.is_due(now, stand_back) || deep && !pace.failed {
                let published = self.publish_next().await;
                pace.last = Instant::now();
                match published {
                    Ok(()) => {
                        (pace.failed, pace.pauses) = (false, None);
                        if turn.succeeded() {
                            self.world.kick_all();
                        }
                    }
                    Err(error) => {
                        tracing::warn!(range = %self.of().range, %error, "slices were not published; they are later");
                        pace.fail(&error);
                        if error.is_outage() {
                            pace.put_off = Some(turn.failed(&error));
                            held_up = true;
                            continue;
                        }
                    }
                }
            }
            if let Err(error) = self.world.reserve_pending().await {
                tracing::warn!(%error, "reservations still wait");
            }
            if let Err(error) = self.balance().await {
                tracing::warn!(range = %self.of().range, %error, "slices are neither refilled nor given back for now");
            }
        }
        if let Err(error) = self.publish(false).await {
            tracing::warn!(range = %self.of().range, %error, "slices were not published before the end; the next start does it");
        }
    }

    async fn publish_next(&self) -> Result<(), SliceError> {
        let anew = self.anew.swap(false, Ordering::AcqRel);
        let published = self.publish(anew).await;
        if anew && published.is_err() {
            self.read_anew();
        }
        published
    }

    /// Examines the range if there is a reason to; says whether this was a look that costs requests. Whoever changes a
    /// claim calls, and a controller that tells of hands is watched: such a look is for what was missed.
    async fn look_around(&self, due: bool, looks: u32) -> bool {
        let untold = self.of().mode == Mode::Assigned && !self.is_told.load(Ordering::Acquire);
        let rarely = if untold { 1 } else { CALLED };
        let deep = due && looks.is_multiple_of(rarely);
        let returned = self.returned.swap(false, Ordering::AcqRel);
        if due && !deep || returned {
            match self.has_vanished().await {
                Ok(true) => {
                    self.suspect();
                    self.read_anew();
                }
                Ok(false) => {}
                // The next look asks again.
                Err(_) => self.returned.store(returned, Ordering::Release),
            }
        }
        let suspect = self.suspect.swap(false, Ordering::AcqRel);
        let unsure = due && self.is_unsure();
        if (deep || suspect || unsure || !self.is_confirmed())
            && let Err(error) = self.examine().await
        {
            tracing::warn!(range = %self.of().range, %error, "slices were not compared; they are later");
        }
        deep
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_publication_is_put_off_once_and_not_for_ever() {
        let now = Instant::now();
        let mut pace = Pace::new(SliceSettings::default(), now);
        assert!(pace.is_due(now, Duration::ZERO));
        let pause = Duration::from_secs(40);
        assert!(!pace.is_due(now, pause));
        assert!(!pace.is_due(now + pause / 2, Duration::ZERO), "as decided");
        let then = now + pause;
        assert!(pace.is_due(then, pause), "however slow the server still is");
        assert!(!pace.is_due(then, pause), "and the next one anew");
    }

    #[test]
    fn what_keeps_coming_is_gathered_longer_and_longer() {
        let (settings, now) = (SliceSettings::default(), Instant::now());
        let mut pace = Pace::new(settings.clone(), now);
        assert_eq!(pace.gather(now), settings.gather);
        pace.last = now;
        assert_eq!(pace.gather(now), settings.gather_busy);
        assert_eq!(pace.gather(now), settings.gather_busy * 2);
        let then = now + settings.gather_most;
        assert_eq!(pace.gather(then), settings.gather, "a pause ends it");
    }
}
