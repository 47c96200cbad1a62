//! Where pools and named records are kept, durably: two traits, [`Ledger`] for pools and [`Records`].
//!
//! Promises of every implementation, checked by one conformance suite over all:
//! a claim of a held address fails (I1); a release of another's record fails (I6); `commit` returns
//! only when the changes are durable, and applies all of them or none (I2); content that can't be
//! read is refused and left as it is (I5); what it does not know is kept (I7).
//!
//! Does not decide who gets what: that is [`berth_core::plan`], driven by the desk.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

pub mod configmap;
mod delegate;
mod error;
mod memory;
pub mod object;
mod records;
mod sqlite;
mod turns;

use std::any::Any;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use berth_core::{Change, Pool, Prefix};
use futures::stream::BoxStream;
use serde::{Deserialize, Serialize};

pub use berth_kube::{Backoff, Rejection, RetryPolicy, chain};
pub use delegate::{DelegatingLedger, DelegatingRecords};
pub use error::LedgerError;
pub use memory::MemoryLedger;
pub use object::ObjectLedger;
pub use records::{ClaimKey, ClaimKind, RecordLedger, Records, SharedRecordLedger};
pub use sqlite::{Failure as SqliteFailure, GroupWriter, SqliteLedger};

/// A pool's name in its ledger, and the network that its stored offsets count from, where the
/// store has offsets.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PoolKey {
    pub name: String,
    pub network: Option<Prefix>,
}

impl PoolKey {
    pub fn named(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            network: None,
        }
    }

    pub fn of_network(name: impl Into<String>, network: Prefix) -> Self {
        Self {
            name: name.into(),
            network: Some(network),
        }
    }
}

impl fmt::Display for PoolKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// The state that a pool was read at. Only the ledger that made it can compare it.
///
/// Equal versions are equal states: what a ledger remembers with one ([`Version::state`]) follows from it.
#[derive(Clone, Debug, Default)]
pub struct Version {
    stored: String,
    state: Option<Arc<dyn Any + Send + Sync>>,
    merged: bool,
}

/// The version of a pool that does not exist.
const ABSENT: &str = "absent";

impl PartialEq for Version {
    fn eq(&self, other: &Self) -> bool {
        (&self.stored, self.merged) == (&other.stored, other.merged)
    }
}

impl Eq for Version {}

impl Version {
    /// The version that a store has by this name.
    pub fn new(stored: impl Into<String>) -> Self {
        Self {
            stored: stored.into(),
            ..Self::default()
        }
    }

    /// The same with what its ledger has to know of that state at the next commit, without another read.
    pub fn with_state(stored: impl Into<String>, state: impl Any + Send + Sync) -> Self {
        Self {
            state: Some(Arc::new(state)),
            ..Self::new(stored)
        }
    }

    /// That of a pool that does not exist.
    pub fn absent() -> Self {
        Self::new(ABSENT)
    }

    pub fn is_absent(&self) -> bool {
        self.stored == ABSENT
    }

    /// What the ledger that made this version knows of the state, if it is of that type.
    pub fn state<T: Any>(&self) -> Option<&T> {
        self.state.as_ref()?.downcast_ref()
    }

    /// The version of a commit that was applied to a newer state than the caller's.
    #[must_use]
    pub fn merged(self) -> Self {
        Self {
            merged: true,
            ..self
        }
    }

    /// Whether others wrote between the caller's base and this commit.
    pub const fn is_merged(&self) -> bool {
        self.merged
    }

    /// The store's own version.
    pub fn stored(&self) -> &str {
        &self.stored
    }

    /// Which of two states is the later one. Versions that are numbers grow (a resourceVersion, a count of commits); of
    /// others only equality is known.
    pub fn order(&self, other: &Self) -> Option<Ordering> {
        let number = |version: &Self| version.stored.parse::<u64>().ok();
        match (number(self), number(other)) {
            (Some(this), Some(other)) => Some(this.cmp(&other)),
            _ => (self.stored == other.stored).then_some(Ordering::Equal),
        }
    }
}

/// Another pool of the same store, that a commit is made only beside: it must still be as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guard {
    pub pool: PoolKey,
    pub version: Version,
}

/// A pool as it stood durably at `version`.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    pub pool: Pool,
    pub version: Version,
}

/// A pool as a list of all pools had it.
#[derive(Debug)]
pub struct Visited {
    pub key: PoolKey,
    /// The node that publishes it, where it shows a slice of that node.
    pub publisher: Option<String>,
    pub snapshot: Result<Snapshot, LedgerError>,
}

/// What waiting for a turn has brought.
#[derive(Debug, Default)]
pub struct Turn {
    /// Whether this process has one: others who take turns too wait for it.
    pub taken: bool,
    /// The pool, if it is known to be newer than the caller's.
    pub newer: Option<Snapshot>,
}

/// What a store knows of the contention for its pools. Hints alone: a commit needs no turn, and a turn promises none.
#[async_trait]
pub trait Contention: Send + Sync {
    /// Waits until a commit has a chance, where writers of one object take turns.
    async fn turn(&self, pool: &PoolKey, base: &Version) -> Turn;

    /// The turn is not needed any longer. A commit that went through has passed it on already.
    fn pass_turn(&self, _pool: &PoolKey) {}

    /// How long after it was sent a commit whose outcome is unknown may still be carried out.
    fn max_commit_delay(&self, pool: &PoolKey) -> Duration;

    /// Whether what keeps the pool has room for these claims, as far as that is known without a read: the reason, if not.
    fn has_room(&self, _pool: &PoolKey, _claims: &[Change]) -> Result<(), LedgerError> {
        Ok(())
    }
}

/// A store of pools.
#[async_trait]
pub trait Ledger: fmt::Debug + Send + Sync + 'static {
    /// The pool as it stands durably. One that does not exist yet is empty.
    async fn load(&self, pool: &PoolKey) -> Result<Snapshot, LedgerError>;

    /// The pool if it is no longer at `base`, read so that every commit that was acknowledged before
    /// the call is seen.
    async fn refresh(
        &self,
        pool: &PoolKey,
        base: &Version,
    ) -> Result<Option<Snapshot>, LedgerError> {
        let now = self.load(pool).await?;
        Ok((now.version != *base).then_some(now))
    }

    /// Applies all changes in their order, or none. Each change is guarded by its own precondition;
    /// stores that can only guard the whole document use `base`. Returns when it is durable (I2).
    ///
    /// A store that applies them to a newer state than `base` says so with [`Version::merged`]: the
    /// caller's copy lacks what others wrote in between, and `refresh` must not call it current.
    ///
    /// [`LedgerError::Conflict`] and [`LedgerError::Uncertain`]: load again and plan again.
    ///
    /// With a guard, the changes are made only if another pool is still at the version that it was read at, in the same
    /// step: what was decided by that pool holds when this is durable. If it is not, the answer is a
    /// [`LedgerError::Conflict`] that names it, and nothing is written. A store that keeps each pool by itself can't
    /// promise that, and refuses a guard.
    async fn commit(
        &self,
        pool: &PoolKey,
        base: &Version,
        changes: &[Change],
        guard: Option<&Guard>,
    ) -> Result<Version, LedgerError>;

    /// Hints about the contention for a pool, where several processes write what keeps it.
    fn contention(&self, _pool: &PoolKey) -> Option<&dyn Contention> {
        None
    }

    /// The versions that the pool has from now on, by all writers, coalesced: they show that a copy is old, not what is new.
    /// A hint for caches, never proof for a release (I4).
    async fn watch_versions(
        &self,
        pool: &PoolKey,
    ) -> Result<BoxStream<'static, Result<Version, LedgerError>>, LedgerError>;

    /// The pool as [`Ledger::load`] reads it, for a reader that will not write it: nothing of it is kept for a later write.
    async fn peek(&self, pool: &PoolKey) -> Result<Snapshot, LedgerError> {
        self.load(pool).await
    }

    /// Shows every pool to `visit`, one at a time; one that can't be read is shown with the reason. No more than a few pools
    /// are held at a time, however many there are.
    async fn visit_pools(
        &self,
        visit: &mut (dyn FnMut(Visited) + Send),
    ) -> Result<(), LedgerError> {
        for key in self.pools().await? {
            let snapshot = match self.peek(&key).await {
                Err(error) if !matches!(error, LedgerError::Unreadable { .. }) => {
                    return Err(error);
                }
                snapshot => snapshot,
            };
            visit(Visited {
                key,
                publisher: None,
                snapshot,
            });
        }
        Ok(())
    }

    /// Every pool that is kept here.
    async fn pools(&self) -> Result<Vec<PoolKey>, LedgerError>;

    /// The names of pools that a node publishes of its slices, and that node. Their truth is in its file, and it alone
    /// writes them: others read them and release nothing in them.
    async fn published_pools(&self) -> Result<BTreeMap<String, String>, LedgerError> {
        Ok(BTreeMap::new())
    }
}

/// A ledger that many desks share.
pub type SharedLedger = Arc<dyn Ledger>;

#[cfg(test)]
mod tests {
    use super::{Ordering, Version};

    #[test]
    fn versions_that_are_numbers_tell_which_is_older() {
        let order = |a: &str, b: &str| Version::new(a).order(&Version::new(b));
        assert_eq!(order("9", "10"), Some(Ordering::Less));
        assert_eq!(order("10", "9"), Some(Ordering::Greater));
        let merged = Version::new("10").merged();
        assert_eq!(merged.order(&Version::new("10")), Some(Ordering::Equal));
        assert_ne!(
            merged,
            Version::new("10"),
            "a merged one is not the caller's"
        );
        assert_eq!(order("absent", "absent"), Some(Ordering::Equal));
        assert_eq!(order("absent", "10"), None);
    }

    #[test]
    fn a_version_keeps_what_its_ledger_knows_of_the_state() {
        let known = Version::with_state("7", 12_u32);
        assert_eq!(known.clone().merged().state(), Some(&12_u32));
        assert_eq!(known.state::<String>(), None);
        assert_eq!(
            known,
            Version::new("7"),
            "the state follows from the version"
        );
        assert!(Version::absent().is_absent() && !known.is_absent());
    }
}
