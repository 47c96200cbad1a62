//! How long a call waits for what may pass by itself.

use std::time::Duration;

use rand::RngExt;
use tokio::time::{Instant, sleep};

use crate::error::SliceError;

const PASSING_PAUSE: Duration = Duration::from_millis(100);
/// For an API server that answers, and says that it has too much to do: others start pods too.
const BUSY_LIMIT: Duration = Duration::from_secs(60);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// For what may pass by itself: an API server that is away is waited for as long as `away`, one that says that it has too
/// much to do for longer, and not asked before it said.
pub(crate) struct Patience {
    away: Duration,
    began: Instant,
    pause: Duration,
}

impl Patience {
    pub fn new(away: Duration) -> Self {
        Self {
            away,
            began: Instant::now(),
            pause: PASSING_PAUSE,
        }
    }

    /// Returns when it may be tried again; the error, when it may not.
    pub async fn after(&mut self, error: SliceError) -> Result<(), SliceError> {
        let asked = error.retry_after();
        let limit = if asked.is_some() {
            BUSY_LIMIT
        } else {
            self.away
        };
        if !error.is_passing() || self.began.elapsed() >= limit {
            return Err(error);
        }
        // Apart from each other: those who were told the same come back together otherwise.
        let part = rand::rng().random_range(0.5..1.5);
        sleep(asked.unwrap_or_default() + self.pause.mul_f64(part)).await;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        Ok(())
    }
}
