//! Where pools are kept, as far as the front needs to know.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use berth_cni::CniError;
use berth_core::{Address, Answer, Handle, Record, Request};
use berth_desk::{Desk, DeskError, DeskMetrics, DeskSettings, Desks, LeaderDesk};
use berth_ledger::{LedgerError, PoolKey, SharedRecordLedger, Snapshot};
use berth_slices::sliced::is_sliced;
use berth_slices::{PlainPools, Slices};

use crate::config::PodNetwork;
use crate::journal::Journal;
use crate::reservation_hints::ReservationHints;
use crate::sticky::Sticky;
use berth_networks::range_policy::Policies;

/// Finds the store that keeps a network's pools.
#[async_trait]
pub trait Stores: fmt::Debug + Send + Sync + 'static {
    async fn of(&self, network: &PodNetwork) -> Result<Arc<Store>, CniError>;
}

/// A front that has one store for everything.
#[async_trait]
impl Stores for Arc<Store> {
    async fn of(&self, _network: &PodNetwork) -> Result<Arc<Store>, CniError> {
        Ok(Arc::clone(self))
    }
}

/// A ledger with its desks.
#[derive(Debug)]
pub struct Store {
    pub(crate) ledger: SharedRecordLedger,
    desks: Desks,
    /// Whether owners are the pods of a cluster, or containers of this machine alone.
    pub(crate) in_cluster: bool,
    /// Of a process that serves one call: another process renews its token.
    pub(crate) once: bool,
    /// What this node holds in a cluster's pools.
    pub(crate) journal: Option<Arc<Journal>>,
    /// Who keeps addresses beyond their pods; none where no API server is known.
    pub(crate) sticky: Option<Sticky>,
    /// Addresses that were reserved by others a moment ago.
    pub(crate) reservation_hints: ReservationHints,
    /// This node's slices of the cluster's networks: no other node is asked for their pools.
    pub(crate) slices: Option<Slices>,
    /// Plain pools that may have been closed while slices of their ranges were assigned.
    pub(crate) plain: Option<PlainPools>,
    /// Which namespaces may use which ranges; none where no cluster says so.
    pub(crate) policies: Option<Arc<Policies>>,
}

impl Store {
    /// Pools of this machine alone: no cluster, one file.
    pub fn standalone(ledger: SharedRecordLedger, metrics: DeskMetrics) -> Store {
        Store::new(ledger, DeskSettings::default(), metrics, false)
    }

    /// Pools that the nodes of a cluster share. Their copies follow the ledger's watch: other nodes write too.
    pub fn cluster(ledger: SharedRecordLedger, metrics: DeskMetrics) -> Store {
        let settings = DeskSettings {
            watch: true,
            hold_back: true,
            ..DeskSettings::default()
        };
        Store::new(ledger, settings, metrics, true)
    }

    /// The same for a process that serves one call: following a watch would cost more than it saves.
    pub fn cluster_once(ledger: SharedRecordLedger, metrics: DeskMetrics) -> Store {
        let settings = DeskSettings {
            hold_back: true,
            ..DeskSettings::default()
        };
        let mut store = Store::new(ledger, settings, metrics, true);
        store.once = true;
        store
    }

    /// The same where the requests of all nodes go to the leader's desk. What that does not answer is served here, from a
    /// pool that is read at that time: a copy that follows every write of a busy pool would cost more than it saves.
    pub fn gathered(
        ledger: SharedRecordLedger,
        metrics: DeskMetrics,
        leader: Arc<dyn LeaderDesk>,
    ) -> Store {
        let settings = DeskSettings {
            leader: Some(leader),
            hold_back: true,
            ..DeskSettings::default()
        };
        Store::new(ledger, settings, metrics, true)
    }

    fn new(
        ledger: SharedRecordLedger,
        settings: DeskSettings,
        metrics: DeskMetrics,
        in_cluster: bool,
    ) -> Store {
        Store {
            desks: Desks::new(SharedRecordLedger::clone(&ledger), settings, metrics),
            ledger,
            in_cluster,
            once: false,
            journal: None,
            sticky: None,
            reservation_hints: ReservationHints::default(),
            slices: None,
            plain: None,
            policies: None,
        }
    }

    /// Allocates only what the cluster's RangePolicy allows.
    #[must_use]
    pub fn with_policies(mut self, policies: Arc<Policies>) -> Store {
        self.policies = Some(policies);
        self
    }

    /// Opens plain pools again that were closed while slices of their ranges were assigned.
    #[must_use]
    pub fn with_plain_pools(mut self, plain: PlainPools) -> Store {
        self.plain = Some(plain);
        self
    }

    /// Serves sliced networks from this node's slices. The store's ledger must be theirs.
    #[must_use]
    pub fn with_slices(mut self, slices: Slices) -> Store {
        self.desks = self.desks.with_local(is_sliced);
        self.slices = Some(slices);
        self
    }

    /// Keeps a journal of what this node allocates: CNI GC works from it in a cluster.
    #[must_use]
    pub fn with_journal(mut self, journal: Arc<Journal>) -> Store {
        self.journal = Some(journal);
        self
    }

    /// Minds the cluster's StatefulSets and IPAMClaims, for networks that ask for it.
    #[must_use]
    pub fn with_sticky(mut self, sticky: Sticky) -> Store {
        self.sticky = Some(sticky);
        self
    }

    pub fn slices(&self) -> Option<&Slices> {
        self.slices.as_ref()
    }

    pub fn ledger(&self) -> &SharedRecordLedger {
        &self.ledger
    }

    /// Puts a request to the pool's desk; the answer is durable (I2).
    pub(crate) async fn ask(&self, pool: &PoolKey, request: Request) -> Result<Answer, DeskError> {
        self.desk(pool).submit(request).await
    }

    fn desk(&self, pool: &PoolKey) -> Desk {
        self.desks.of(pool)
    }

    /// What that container holds in the pool, when nothing that was started here for it can still change that: an ADD that
    /// was given up may have a commit under way.
    pub(crate) async fn find(
        &self,
        pool: &PoolKey,
        handle: &Handle,
    ) -> Result<Vec<(Address, Record)>, DeskError> {
        self.desk(pool).find(handle).await
    }

    /// The pool as it stands durably.
    pub(crate) async fn load(&self, pool: &PoolKey) -> Result<Snapshot, LedgerError> {
        self.ledger.load(pool).await
    }
}
