//! What all ranges of a node share: its name and boot, its own ledger, the ways to the cluster's objects.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::SystemTime;

use berth_core::slice::NodeName;
use berth_core::{Change, Moment, Pool, Prefix};
use berth_kube::Connection;
use berth_ledger::{Guard, LedgerError, PoolKey, SharedRecordLedger};
use berth_whereabouts::KubeLedger;
use berth_whereabouts::slicepools::SlicePools;
use berth_whereabouts::{FileMark, SliceObject};
use k8s_openapi::api::core::v1::Node;
use tokio::sync::{Mutex as AsyncMutex, OnceCell};
use tokio::time::Instant;

use crate::busy::Busy;
use crate::link::Link;
use crate::metrics::SliceMetrics;
use crate::outage::Outage;
use crate::plain::PlainPools;
use crate::pods::NodePods;
use crate::pool::SlicePool;
use crate::proofs::Ranges;
use crate::results::CachedResult;
use crate::settings::SliceSettings;

pub(crate) struct World {
    pub node: NodeName,
    pub boot: String,
    pub local: SharedRecordLedger,
    /// What claims and published pools of it are marked with.
    pub file: FileMark,
    /// Whether this process serves more than one call.
    pub is_daemon: bool,
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
    pub registration: Mutex<Option<Registration>>,
    /// What this node keeps of each range.
    pub pools: Mutex<Vec<Weak<SlicePool>>>,
    /// Held by whoever takes on a slice that is assigned: by one range at a time.
    pub assigning: AsyncMutex<()>,
    /// Held by whoever notes that something was given up.
    pub noting: AsyncMutex<()>,
    /// How the API server bears what is asked of it.
    pub busy: Busy,
    pub outage: Outage,
    pub link: Link,
    /// Ranges of elastic slices that overlap no other network's, once somebody asked.
    pub proved: Mutex<Option<Arc<Ranges>>>,
    /// What was claimed in this node's name when this process began: one list, whatever the number of its networks.
    pub found: OnceCell<Vec<SliceObject>>,
    /// This node's pods, and the runtime's results, as they were when this process began.
    pub first_pods: OnceCell<NodePods>,
    pub cached_results: OnceCell<Vec<CachedResult>>,
}

/// What a node's own object says of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Registration {
    pub uid: String,
    /// The place of its pod CIDR among all such: where a cluster cuts one for each node, no two nodes have the same.
    pub number: Option<u128>,
}

impl Registration {
    pub fn read(node: &Node) -> Self {
        let cidr = node.spec.as_ref().and_then(|spec| spec.pod_cidr.as_deref());
        let cidr: Option<Prefix> = cidr.and_then(|cidr| cidr.parse().ok());
        Self {
            uid: node.metadata.uid.clone().unwrap_or_default(),
            number: cidr.map(Prefix::ordinal),
        }
    }
}

impl World {
    /// Every range looks whether it has something to publish.
    pub fn kick_all(&self) {
        for pool in locked(&self.pools).iter().filter_map(Weak::upgrade) {
            pool.kick.notify_one();
        }
    }

    /// Changes a pool of the node's own ledger by what `plan` makes of it, until nobody comes in between.
    pub async fn amend(
        &self,
        key: &PoolKey,
        plan: impl Fn(&Pool) -> Vec<Change>,
    ) -> Result<Vec<Change>, LedgerError> {
        self.amend_as(key, None, plan).await
    }

    /// The same, if another pool is as it was read: else nothing, and an error of that guard.
    pub async fn amend_beside(
        &self,
        key: &PoolKey,
        guard: &Guard,
        plan: impl Fn(&Pool) -> Vec<Change>,
    ) -> Result<Vec<Change>, LedgerError> {
        self.amend_as(key, Some(guard), plan).await
    }

    async fn amend_as(
        &self,
        key: &PoolKey,
        guard: Option<&Guard>,
        plan: impl Fn(&Pool) -> Vec<Change>,
    ) -> Result<Vec<Change>, LedgerError> {
        let local = &self.local;
        loop {
            let now = local.load(key).await?;
            let changes = plan(&now.pool);
            if changes.is_empty() {
                return Ok(changes);
            }
            let made = local.commit(key, &now.version, &changes, guard);
            match made.await {
                Ok(_) => return Ok(changes),
                Err(error) if guard.is_some_and(|guard| error.is_of(guard)) => return Err(error),
                Err(error) if error.needs_reload() => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// The time that cooldowns are counted in.
pub(crate) fn now() -> Moment {
    let since = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    Moment(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// What a panic left behind is as good as before: no lock here is held over a step that can fail halfway.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pod_cidr_numbers_its_node() {
        let read = |spec| {
            let node = json!({ "metadata": { "name": "a", "uid": "u" }, "spec": spec });
            let node: Node = serde_json::from_value(node).unwrap();
            Registration::read(&node).number
        };
        let (first, next) = (
            read(json!({ "podCIDR": "10.244.0.0/24" })),
            read(json!({ "podCIDR": "10.244.1.0/24" })),
        );
        assert_eq!(next, first.map(|number| number + 1));
        assert_eq!(read(json!({})), None);
        assert_eq!(read(json!({ "podCIDR": "none" })), None);
    }
}
