//! When a resolved conflict is worth a line in the log: the first one, then at most one line in [`QUIET`] that
//! counts all since the last.

use std::time::{Duration, Instant};

/// The least time between two lines.
const QUIET: Duration = Duration::from_secs(30);

#[derive(Debug, Default)]
pub(super) struct ConflictLog {
    /// Conflicts since the last line.
    met: u64,
    /// When the last line was written.
    logged: Option<Instant>,
}

impl ConflictLog {
    pub(super) fn met(&mut self) {
        self.met += 1;
    }

    /// A write got through: the number to log, if a line is due.
    pub(super) fn due(&mut self, now: Instant) -> Option<u64> {
        let quiet = self.logged.is_some_and(|logged| now < logged + QUIET);
        if self.met == 0 || quiet {
            return None;
        }
        self.logged = Some(now);
        Some(std::mem::take(&mut self.met))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resolved_conflicts_are_logged_at_once_and_then_counted_for_a_while() {
        let (mut resolved, start) = (ConflictLog::default(), Instant::now());
        let after = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(resolved.due(start), None, "nothing was met");
        resolved.met();
        assert_eq!(resolved.due(start), Some(1));
        for second in 1..30 {
            resolved.met();
            assert_eq!(resolved.due(after(second)), None);
        }
        assert_eq!(resolved.due(after(30)), Some(29));
        assert_eq!(resolved.due(after(90)), None);
    }
}
