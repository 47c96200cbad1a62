//! What a project may use, and how fast.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::error::ApiError;
use crate::requests::Group;

/// The limits of Google's documents; a test lowers them to reach them.
#[derive(Clone, Debug)]
pub struct Limits {
    pub aliases_per_nic: usize,
    pub aliases_per_network: usize,
    pub secondary_ranges_per_subnet: usize,
    /// Requests of each group in a minute.
    pub requests_per_minute: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            aliases_per_nic: 150,
            aliases_per_network: 15_000,
            secondary_ranges_per_subnet: 170,
            requests_per_minute: 1_500,
        }
    }
}

const MINUTE: Duration = Duration::from_secs(60);

/// Counts the requests of each group in full minutes.
#[derive(Debug, Default)]
pub struct Rates {
    windows: BTreeMap<Group, (Option<Instant>, usize)>,
    refused: usize,
}

impl Rates {
    /// Counts one request of `group`; refuses it over the limit until the minute is over.
    pub fn admit(&mut self, group: Group, limits: &Limits, now: Instant) -> Result<(), ApiError> {
        let (started, count) = self.windows.entry(group).or_default();
        if started.is_none_or(|started| now.duration_since(started) >= MINUTE) {
            (*started, *count) = (Some(now), 0);
        }
        if *count >= limits.requests_per_minute {
            self.refused += 1;
            let message =
                format!("Quota exceeded for quota group '{group:?}' and limit 'per minute'.");
            return Err(ApiError::new(403, "rateLimitExceeded", message));
        }
        *count += 1;
        Ok(())
    }

    pub fn refused(&self) -> usize {
        self.refused
    }
}
