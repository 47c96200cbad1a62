//! A memory ledger that fails as real ones do: late, not at all, or without saying what it did.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use berth_core::Change;
use berth_ledger::{
    Contention, DelegatingLedger, Guard, Ledger, LedgerError, MemoryLedger, PoolKey, Turn, Version,
};
use tokio::sync::Mutex;

/// What happens to one commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    None,
    /// Not carried out, and says so.
    Unavailable,
    /// Carried out, and the answer is lost.
    LostReply,
    /// Not carried out, and nobody knows.
    LostRequest,
    /// Carried out a while after nobody knew.
    #[allow(dead_code, reason = "not every test binary has late commits")]
    Late(Duration),
}

#[derive(Debug)]
pub struct FaultyLedger {
    pub inner: Arc<MemoryLedger>,
    pub delay: Duration,
    pub commits: AtomicU64,
    /// Faults of the coming commits, first to last; none when used up.
    pub faults: Mutex<Vec<Fault>>,
    /// How many records fit.
    pub room: usize,
    /// How late a commit may be.
    pub in_doubt: Duration,
}

impl Default for FaultyLedger {
    fn default() -> Self {
        Self {
            inner: Arc::new(MemoryLedger::new()),
            delay: Duration::from_millis(5),
            commits: AtomicU64::new(0),
            faults: Mutex::default(),
            room: usize::MAX,
            in_doubt: Duration::ZERO,
        }
    }
}

impl FaultyLedger {
    /// One of several on the same store.
    #[allow(dead_code, reason = "not every test binary has several")]
    pub fn new(inner: Arc<MemoryLedger>) -> Self {
        Self {
            inner,
            ..Self::default()
        }
    }

    /// One whose first commits fail so.
    pub fn failing(faults: impl Into<Vec<Fault>>) -> Self {
        Self {
            faults: Mutex::new(faults.into()),
            ..Self::default()
        }
    }
}

#[async_trait]
impl DelegatingLedger for FaultyLedger {
    fn below(&self, _pool: Option<&PoolKey>) -> &dyn Ledger {
        &*self.inner
    }

    async fn commit(
        &self,
        pool: &PoolKey,
        base: &Version,
        changes: &[Change],
        guard: Option<&Guard>,
    ) -> Result<Version, LedgerError> {
        self.commits.fetch_add(1, Ordering::SeqCst);
        let fault = {
            let mut faults = self.faults.lock().await;
            if faults.is_empty() {
                Fault::None
            } else {
                faults.remove(0)
            }
        };
        tokio::time::sleep(self.delay).await;
        let held = self.inner.load(pool).await?.pool.len();
        let claims = changes
            .iter()
            .filter(|c| matches!(c, Change::Allocate { .. }))
            .count();
        if claims > 0 && held + claims > self.room {
            return Err(LedgerError::Full {
                target: pool.to_string(),
                size: held + claims,
                limit: self.room,
                hint: "use a larger object".into(),
            });
        }
        let unknown = || LedgerError::Uncertain {
            operation: "commit",
            target: pool.to_string(),
            why: "connection reset".into(),
        };
        match fault {
            Fault::None => self.inner.commit(pool, base, changes, guard).await,
            Fault::Unavailable => Err(LedgerError::Unavailable {
                target: pool.to_string(),
                why: "refused".into(),
                retry_after: None,
            }),
            Fault::LostReply => {
                self.inner.commit(pool, base, changes, guard).await?;
                Err(unknown())
            }
            Fault::LostRequest => Err(unknown()),
            Fault::Late(late) => {
                let inner = Arc::clone(&self.inner);
                let (pool, base, changes) = (pool.clone(), base.clone(), changes.to_vec());
                tokio::spawn(async move {
                    tokio::time::sleep(late).await;
                    inner.commit(&pool, &base, &changes, None).await
                });
                Err(unknown())
            }
        }
    }

    fn contention(&self, _pool: &PoolKey) -> Option<&dyn Contention> {
        Some(self)
    }
}

#[async_trait]
impl Contention for FaultyLedger {
    async fn turn(&self, _pool: &PoolKey, _base: &Version) -> Turn {
        Turn::default()
    }

    fn max_commit_delay(&self, _pool: &PoolKey) -> Duration {
        self.in_doubt
    }
}
