//! How busy the API server is, as a pod feels it that waits for its node's first slice.
//!
//! Publishing costs the API server as much as claiming does, and nobody waits for it. So while claims are slow, because
//! thousands of nodes make them at once, publications stand back: each for as long as a thousand claims take, so that
//! what it costs is lost in what is asked anyway; and for no longer than a limit, because the objects are what users see
//! and what a lost ledger is rebuilt from.

use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

use crate::world::locked;

/// A server that has nothing else to do answers a claim in a few milliseconds.
const SLOW: Duration = Duration::from_millis(100);
/// So many claims' time is stood back for.
const CLAIMS: u32 = 1_000;
/// What was felt longer ago tells nothing of now.
const FRESH: Duration = Duration::from_secs(30);

/// What was last felt, and when.
#[derive(Debug, Default)]
pub(crate) struct Busy(Mutex<Option<(Instant, Duration)>>);

impl Busy {
    /// A claim was asked for, and now answered or given up.
    pub fn felt(&self, asked: Instant, now: Instant) {
        let mut last = locked(&self.0);
        *last = Some((now, now - asked));
    }

    /// How long something that nobody waits for should be put off.
    pub fn stand_back(&self, now: Instant, most: Duration) -> Duration {
        let last = *locked(&self.0);
        match last {
            Some((at, took)) if took >= SLOW && now - at < FRESH => (took * CLAIMS).min(most),
            _ => Duration::ZERO,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_slow_server_is_spared_and_only_for_a_while() {
        let (busy, most) = (Busy::default(), Duration::from_secs(120));
        let now = Instant::now();
        let after = |took: u64| {
            busy.felt(now, now + Duration::from_millis(took));
            busy.stand_back(now + Duration::from_millis(took), most)
        };
        assert_eq!(busy.stand_back(now, most), Duration::ZERO);
        assert_eq!(after(90), Duration::ZERO);
        assert_eq!(after(110), Duration::from_secs(110));
        assert_eq!(after(2_000), most);
        assert_eq!(busy.stand_back(now, Duration::ZERO), Duration::ZERO);
        let later = now + Duration::from_secs(2) + FRESH;
        assert_eq!(busy.stand_back(later, most), Duration::ZERO);
    }
}
