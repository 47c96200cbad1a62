//! A ledger in memory that fails when told to.

use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use berth_core::{Change, Record};
use berth_ledger::{
    ClaimKey, DelegatingLedger, DelegatingRecords, Guard, Ledger, LedgerError, MemoryLedger,
    PoolKey, Records, Rejection, Snapshot, Version,
};

#[derive(Debug)]
pub struct Faulty {
    inner: MemoryLedger,
    /// No pool takes another claim.
    pub full: AtomicBool,
    /// Claims by name can't be made or ended.
    pub no_claims: AtomicBool,
    /// Nobody's token is taken.
    pub stranger: AtomicBool,
}

impl Faulty {
    pub fn new() -> Faulty {
        Faulty {
            inner: MemoryLedger::new(),
            full: AtomicBool::new(false),
            no_claims: AtomicBool::new(false),
            stranger: AtomicBool::new(false),
        }
    }

    fn knows(&self) -> Result<(), LedgerError> {
        if self.stranger.load(Ordering::SeqCst) {
            return Err(LedgerError::Rejected {
                operation: "get",
                target: "everything".into(),
                rejection: Rejection::Unauthenticated("told to fail".into()),
            });
        }
        Ok(())
    }

    fn claims_work(&self) -> Result<(), LedgerError> {
        if self.no_claims.load(Ordering::SeqCst) {
            return Err(LedgerError::Unavailable {
                target: "reservations".into(),
                why: "told to fail".into(),
                retry_after: None,
            });
        }
        Ok(())
    }
}

#[async_trait]
impl DelegatingLedger for Faulty {
    fn below(&self, _pool: Option<&PoolKey>) -> &dyn Ledger {
        &self.inner
    }

    async fn load(&self, pool: &PoolKey) -> Result<Snapshot, LedgerError> {
        self.knows()?;
        self.inner.load(pool).await
    }

    async fn commit(
        &self,
        pool: &PoolKey,
        base: &Version,
        changes: &[Change],
        guard: Option<&Guard>,
    ) -> Result<Version, LedgerError> {
        let claims = changes
            .iter()
            .any(|change| matches!(change, Change::Allocate { .. }));
        if claims && self.full.load(Ordering::SeqCst) {
            return Err(LedgerError::Full {
                target: pool.to_string(),
                size: 2,
                limit: 1,
                hint: "told to fail".into(),
            });
        }
        self.inner.commit(pool, base, changes, guard).await
    }
}

#[async_trait]
impl DelegatingRecords for Faulty {
    fn records_below(&self) -> &dyn Records {
        &self.inner
    }

    async fn create(&self, key: &ClaimKey, record: &Record) -> Result<(), LedgerError> {
        self.claims_work()?;
        self.inner.create(key, record).await
    }

    async fn delete(&self, key: &ClaimKey, expected: &Record) -> Result<(), LedgerError> {
        self.claims_work()?;
        self.inner.delete(key, expected).await
    }
}
