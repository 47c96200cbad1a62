//! Whether the API server was away, and may have gone back in time meanwhile.
//!
//! etcd can be restored from a backup: claims and published pools that were made since are gone then, while pods hold
//! their addresses. The API server is down for that: every node's watch breaks, and no request is answered.
//!
//! Promise: after it was away a node looks for all claims that it holds and creates again what is in use; and it claims nothing new for [`SETTLE`], so that every other node had time to do the same (I1). A process that
//! starts within that time, or serves one call, does not know of it.

use std::sync::atomic::Ordering;
use std::sync::{Mutex, Weak};
use std::time::Duration;

use berth_core::Prefix;
use berth_ledger::{ClaimKey, ClaimKind, LedgerError, Records};
use tokio::time::Instant;

use crate::confirm::is_away;
use crate::error::SliceError;
use crate::world::{World, locked};

/// Longer than a node needs to notice that the API server is back, and to create again what vanished.
const SETTLE: Duration = Duration::from_secs(20);
/// How often a node asks whether it is back.
pub(crate) const ASK: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum State {
    #[default]
    Ready,
    Away,
    /// It answers again, and others may still have to create claims again.
    Settling(Instant),
}

#[derive(Debug, Default)]
pub(crate) struct Link(Mutex<State>);

impl Link {
    pub fn lost(&self) {
        *locked(&self.0) = State::Away;
    }

    pub fn is_away(&self) -> bool {
        *locked(&self.0) == State::Away
    }

    /// It answers. Whether it did not before.
    fn returned(&self, now: Instant) -> bool {
        let mut state = locked(&self.0);
        let was_away = *state == State::Away;
        if was_away {
            *state = State::Settling(now + SETTLE);
        }
        was_away
    }

    /// How long nothing new is claimed.
    fn settling(&self, now: Instant) -> Option<Duration> {
        let mut state = locked(&self.0);
        match *state {
            State::Settling(until) if until > now => Some(until - now),
            State::Settling(_) => {
                *state = State::Ready;
                None
            }
            State::Ready | State::Away => None,
        }
    }
}

impl World {
    /// If the API server was away and answers again, each range looks whether claims of it vanished: by a cheap read, because
    /// thousands of nodes do so at the same time.
    pub async fn greet(&self) -> Result<(), LedgerError> {
        if !self.link.is_away() {
            return Ok(());
        }
        self.ask().await?;
        self.greeted();
        Ok(())
    }

    /// A watch broke: a proxy may have cut it, or the API server is away.
    pub async fn doubt(&self) {
        if self.ask().await.is_err() {
            self.link.lost();
        }
    }

    /// An error if the API server is away. A refusal is an answer.
    async fn ask(&self) -> Result<(), LedgerError> {
        let any = ClaimKey::new(ClaimKind::Reservation, "berth-ready");
        match self.cluster.get(&any).await {
            Err(error) if is_away(&error) => Err(error),
            _ => Ok(()),
        }
    }

    /// The API server has answered.
    pub fn greeted(&self) {
        if !self.link.returned(Instant::now()) {
            return;
        }
        for pool in locked(&self.pools).iter().filter_map(Weak::upgrade) {
            pool.returned.store(true, Ordering::Release);
            pool.kick.notify_one();
        }
    }

    /// An error while nothing new may be claimed.
    pub async fn may_claim(&self, range: Prefix) -> Result<(), SliceError> {
        self.greet().await?;
        match self.link.settling(Instant::now()) {
            None => Ok(()),
            Some(left) => Err(SliceError::Settling {
                range,
                seconds: left.as_secs() + 1,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_claimed_for_a_while_after_the_api_server_was_away() {
        let (link, now) = (Link::default(), Instant::now());
        assert!(!link.returned(now), "it was never away");
        assert_eq!(link.settling(now), None);
        link.lost();
        assert!(link.is_away() && link.returned(now) && !link.is_away());
        assert_eq!(link.settling(now), Some(SETTLE));
        assert!(!link.returned(now + SETTLE / 2), "told once");
        assert_eq!(link.settling(now + SETTLE / 2), Some(SETTLE / 2));
        assert_eq!(link.settling(now + SETTLE), None);
    }
}
