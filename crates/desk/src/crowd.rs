//! How long a desk holds back because others write the same pool.
//!
//! Writers of one object do not queue at an API server: each that is outrun is tried again there, at full cost, so
//! that together they get less done than one alone. What helps is to come at different times. A desk that met
//! others waits for a random part of a window before its next commit; what arrives meanwhile joins it. The window
//! grows with what the meeting cost, and closes when nobody is met: a desk that is alone never waits.

use std::time::Duration;

use berth_ledger::{LedgerError, Version};
use rand::RngExt;

/// Below this nobody is held back.
const LEAST: Duration = Duration::from_millis(5);
/// A pool that takes longer than this between commits of one desk is served by too many of them.
const MOST: Duration = Duration::from_secs(3);

/// What a commit met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Meeting {
    /// Nobody: the pool was as it had been read.
    Nobody,
    /// Others had written, and the commit went through.
    Others,
    /// Others had written, and the commit is to be made again.
    Outrun,
}

/// Whom a commit met; nothing where the server itself is in trouble.
pub(crate) fn meeting(committed: &Result<Version, LedgerError>) -> Option<Meeting> {
    match committed {
        Ok(version) if version.is_merged() => Some(Meeting::Others),
        Ok(_) => Some(Meeting::Nobody),
        Err(LedgerError::Conflict { .. }) => Some(Meeting::Outrun),
        Err(_) => None,
    }
}

#[derive(Debug, Default)]
pub(crate) struct Crowd {
    window: Duration,
}

impl Crowd {
    /// Learns from a commit that took so long.
    pub fn learn(&mut self, meeting: Meeting, took: Duration) {
        let window = match meeting {
            Meeting::Nobody => self.window / 2,
            Meeting::Others => self.window.max(took * 2),
            Meeting::Outrun => (self.window * 2).max(took * 2).max(LEAST * 2),
        };
        self.window = match window {
            window if window < LEAST => Duration::ZERO,
            window => window.min(MOST),
        };
    }

    /// How long to hold back this time.
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
        let mut crowd = Crowd::default();
        let ms = Duration::from_millis;
        crowd.learn(Meeting::Nobody, ms(4));
        assert_eq!(crowd.draw(), Duration::ZERO, "alone");
        crowd.learn(Meeting::Others, ms(40));
        assert_eq!(crowd.window, ms(80));
        crowd.learn(Meeting::Outrun, ms(10));
        assert_eq!(crowd.window, ms(160));
        for _ in 0..20 {
            crowd.learn(Meeting::Outrun, ms(900));
        }
        assert_eq!(crowd.window, MOST);
        assert!(crowd.draw() < MOST);
        for _ in 0..12 {
            crowd.learn(Meeting::Nobody, ms(4));
        }
        assert_eq!(crowd.draw(), Duration::ZERO, "alone again");
    }
}
