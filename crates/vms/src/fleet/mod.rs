//! All pools of VMs of one process, by name.
//!
//! Guarantees: a pool can grow, shrink, appear and be closed while requests run; a VM that moves from one pool to
//! another is allocated by the new one only after the old one has released it (I1). A pool that was removed from the
//! settings allocates nothing more and is closed when all its VMs are released.

mod requests;
mod resize;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use berth_desk::{DeskMetrics, DeskSettings, Desks};
use berth_node::BootMarker;
use parking_lot::{Mutex, RwLock};
use tokio_util::sync::CancellationToken;

use crate::metrics::VmMetrics;
use crate::pool::{PoolError, Recovered, Recovery, Rules, Status, Store, VmPool};
use crate::scaling::Scaler;
use crate::settings::Settings;
use crate::shards::{Shards, pool_of};
use crate::vm::Vms;
use resize::Wanted;

/// The interval of periodic work: gauges, VMs that wait to join.
const ROUND: Duration = Duration::from_secs(10);

/// The pools. Cheap to clone.
#[derive(Clone)]
pub struct Fleet {
    inner: Arc<Inner>,
}

struct Inner {
    store: Store,
    desks: Desks,
    vms: Arc<dyn Vms>,
    rules: Arc<Rules>,
    metrics: VmMetrics,
    /// By name; a pool over several ConfigMaps has one entry for each.
    pools: RwLock<BTreeMap<String, VmPool>>,
    shards: Shards,
    configmap_count: u32,
    scaler: Option<Scaler>,
    wanted: Mutex<Wanted>,
    /// The recovery of each pool at the start of the process; none before [`Fleet::start_with`].
    at_start: Mutex<Option<Recovery>>,
    /// Pools that serve: their members are known, and their recovery at the start is done.
    started: Mutex<BTreeSet<String>>,
    /// Why no request is served yet, until the state was read for the first time.
    closed: Mutex<Option<String>>,
    /// Sizes are changed one at a time.
    resizing: tokio::sync::Mutex<()>,
}

impl std::fmt::Debug for Fleet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fleet")
            .field("pools", &self.names())
            .finish()
    }
}

impl Fleet {
    /// Starts with no pool: [`Fleet::resize`] opens them.
    pub fn new(
        settings: &Settings,
        store: Store,
        vms: Arc<dyn Vms>,
        metrics: VmMetrics,
        desk_metrics: DeskMetrics,
    ) -> Self {
        let desk = DeskSettings {
            retry: settings.retry,
            // A watch would send every write, whole, to every process: that costs more than an occasional read.
            watch: false,
            ..DeskSettings::default()
        };
        let rules = Rules {
            node: settings.node.clone(),
            order: settings.order,
            readiness: settings.readiness,
            dead_for: settings.dead_for,
            allocate_within: settings.allocate_within,
            operation: settings.retry.timeout,
            cleanup: settings.cleanup.clone(),
        };
        let inner = Inner {
            desks: Desks::new(store.ledger(), desk, desk_metrics),
            store,
            vms,
            rules: Arc::new(rules),
            metrics,
            pools: RwLock::default(),
            shards: Shards::default(),
            configmap_count: settings.configmap_count,
            scaler: settings.scaling.clone().map(Scaler::new),
            wanted: Mutex::default(),
            at_start: Mutex::default(),
            started: Mutex::default(),
            closed: Mutex::default(),
            resizing: tokio::sync::Mutex::default(),
        };
        Self {
            inner: Arc::new(inner),
        }
    }

    fn pools(&self) -> Vec<VmPool> {
        let pools = self.inner.pools.read();
        pools.values().cloned().collect()
    }

    pub fn names(&self) -> Vec<String> {
        let pools = self.inner.pools.read();
        let names: BTreeSet<&str> = pools.keys().map(|name| pool_of(name)).collect();
        names.into_iter().map(Into::into).collect()
    }

    /// Refuses every request with this reason, until [`Fleet::reopen`].
    pub(crate) fn close(&self, why: String) {
        *self.inner.closed.lock() = Some(why);
    }

    pub(crate) fn reopen(&self) {
        *self.inner.closed.lock() = None;
    }

    fn check_open(&self) -> Result<(), PoolError> {
        match &*self.inner.closed.lock() {
            Some(why) => Err(PoolError::Starting { why: why.clone() }),
            None => Ok(()),
        }
    }

    /// The pool of this name, with all its ConfigMaps; without a name, the default pool or the only one.
    fn pool(&self, name: Option<&str>) -> Result<Vec<VmPool>, PoolError> {
        self.check_open()?;
        let name = self.name_of(name);
        let mut found = self.pools();
        found.retain(|pool| pool_of(pool.name()) == name && !name.contains('/'));
        if found.is_empty() {
            let known = self.names();
            return Err(PoolError::UnknownPool { name, known });
        }
        self.check_started(&found)?;
        Ok(found)
    }

    /// The pools of a request: all of them if it names none.
    fn asked(&self, name: Option<&str>) -> Result<Vec<VmPool>, PoolError> {
        self.check_open()?;
        match name {
            Some(_) => self.pool(name),
            None => Ok(self.pools()),
        }
    }

    pub async fn recover(
        &self,
        name: Option<&str>,
        take_back: bool,
    ) -> Result<Vec<Recovered>, PoolError> {
        let recovery = match take_back {
            true => Recovery::TakeBack,
            false => Recovery::Resume,
        };
        recover(self.asked(name)?, recovery).await
    }

    /// Recovers each pool like this when it is first opened, before it serves.
    pub fn start_with(&self, recovery: Recovery) {
        *self.inner.at_start.lock() = Some(recovery);
    }

    /// Recovers all pools now.
    pub async fn recover_all(&self, recovery: Recovery) -> Result<Vec<Recovered>, PoolError> {
        recover(self.pools(), recovery).await
    }

    /// Records the present boot, unless a pool is still to be recovered, or VMs of an unknown boot are in use: those
    /// stay in doubt, also after a restart.
    pub(crate) fn note_boot(&self, boot: &BootMarker) {
        let is_done = self.inner.wanted.lock().is_done();
        if is_done
            && !self.pools().iter().any(VmPool::has_unknown_boot)
            && let Err(error) = boot.record()
        {
            tracing::warn!(%error, "the node's boot can't be recorded: a reboot will not be noticed");
        }
    }

    /// Whether every pool of the settings is open, and its state exists and can be read.
    pub async fn ready(&self) -> Result<(), PoolError> {
        self.check_open()?;
        if let Some(why) = self.inner.wanted.lock().failed() {
            return Err(PoolError::Starting { why: why.into() });
        }
        for pool in self.pools() {
            pool.check_state().await?;
        }
        Ok(())
    }

    /// The periodic work of all pools. A pool that can't be read does not delay the others.
    pub async fn maintain(&self) -> Result<(), PoolError> {
        let mut outcome = Ok(());
        for pool in self.pools() {
            let maintained = async {
                pool.maintain().await?;
                pool.status().await.map(drop)
            };
            outcome = outcome.and(maintained.await);
        }
        outcome
    }

    /// Does the periodic work, updates the gauges and adds VMs that wait to join, until `end`; then stops the cleanups,
    /// which the next start resumes.
    pub async fn run(self, boot: BootMarker, end: CancellationToken) {
        while end
            .run_until_cancelled(tokio::time::sleep(ROUND))
            .await
            .is_some()
        {
            let wanted = self.inner.wanted.lock().to_do();
            if let Some(wanted) = wanted
                && let Err(error) = self.resize(&wanted).await
            {
                tracing::warn!(%error, "the pools could not be resized yet");
            }
            if let Err(error) = self.maintain().await {
                tracing::warn!(%error, "the periodic work of the VM pools failed; it is tried again");
            }
            if let Some(scaler) = &self.inner.scaler
                && let Ok(all) = self.status(None).await
            {
                self.scale(scaler, all).await;
            }
            self.note_boot(&boot);
        }
        for pool in self.pools() {
            pool.stop_cleaning();
        }
    }
}

impl Fleet {
    /// Reports the pools that passed a water mark.
    async fn scale(&self, scaler: &Scaler, all: Vec<Status>) {
        let wanted = self.inner.wanted.lock().pools.clone();
        for status in all {
            let settings = wanted.iter().find(|pool| pool.name == status.pool);
            if let Some(settings) = settings {
                let key = self.inner.store.key(settings);
                let node = &self.inner.rules.node;
                scaler
                    .report_if_due(&self.inner.store, &key, &status, node)
                    .await;
            }
        }
    }
}

async fn recover(pools: Vec<VmPool>, recovery: Recovery) -> Result<Vec<Recovered>, PoolError> {
    let mut all = Vec::new();
    for pool in pools {
        all.push(pool.recover(recovery).await?);
    }
    Ok(all)
}
