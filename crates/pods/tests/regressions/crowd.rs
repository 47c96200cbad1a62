//! A ledger that many nodes write: what one of them does between another's look and its write.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use berth_core::Change;
use berth_ledger::{
    DelegatingLedger, DelegatingRecords, Guard, Ledger, LedgerError, PoolKey, Records,
    SharedRecordLedger, Version,
};
use tokio::sync::Barrier;

/// Nobody's first write of a pool is made before everybody has planned one: each has the pool as it was before all of
/// them.
#[derive(Debug)]
pub struct Together {
    below: SharedRecordLedger,
    all: Barrier,
    left: AtomicUsize,
}

impl Together {
    pub fn over(below: SharedRecordLedger, nodes: usize) -> Together {
        Together {
            below,
            all: Barrier::new(nodes),
            left: AtomicUsize::new(nodes),
        }
    }
}

#[async_trait]
impl DelegatingLedger for Together {
    fn below(&self, _pool: Option<&PoolKey>) -> &dyn Ledger {
        &*self.below
    }

    async fn commit(
        &self,
        pool: &PoolKey,
        base: &Version,
        changes: &[Change],
        guard: Option<&Guard>,
    ) -> Result<Version, LedgerError> {
        let less = |left: usize| left.checked_sub(1);
        let first = self
            .left
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
        if first.is_ok() {
            self.all.wait().await;
        }
        self.below.commit(pool, base, changes, guard).await
    }
}

#[async_trait]
impl DelegatingRecords for Together {
    fn records_below(&self) -> &dyn Records {
        &*self.below
    }
}

/// Somebody else is always faster, for so many writes.
#[derive(Debug)]
pub struct Slower {
    below: SharedRecordLedger,
    left: Mutex<usize>,
}

impl Slower {
    pub fn over(below: SharedRecordLedger, writes: usize) -> Slower {
        Slower {
            below,
            left: Mutex::new(writes),
        }
    }
}

#[async_trait]
impl DelegatingLedger for Slower {
    fn below(&self, _pool: Option<&PoolKey>) -> &dyn Ledger {
        &*self.below
    }

    async fn commit(
        &self,
        pool: &PoolKey,
        base: &Version,
        changes: &[Change],
        guard: Option<&Guard>,
    ) -> Result<Version, LedgerError> {
        {
            let mut left = self.left.lock().unwrap();
            if let Some(less) = left.checked_sub(1) {
                *left = less;
                return Err(LedgerError::Conflict {
                    pool: pool.to_string(),
                    held: Vec::new(),
                });
            }
        }
        self.below.commit(pool, base, changes, guard).await
    }
}

#[async_trait]
impl DelegatingRecords for Slower {
    fn records_below(&self) -> &dyn Records {
        &*self.below
    }
}
