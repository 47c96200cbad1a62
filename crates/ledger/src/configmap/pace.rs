//! How long a writer holds back before it tries, so that several writers of one object get by.
//!
//! An object takes one write at a time: of those that were prepared on the same version one counts
//! and the others were for nothing, at full cost to the server. What works is what works on a shared
//! radio channel: each draws a pause out of a window, which grows with every collision and shrinks
//! with every success. Growing and shrinking by the same factor, the window settles where half of
//! all tries succeed, which is near the most that writers who can't talk to each other can get.
//!
//! Promises: a writer that is alone never waits. Does not promise fairness beyond chance.

use std::time::Duration;

use rand::RngExt;

const FACTOR: f64 = 1.5;
/// Less is no window at all.
const LEAST: Duration = Duration::from_millis(4);
const MOST: Duration = Duration::from_millis(250);

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pace {
    window: Duration,
}

impl Pace {
    /// The pause before the next try; none for a writer that meets nobody.
    pub(super) fn pause(self) -> Option<Duration> {
        let share: f64 = rand::rng().random_range(0.0..1.0);
        (!self.window.is_zero()).then(|| self.window.mul_f64(share))
    }

    pub(super) fn collided(&mut self) {
        self.window = self.window.mul_f64(FACTOR).clamp(LEAST * 4, MOST);
    }

    pub(super) fn succeeded(&mut self) {
        self.window = self.window.div_f64(FACTOR);
        if self.window < LEAST {
            self.window = Duration::ZERO;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alone_nobody_waits_and_a_crowd_is_bounded() {
        let mut pace = Pace::default();
        assert_eq!(pace.pause(), None);
        for _ in 0..50 {
            pace.collided();
            assert!(pace.pause().unwrap() <= MOST);
        }
        let mut successes = 0;
        while pace.pause().is_some() {
            pace.succeeded();
            successes += 1;
        }
        assert!(
            successes < 15,
            "{successes} successes until it is alone again"
        );
    }

    /// Writers in slots of time: a try succeeds if nobody else tried in the same slot.
    #[test]
    fn a_crowd_settles_where_much_gets_through_and_everyone_gets_his_share() {
        const SLOT: f64 = 20.0;
        let mut writers: Vec<(Pace, f64, u32)> =
            (0..8).map(|_| (Pace::default(), 0.0, 0)).collect();
        let mut through = 0;
        let slots = 20_000;
        for slot in 0..slots {
            let now = f64::from(slot) * SLOT;
            let trying: Vec<usize> = (0..8).filter(|w| writers[*w].1 <= now).collect();
            for writer in &trying {
                let (pace, next, count) = &mut writers[*writer];
                if trying.len() == 1 {
                    pace.succeeded();
                    through += 1;
                    *count += 1;
                } else {
                    pace.collided();
                }
                let pause = pace.pause().unwrap_or_default();
                *next = now + SLOT + pause.as_secs_f64() * 1e3;
            }
        }
        let share = f64::from(through) / f64::from(slots);
        assert!(share > 0.25, "{share} of the slots carried a write");
        for (_, _, count) in &writers {
            assert!(*count * 16 > through, "a writer got {count} of {through}");
        }
    }
}
