//! The deadline of an allocation, which may try several VMs and several ConfigMaps.

use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::PoolError;
use super::health::Faults;

/// When an allocation must have its answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    pub(crate) at: Instant,
    /// The time that the whole request has, for messages.
    limit: Duration,
}

impl Deadline {
    pub(crate) fn within(limit: Duration) -> Self {
        let at = Instant::now() + limit;
        Self { at, limit }
    }

    /// The deadline after the first of `parts` equal parts of the remaining time.
    pub(crate) fn share(self, parts: usize) -> Self {
        let now = Instant::now();
        let left = self.at.saturating_duration_since(now);
        let parts = u32::try_from(parts).unwrap_or(u32::MAX).max(1);
        Self {
            at: now + left / parts,
            ..self
        }
    }

    /// The result of the work, if it ends in time. Only for work that may be cut off.
    pub(crate) async fn bound<T>(
        self,
        work: impl Future<Output = Result<T, PoolError>>,
    ) -> Result<T, PoolError> {
        let late = || Err(self.missed(Faults::new()));
        timeout_at(self.at, work).await.unwrap_or_else(|_| late())
    }

    pub(crate) fn missed(self, faults: Faults) -> PoolError {
        let limit = self.limit;
        PoolError::TooLate { limit, faults }
    }
}
