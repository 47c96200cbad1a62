//! Contention backoff: a desk whose commits conflict with other writers waits a random time before its next commit.
//!
//! The API server does not queue the writers of one object: it repeats each write that another one overtook, at full
//! cost, so that together they get less done than one alone. A desk that met another writer therefore waits for a random
//! part of a window; requests that arrive meanwhile join the commit. The window grows with what the conflict cost and
//! closes when there is none: a desk that writes alone never waits.

use std::time::Duration;

use berth_ledger::{LedgerError, Version};
use rand::RngExt;

/// A window below this is closed.
const LEAST: Duration = Duration::from_millis(5);
/// Longer waits would not help: too many desks write the pool.
const MOST: Duration = Duration::from_secs(3);

/// Whether a commit met other writers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Meeting {
    /// The pool was as it had been read.
    Alone,
    /// Others had written, and the commit went through.
    Others,
    /// Others had written, and the commit has to be repeated.
    Conflict,
}

/// What a commit met; None if the server itself failed.
pub(crate) fn meeting(committed: &Result<Version, LedgerError>) -> Option<Meeting> {
    match committed {
        Ok(version) if version.is_merged() => Some(Meeting::Others),
        Ok(_) => Some(Meeting::Alone),
        Err(LedgerError::Conflict { .. }) => Some(Meeting::Conflict),
        Err(_) => None,
    }
}

#[derive(Debug, Default)]
pub(crate) struct ContentionBackoff {
    window: Duration,
}

impl ContentionBackoff {
    /// Learns from a commit that took so long.
    pub fn learn(&mut self, meeting: Meeting, took: Duration) {
        let window = match meeting {
            Meeting::Alone => self.window / 2,
            Meeting::Others => self.window.max(took * 2),
            Meeting::Conflict => (self.window * 2).max(took * 2).max(LEAST * 2),
        };
        self.window = match window {
            window if window < LEAST => Duration::ZERO,
            window => window.min(MOST),
        };
    }

    /// How long to wait before the next commit.
    pub fn draw(&self) -> Duration {
        if self.window.is_zero() {
            return Duration::ZERO;
        }
        self.window.mul_f64(rand::rng().random_range(0.0..1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_opens_with_meetings_and_closes_without() {
        let mut backoff = ContentionBackoff::default();
        let ms = Duration::from_millis;
        backoff.learn(Meeting::Alone, ms(4));
        assert_eq!(backoff.draw(), Duration::ZERO, "alone");
        backoff.learn(Meeting::Others, ms(40));
        assert_eq!(backoff.window, ms(80));
        backoff.learn(Meeting::Conflict, ms(10));
        assert_eq!(backoff.window, ms(160));
        for _ in 0..20 {
            backoff.learn(Meeting::Conflict, ms(900));
        }
        assert_eq!(backoff.window, MOST);
        assert!(backoff.draw() < MOST);
        for _ in 0..12 {
            backoff.learn(Meeting::Alone, ms(4));
        }
        assert_eq!(backoff.draw(), Duration::ZERO, "alone again");
    }
}
