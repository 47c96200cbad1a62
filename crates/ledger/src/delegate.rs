//! A ledger that delegates most calls to another one; the same for named records.
//!
//! An implementation of [`DelegatingLedger`] has only the calls that differ. All others go to the ledger below, also those that
//! [`Ledger`] has defaults for (`refresh`, `contention`, `published_pools`).

use std::collections::BTreeMap;
use std::fmt;

use async_trait::async_trait;
use berth_core::{Change, Record};
use futures::stream::BoxStream;

use crate::{
    ClaimKey, ClaimKind, Contention, Guard, Ledger, LedgerError, PoolKey, Records, Snapshot,
    Version, Visited,
};

/// Every [`DelegatingLedger`] is a [`Ledger`]; the calls mean what they mean there.
#[async_trait]
pub trait DelegatingLedger: fmt::Debug + Send + Sync + 'static {
    /// Where a call goes to: of this pool, or of the list of pools.
    fn below(&self, pool: Option<&PoolKey>) -> &dyn Ledger;

    async fn load(&self, pool: &PoolKey) -> Result<Snapshot, LedgerError> {
        self.below(Some(pool)).load(pool).await
    }

    async fn refresh(
        &self,
        pool: &PoolKey,
        base: &Version,
    ) -> Result<Option<Snapshot>, LedgerError> {
        self.below(Some(pool)).refresh(pool, base).await
    }

    async fn commit(
        &self,
        pool: &PoolKey,
        base: &Version,
        changes: &[Change],
        guard: Option<&Guard>,
    ) -> Result<Version, LedgerError> {
        let below = self.below(Some(pool));
        below.commit(pool, base, changes, guard).await
    }

    fn contention(&self, pool: &PoolKey) -> Option<&dyn Contention> {
        self.below(Some(pool)).contention(pool)
    }

    async fn watch_versions(
        &self,
        pool: &PoolKey,
    ) -> Result<BoxStream<'static, Result<Version, LedgerError>>, LedgerError> {
        self.below(Some(pool)).watch_versions(pool).await
    }

    async fn pools(&self) -> Result<Vec<PoolKey>, LedgerError> {
        self.below(None).pools().await
    }

    async fn peek(&self, pool: &PoolKey) -> Result<Snapshot, LedgerError> {
        self.below(Some(pool)).peek(pool).await
    }

    async fn visit_pools(
        &self,
        visit: &mut (dyn FnMut(Visited) + Send),
    ) -> Result<(), LedgerError> {
        self.below(None).visit_pools(visit).await
    }

    async fn published_pools(&self) -> Result<BTreeMap<String, String>, LedgerError> {
        self.below(None).published_pools().await
    }
}

#[async_trait]
impl<D: DelegatingLedger> Ledger for D {
    async fn load(&self, pool: &PoolKey) -> Result<Snapshot, LedgerError> {
        DelegatingLedger::load(self, pool).await
    }

    async fn refresh(
        &self,
        pool: &PoolKey,
        base: &Version,
    ) -> Result<Option<Snapshot>, LedgerError> {
        DelegatingLedger::refresh(self, pool, base).await
    }

    async fn commit(
        &self,
        pool: &PoolKey,
        base: &Version,
        changes: &[Change],
        guard: Option<&Guard>,
    ) -> Result<Version, LedgerError> {
        DelegatingLedger::commit(self, pool, base, changes, guard).await
    }

    fn contention(&self, pool: &PoolKey) -> Option<&dyn Contention> {
        DelegatingLedger::contention(self, pool)
    }

    async fn watch_versions(
        &self,
        pool: &PoolKey,
    ) -> Result<BoxStream<'static, Result<Version, LedgerError>>, LedgerError> {
        DelegatingLedger::watch_versions(self, pool).await
    }

    async fn pools(&self) -> Result<Vec<PoolKey>, LedgerError> {
        DelegatingLedger::pools(self).await
    }

    async fn peek(&self, pool: &PoolKey) -> Result<Snapshot, LedgerError> {
        DelegatingLedger::peek(self, pool).await
    }

    async fn visit_pools(
        &self,
        visit: &mut (dyn FnMut(Visited) + Send),
    ) -> Result<(), LedgerError> {
        DelegatingLedger::visit_pools(self, visit).await
    }

    async fn published_pools(&self) -> Result<BTreeMap<String, String>, LedgerError> {
        DelegatingLedger::published_pools(self).await
    }
}

/// Every [`DelegatingRecords`] is a [`Records`]; the calls mean what they mean there.
#[async_trait]
pub trait DelegatingRecords: fmt::Debug + Send + Sync + 'static {
    /// Where the calls go to.
    fn records_below(&self) -> &dyn Records;

    async fn create(&self, key: &ClaimKey, record: &Record) -> Result<(), LedgerError> {
        self.records_below().create(key, record).await
    }

    async fn transfer(
        &self,
        key: &ClaimKey,
        expected: &Record,
        record: &Record,
    ) -> Result<(), LedgerError> {
        self.records_below().transfer(key, expected, record).await
    }

    async fn delete(&self, key: &ClaimKey, expected: &Record) -> Result<(), LedgerError> {
        self.records_below().delete(key, expected).await
    }

    async fn get(&self, key: &ClaimKey) -> Result<Option<Record>, LedgerError> {
        self.records_below().get(key).await
    }
}

#[async_trait]
impl<D: DelegatingRecords> Records for D {
    async fn create(&self, key: &ClaimKey, record: &Record) -> Result<(), LedgerError> {
        DelegatingRecords::create(self, key, record).await
    }

    async fn transfer(
        &self,
        key: &ClaimKey,
        expected: &Record,
        record: &Record,
    ) -> Result<(), LedgerError> {
        DelegatingRecords::transfer(self, key, expected, record).await
    }

    async fn delete(&self, key: &ClaimKey, expected: &Record) -> Result<(), LedgerError> {
        DelegatingRecords::delete(self, key, expected).await
    }

    async fn get(&self, key: &ClaimKey) -> Result<Option<Record>, LedgerError> {
        DelegatingRecords::get(self, key).await
    }

    async fn visit(
        &self,
        kind: ClaimKind,
        visit: &mut (dyn FnMut(ClaimKey, Record) + Send),
    ) -> Result<(), LedgerError> {
        self.records_below().visit(kind, visit).await
    }
}
