//! A ledger that delegates most calls to another one.
//!
//! An implementation of [`Layer`] has only the calls that differ. All others go to the ledger below, also those that
//! [`Ledger`] has defaults for (`refresh`, `contention`, `views`).

use std::collections::BTreeMap;
use std::fmt;

use async_trait::async_trait;
use berth_core::{Change, Record};
use futures::stream::BoxStream;

use crate::{
    ClaimKey, ClaimKind, Contention, Guard, Ledger, LedgerError, PoolKey, Snapshot, Version,
    Visited,
};

/// Every [`Layer`] is a [`Ledger`]; the calls mean what they mean there.
#[async_trait]
pub trait Layer: fmt::Debug + Send + Sync + 'static {
    /// Who a call goes to: of this pool, or of lists and claims by name.
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

    async fn commit_guarded(
        &self,
        pool: &PoolKey,
        base: &Version,
        changes: &[Change],
        guard: Option<&Guard>,
    ) -> Result<Version, LedgerError> {
        let below = self.below(Some(pool));
        below.commit_guarded(pool, base, changes, guard).await
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

    async fn create(&self, key: &ClaimKey, record: &Record) -> Result<(), LedgerError> {
        self.below(None).create(key, record).await
    }

    async fn remove(&self, key: &ClaimKey, expected: &Record) -> Result<(), LedgerError> {
        self.below(None).remove(key, expected).await
    }

    async fn pass(
        &self,
        key: &ClaimKey,
        expected: &Record,
        record: &Record,
    ) -> Result<(), LedgerError> {
        self.below(None).pass(key, expected, record).await
    }

    async fn claim(&self, key: &ClaimKey) -> Result<Option<Record>, LedgerError> {
        self.below(None).claim(key).await
    }

    async fn claims(&self, kind: ClaimKind) -> Result<Vec<(ClaimKey, Record)>, LedgerError> {
        self.below(None).claims(kind).await
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

    async fn visit_claims(
        &self,
        kind: ClaimKind,
        visit: &mut (dyn FnMut(ClaimKey, Record) + Send),
    ) -> Result<(), LedgerError> {
        self.below(None).visit_claims(kind, visit).await
    }

    async fn views(&self) -> Result<BTreeMap<String, String>, LedgerError> {
        self.below(None).views().await
    }
}

#[async_trait]
impl<L: Layer> Ledger for L {
    async fn load(&self, pool: &PoolKey) -> Result<Snapshot, LedgerError> {
        Layer::load(self, pool).await
    }

    async fn refresh(
        &self,
        pool: &PoolKey,
        base: &Version,
    ) -> Result<Option<Snapshot>, LedgerError> {
        Layer::refresh(self, pool, base).await
    }

    async fn commit_guarded(
        &self,
        pool: &PoolKey,
        base: &Version,
        changes: &[Change],
        guard: Option<&Guard>,
    ) -> Result<Version, LedgerError> {
        Layer::commit_guarded(self, pool, base, changes, guard).await
    }

    fn contention(&self, pool: &PoolKey) -> Option<&dyn Contention> {
        Layer::contention(self, pool)
    }

    async fn watch_versions(
        &self,
        pool: &PoolKey,
    ) -> Result<BoxStream<'static, Result<Version, LedgerError>>, LedgerError> {
        Layer::watch_versions(self, pool).await
    }

    async fn pools(&self) -> Result<Vec<PoolKey>, LedgerError> {
        Layer::pools(self).await
    }

    async fn create(&self, key: &ClaimKey, record: &Record) -> Result<(), LedgerError> {
        Layer::create(self, key, record).await
    }

    async fn remove(&self, key: &ClaimKey, expected: &Record) -> Result<(), LedgerError> {
        Layer::remove(self, key, expected).await
    }

    async fn pass(
        &self,
        key: &ClaimKey,
        expected: &Record,
        record: &Record,
    ) -> Result<(), LedgerError> {
        Layer::pass(self, key, expected, record).await
    }

    async fn claim(&self, key: &ClaimKey) -> Result<Option<Record>, LedgerError> {
        Layer::claim(self, key).await
    }

    async fn claims(&self, kind: ClaimKind) -> Result<Vec<(ClaimKey, Record)>, LedgerError> {
        Layer::claims(self, kind).await
    }

    async fn peek(&self, pool: &PoolKey) -> Result<Snapshot, LedgerError> {
        Layer::peek(self, pool).await
    }

    async fn visit_pools(
        &self,
        visit: &mut (dyn FnMut(Visited) + Send),
    ) -> Result<(), LedgerError> {
        Layer::visit_pools(self, visit).await
    }

    async fn visit_claims(
        &self,
        kind: ClaimKind,
        visit: &mut (dyn FnMut(ClaimKey, Record) + Send),
    ) -> Result<(), LedgerError> {
        Layer::visit_claims(self, kind, visit).await
    }

    async fn views(&self) -> Result<BTreeMap<String, String>, LedgerError> {
        Layer::views(self).await
    }
}
