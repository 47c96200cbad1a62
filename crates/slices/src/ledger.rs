//! One ledger for a node of a cluster: pools of its slices in its own file, everything else in the cluster.
//!
//! The pool's name tells which: nothing has to be known of a network to find an address of it, so a collector
//! that starts before the first call finds everything.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use berth_core::Change;
use berth_ledger::{
    DelegatingLedger, DelegatingRecords, Guard, Ledger, LedgerError, PoolKey, Records,
    SharedLedger, SharedRecordLedger, Version,
};
use futures::StreamExt;
use futures::stream::BoxStream;

use crate::pool::SlicePool;
use crate::sliced::POOLS;

type Find = Box<dyn Fn(&PoolKey) -> Option<Arc<SlicePool>> + Send + Sync>;

pub(crate) struct NodeLedger {
    local: SharedLedger,
    cluster: SharedRecordLedger,
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
    pub fn new(local: SharedLedger, cluster: SharedRecordLedger, keeper: Find) -> Self {
        Self {
            local,
            cluster,
            keeper,
        }
    }
}

#[async_trait]
impl DelegatingLedger for NodeLedger {
    fn below(&self, pool: Option<&PoolKey>) -> &dyn Ledger {
        match pool {
            Some(pool) if pool.name.starts_with(POOLS) => &*self.local,
            _ => &*self.cluster,
        }
    }

    /// Pools of slices have a guard already: this ledger's own.
    async fn commit(
        &self,
        pool: &PoolKey,
        base: &Version,
        changes: &[Change],
        guard: Option<&Guard>,
    ) -> Result<Version, LedgerError> {
        let keeper = pool.name.starts_with(POOLS).then(|| (self.keeper)(pool));
        let Some(keeper) = keeper.flatten() else {
            let below = self.below(Some(pool));
            return below.commit(pool, base, changes, guard).await;
        };
        LedgerError::refuse_guard(pool, guard)?;
        let version = {
            // Nothing is given from a slice that was lost or given back since this was planned (I8), by whichever process.
            let _giving = keeper.giving.read().await;
            loop {
                let guard = keeper.check_given(changes)?;
                let made = self.local.commit(pool, base, changes, Some(&guard));
                match made.await {
                    Err(error) if error.is_of(&guard) => keeper.reread_held().await?,
                    made => break made,
                }
            }
        };
        // Told of a failed one too: its outcome may be unknown.
        keeper.touch();
        version
    }

    async fn watch_versions(
        &self,
        pool: &PoolKey,
    ) -> Result<BoxStream<'static, Result<Version, LedgerError>>, LedgerError> {
        if pool.name.starts_with(POOLS) {
            // Only this node writes it: a copy that turns out to be old is loaded again.
            return Ok(futures::stream::pending().boxed());
        }
        self.cluster.watch_versions(pool).await
    }
}

#[async_trait]
impl DelegatingRecords for NodeLedger {
    fn records_below(&self) -> &dyn Records {
        &*self.cluster
    }
}

#[cfg(test)]
mod tests;
