//! One ledger for a node of a cluster: pools of its slices in its own file, everything else in the cluster.
//!
//! The pool's name tells which: nothing has to be known of a network to find an address of it, so a collector
//! that starts before the first call finds everything.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use berth_core::{Change, Record};
use berth_ledger::{
    ClaimKey, ClaimKind, Ledger, LedgerError, PoolKey, SharedLedger, Snapshot, Turn, Version,
};
use futures::StreamExt;
use futures::stream::BoxStream;

use crate::pool::SlicePool;
use crate::sliced::POOLS;

type Find = Box<dyn Fn(&PoolKey) -> Option<Arc<SlicePool>> + Send + Sync>;

pub(crate) struct NodeLedger {
    local: SharedLedger,
    cluster: SharedLedger,
    /// The keeper of a pool of slices: says what may be given, and publishes what was.
    keeper: Find,
}

impl fmt::Debug for NodeLedger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeLedger")
            .field("local", &self.local)
            .field("cluster", &self.cluster)
            .finish_non_exhaustive()
    }
}

impl NodeLedger {
    pub fn new(local: SharedLedger, cluster: SharedLedger, keeper: Find) -> Self {
        Self {
            local,
            cluster,
            keeper,
        }
    }

    fn store(&self, pool: &PoolKey) -> &SharedLedger {
        if pool.name.starts_with(POOLS) {
            &self.local
        } else {
            &self.cluster
        }
    }
}

#[async_trait]
impl Ledger for NodeLedger {
    async fn load(&self, pool: &PoolKey) -> Result<Snapshot, LedgerError> {
        self.store(pool).load(pool).await
    }

    async fn refresh(
        &self,
        pool: &PoolKey,
        base: &Version,
    ) -> Result<Option<Snapshot>, LedgerError> {
        self.store(pool).refresh(pool, base).await
    }

    async fn commit(
        &self,
        pool: &PoolKey,
        base: &Version,
        changes: &[Change],
    ) -> Result<Version, LedgerError> {
        let keeper = pool.name.starts_with(POOLS).then(|| (self.keeper)(pool));
        let Some(keeper) = keeper.flatten() else {
            return self.store(pool).commit(pool, base, changes).await;
        };
        let version = {
            // A slice that was lost or given back since this was planned: planned again (I8).
            let _giving = keeper.giving.read().await;
            keeper.check_given(changes)?;
            self.local.commit(pool, base, changes).await
        };
        // Told of a failed one too: its outcome may be unknown.
        keeper.touch();
        version
    }

    async fn turn(&self, pool: &PoolKey, base: &Version) -> Turn {
        self.store(pool).turn(pool, base).await
    }

    fn pass_turn(&self, pool: &PoolKey) {
        self.store(pool).pass_turn(pool);
    }

    fn in_doubt(&self, pool: &PoolKey) -> Duration {
        self.store(pool).in_doubt(pool)
    }

    async fn news(
        &self,
        pool: &PoolKey,
    ) -> Result<BoxStream<'static, Result<Version, LedgerError>>, LedgerError> {
        if pool.name.starts_with(POOLS) {
            return Ok(futures::stream::pending().boxed());
        }
        self.cluster.news(pool).await
    }

    async fn watch(
        &self,
        pool: &PoolKey,
    ) -> Result<BoxStream<'static, Result<Snapshot, LedgerError>>, LedgerError> {
        if pool.name.starts_with(POOLS) {
            // Only this node writes it: a copy that turns out to be old is loaded again.
            return Ok(futures::stream::pending().boxed());
        }
        self.cluster.watch(pool).await
    }

    async fn pools(&self) -> Result<Vec<PoolKey>, LedgerError> {
        self.cluster.pools().await
    }

    async fn create(&self, key: &ClaimKey, record: &Record) -> Result<(), LedgerError> {
        self.cluster.create(key, record).await
    }

    async fn remove(&self, key: &ClaimKey, expected: &Record) -> Result<(), LedgerError> {
        self.cluster.remove(key, expected).await
    }

    async fn claim(&self, key: &ClaimKey) -> Result<Option<Record>, LedgerError> {
        self.cluster.claim(key).await
    }

    async fn claims(&self, kind: ClaimKind) -> Result<Vec<(ClaimKey, Record)>, LedgerError> {
        self.cluster.claims(kind).await
    }

    async fn views(&self) -> Result<BTreeSet<String>, LedgerError> {
        self.cluster.views().await
    }
}
