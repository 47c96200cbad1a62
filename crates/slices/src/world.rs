//! What all ranges of a node share: its name and boot, its own ledger, the ways to the cluster's objects.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use berth_core::slice::NodeName;
use berth_core::{Change, Pool};
use berth_ledger::kube::slicepools::SlicePools;
use berth_ledger::kube::{Connection, SliceObject};
use berth_ledger::{KubeLedger, LedgerError, PoolKey, SharedLedger};
use tokio::sync::{Mutex as AsyncMutex, OnceCell};
use tokio::time::Instant;

use crate::busy::Busy;
use crate::metrics::SliceMetrics;
use crate::plain::PlainPools;
use crate::pool::SlicePool;
use crate::proofs::Ranges;
use crate::settings::SliceSettings;

pub(crate) struct World {
    pub node: NodeName,
    pub boot: String,
    pub local: SharedLedger,
    pub cluster: Arc<KubeLedger>,
    /// Writes the pools that this node publishes, and says so on them.
    pub views: KubeLedger,
    /// What a controller assigns, and the plain pools beside it.
    pub assigned: SlicePools,
    pub plain: PlainPools,
    /// Whether a reservation may be waiting for the API server.
    pub pending: AtomicBool,
    /// Since when one of them is another's.
    pub contested: Mutex<Option<Instant>>,
    /// Brings entries back into plain pools.
    pub moves: KubeLedger,
    pub connection: Connection,
    pub settings: SliceSettings,
    pub metrics: SliceMetrics,
    pub node_uid: OnceCell<String>,
    /// What this node keeps of each range.
    pub pools: Mutex<Vec<Weak<SlicePool>>>,
    /// Held by whoever takes on a slice that is assigned: by one range at a time.
    pub assigning: AsyncMutex<()>,
    /// How the API server bears what is asked of it.
    pub busy: Busy,
    /// Ranges of elastic slices that overlap no other network's, once somebody asked.
    pub proved: Mutex<Option<Arc<Ranges>>>,
    /// What was claimed in this node's name when this process began: one list, whatever the number of its networks.
    pub found: OnceCell<Vec<SliceObject>>,
}

impl World {
    /// Changes a pool of the node's own ledger by what `plan` makes of it, until nobody comes in between.
    pub async fn amend(
        &self,
        key: &PoolKey,
        plan: impl Fn(&Pool) -> Vec<Change>,
    ) -> Result<Vec<Change>, LedgerError> {
        loop {
            let now = self.local.load(key).await?;
            let changes = plan(&now.pool);
            if changes.is_empty() {
                return Ok(changes);
            }
            match self.local.commit(key, &now.version, &changes).await {
                Ok(_) => return Ok(changes),
                Err(error) if error.needs_reload() => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// What a panic left behind is as good as before: no lock here is held over a step that can fail halfway.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
