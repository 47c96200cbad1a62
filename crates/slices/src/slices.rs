//! What the front asks: which slices may be given from now, and for more of them.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use berth_core::Prefix;
use berth_core::slice::NodeName;
use berth_ledger::kube::Connection;
use berth_ledger::{KubeLedger, LedgerError, SharedLedger};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::error::SliceError;
use crate::holdings::range_of;
use crate::ledger::NodeLedger;
use crate::metrics::SliceMetrics;
use crate::pool::{SlicePool, World};
use crate::settings::SliceSettings;
use crate::sliced::{self, Mode, Sliced};

/// What a node's slices need.
#[derive(Debug)]
pub struct Setup {
    pub connection: Connection,
    /// The node's own ledger.
    pub local: SharedLedger,
    pub node: String,
    pub boot: String,
    pub settings: SliceSettings,
    pub metrics: SliceMetrics,
    /// Where background work runs and what ends it; none in a process that serves one call.
    pub daemon: Option<(TaskTracker, CancellationToken)>,
}

/// The slices of one node in one cluster.
#[derive(Clone)]
pub struct Slices {
    inner: Arc<Inner>,
}

struct Inner {
    world: Arc<World>,
    ledger: SharedLedger,
    pools: Pools,
    daemon: Option<(TaskTracker, CancellationToken)>,
}

type Pools = Arc<Mutex<HashMap<String, Arc<SlicePool>>>>;

impl fmt::Debug for Slices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slices")
            .field("node", &self.inner.world.node)
            .finish_non_exhaustive()
    }
}

impl Slices {
    pub fn new(setup: Setup) -> Slices {
        let Setup {
            connection,
            local,
            node,
            boot,
            settings,
            metrics,
            daemon,
        } = setup;
        let cluster = Arc::new(KubeLedger::new(connection.clone()));
        let pools = Pools::default();
        let weak: Weak<_> = Arc::downgrade(&pools);
        let changed = move |key: &berth_ledger::PoolKey| {
            let Some(pools) = weak.upgrade() else {
                return;
            };
            let pools: Pools = pools;
            let pool = locked(&pools).get(&key.name).cloned();
            if let Some(pool) = pool {
                pool.touch();
            }
        };
        let ledger = NodeLedger::new(
            SharedLedger::clone(&local),
            Arc::clone(&cluster) as SharedLedger,
            Box::new(changed),
        );
        let world = World {
            views: KubeLedger::new(connection.clone()).publishing(&node),
            node: NodeName::new(node),
            boot,
            local,
            cluster,
            connection,
            settings,
            metrics,
        };
        Slices {
            inner: Arc::new(Inner {
                world: Arc::new(world),
                ledger: Arc::new(ledger),
                pools,
                daemon,
            }),
        }
    }

    /// Pools of slices in the node's own ledger, all others in the cluster's.
    pub fn ledger(&self) -> SharedLedger {
        SharedLedger::clone(&self.inner.ledger)
    }

    /// Brings what this node held when it last ran in line with the cluster, before anything is served. Without the
    /// API server that is left for later.
    pub async fn open(&self) -> Result<(), LedgerError> {
        for key in self.inner.world.local.pools().await? {
            if !key.name.starts_with(sliced::HOLDINGS) {
                continue;
            }
            let Some(of) = range_of(&self.inner.world.local, &key).await? else {
                continue;
            };
            if let Err(error) = self.pool(&Arc::new(of)).ready().await {
                tracing::warn!(pool = %key, %error, "slices are not confirmed yet");
            }
        }
        Ok(())
    }

    /// The slices that may be given from now; waits for the first one, if there is none.
    pub async fn active(&self, of: &Arc<Sliced>) -> Result<Vec<Prefix>, SliceError> {
        let pool = self.pool(of);
        pool.ready().await?;
        let active = pool.active();
        if !active.is_empty() {
            return Ok(active);
        }
        self.more(of, &[]).await
    }

    /// More than `had`, which turned out to be full.
    pub async fn more(&self, of: &Arc<Sliced>, had: &[Prefix]) -> Result<Vec<Prefix>, SliceError> {
        let pool = self.pool(of);
        let now = pool.active();
        if now.iter().any(|slice| !had.contains(slice)) {
            return Ok(now);
        }
        let world = &self.inner.world;
        match of.mode {
            Mode::Assigned => {
                let patience = if had.is_empty() {
                    world.settings.assign_wait
                } else {
                    std::time::Duration::ZERO
                };
                if !pool.await_assigned(of, had, patience).await? && had.is_empty() {
                    return Err(SliceError::Unassigned {
                        node: world.node.clone(),
                        range: of.range,
                        slice_pool: of.slice_pool.clone(),
                    });
                }
            }
            Mode::Elastic { .. } => {
                return Err(SliceError::NoSlice {
                    node: world.node.clone(),
                    range: of.range,
                    donors: 0,
                });
            }
        }
        Ok(pool.active())
    }

    /// Publishes what is not published yet: for a process that serves one call.
    pub async fn flush(&self) -> Result<(), SliceError> {
        let pools: Vec<Arc<SlicePool>> = locked(&self.inner.pools).values().cloned().collect();
        for pool in pools {
            pool.publish(false).await?;
        }
        Ok(())
    }

    /// Whether the node's own ledger has anything of the range: then a plain pool is not all that is held.
    pub async fn holds(&self, of: &Sliced) -> Result<bool, LedgerError> {
        let now = self.inner.world.local.load(&of.holdings()).await?;
        Ok(!now.pool.is_empty())
    }

    fn pool(&self, of: &Arc<Sliced>) -> Arc<SlicePool> {
        let mut pools = locked(&self.inner.pools);
        if let Some(pool) = pools.get(&of.key().name) {
            pool.renew(of);
            return Arc::clone(pool);
        }
        let pool = Arc::new(SlicePool::new(
            Arc::clone(&self.inner.world),
            Arc::clone(of),
        ));
        if let Some((tasks, stop)) = &self.inner.daemon {
            tasks.spawn(Arc::clone(&pool).keep(stop.clone()));
        }
        pools.insert(of.key().name, Arc::clone(&pool));
        pool
    }
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
