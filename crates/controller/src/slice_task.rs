//! Node slices as a leader task: watches on every replica, one loop while leading.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use berth_collector::QuorumReader;
use berth_front::LeaderTask;
use berth_kube::Connection;
use berth_kube::election::Leadership;
use berth_ledger::PoolKey;
use berth_networks::range_policy::Policies;
use berth_whereabouts::KubeLedger;
use berth_whereabouts::slicepools::SlicePools;
use prometheus_client::registry::Registry;
use tokio::sync::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::deleted_leases;
use crate::events::Recorder;
use crate::leader_loop::LeaderLoop;
use crate::lost_nodes::LostClaims;
use crate::metrics::Metrics;
use crate::networks_configmap::NetworksConfigMap;
use crate::reconcile::{Ended, Reconciler};
use crate::usage::UsageReader;
use crate::watch_cache::WatchCache;

/// How slices are assigned.
#[derive(Clone, Debug)]
pub struct SliceTaskSettings {
    /// How long a node, or what a change would drop, must be unused before it is reclaimed (I4, I8).
    pub grace: Duration,
    /// How long to wait for further changes before a write.
    pub gather: Duration,
    /// How often everything is read again.
    pub resync: Duration,
    /// Where to search the flat file.
    pub flat_places: Vec<PathBuf>,
    /// Assume that definitions with their configuration on the nodes' disks use other ranges.
    pub unseen_is_apart: bool,
}

/// Assigns slices to nodes and reclaims them.
#[derive(Debug)]
pub struct SliceTask {
    connection: Connection,
    leadership: Leadership,
    flat_places: Vec<PathBuf>,
    pools: SlicePools,
    seen: Arc<WatchCache>,
    metrics: Metrics,
    /// Only the current term locks it.
    work: Mutex<LeaderLoop>,
}

impl SliceTask {
    pub fn new(
        connection: &Connection,
        leadership: &Leadership,
        settings: SliceTaskSettings,
    ) -> SliceTask {
        let (client, timeout) = (connection.client.clone(), connection.timeout);
        let (seen, metrics) = (Arc::<WatchCache>::default(), Metrics::default());
        let pools = SlicePools::new(connection);
        let work = LeaderLoop {
            seen: Arc::clone(&seen),
            reconciler: Reconciler {
                pools: pools.clone(),
                usage_reader: UsageReader {
                    reader: QuorumReader::new(connection),
                    ledger: KubeLedger::new(connection.clone()),
                },
                grace: settings.grace,
                metrics: metrics.clone(),
                ended: Ended::default(),
            },
            recorder: Recorder::new(client, leadership.identity(), timeout),
            networks: NetworksConfigMap::new(connection),
            gather: settings.gather,
            resync: settings.resync,
            unseen_is_apart: settings.unseen_is_apart,
            memories: BTreeMap::new(),
            claims: LostClaims::default(),
            sweep: false,
            started: Instant::now(),
        };
        SliceTask {
            connection: connection.clone(),
            leadership: leadership.clone(),
            flat_places: settings.flat_places,
            pools,
            seen,
            metrics,
            work: Mutex::new(work),
        }
    }

    /// Whether a network definition names that pool.
    pub fn defines(&self) -> impl Fn(&PoolKey) -> bool + Send + Sync + 'static {
        let seen = Arc::clone(&self.seen);
        move |pool| seen.defines(pool)
    }
}

#[async_trait]
impl LeaderTask for SliceTask {
    fn name(&self) -> &'static str {
        "slices"
    }

    fn register(&self, registry: &mut Registry) {
        self.metrics.register(registry);
    }

    fn ready(&self) -> Result<(), String> {
        match self.seen.is_complete() {
            true => Ok(()),
            false => Err(
                "nodes, network definitions, NodeSlicePools or the RangePolicy were not listed yet"
                    .to_owned(),
            ),
        }
    }

    /// Every replica watches, so that one that takes over knows the state.
    async fn follow(&self, stop: CancellationToken) {
        let (seen, client) = (&self.seen, &self.connection.client);
        let policies = Policies::new(&self.connection);
        let claims = KubeLedger::new(self.connection.clone());
        let watches = async {
            tokio::join!(
                seen.follow_policy(&policies),
                seen.follow_nodes(client.clone()),
                seen.follow_definitions(client.clone(), &self.flat_places),
                seen.follow_pools(&self.pools),
                deleted_leases::call_nodes(&claims, seen, &self.leadership),
            );
        };
        stop.run_until_cancelled(watches).await;
    }

    async fn lead(&self, term: CancellationToken) {
        self.work.lock().await.lead(&term).await;
    }
}
