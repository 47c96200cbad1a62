//! VM pools, each in one key of one ConfigMap, in the form that live clusters hold.
//!
//! Guarantees: a write goes under the resourceVersion that was read, so no other writer's change is
//! lost (I1); concurrent writers queue ([`crate::turns`]), so that each write succeeds; a state that can't be read, or is
//! suddenly gone, is an error and never an empty pool
//! (I5); a state that would not fit is refused before it is sent. When another writer was first, the
//! same changes are tried on the newer state as long as their preconditions hold there, without
//! planning again: that is what makes two writers of different addresses cheap.
//!
//! Does not keep cooldowns (the document has no place for them) and has no named records.

mod annotation;
mod conflict_log;
mod document;
mod field_names;
mod foreign_writes;
mod gojson;
mod object;
mod repair;
mod salvage;
mod set_aside;
mod state;
mod view;
mod write;

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use berth_core::{Address, Change};
use berth_kube::Verb;
use futures::StreamExt;
use futures::stream::BoxStream;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::PartialObjectMeta;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};
use parking_lot::Mutex;

use crate::{Contention, Guard, Ledger, LedgerError, PoolKey, Rejection, Snapshot, Turn, Version};

pub use document::{Allocation, Document, DocumentError};
pub use foreign_writes::ForeignWrites;
pub use object::{COMPONENT_LABEL, MAX_DATA_BYTES, STATE_KEY};
pub use repair::Repairs;
pub use salvage::{Salvage, salvage_of};
pub use state::attribute;

use crate::object::ETCD_TIMEOUT;
use object::{Room, Stored};
use state::{Members, Obstacle};
use view::View;

/// How long one commit is tried on newer and newer states, before it fails.
const PATIENCE: Duration = Duration::from_secs(10);

/// The pools of one namespace; a pool's name is its ConfigMap's.
pub struct ConfigMapLedger {
    api: Api<ConfigMap>,
    namespace: String,
    /// For one request to the API server.
    timeout: Duration,
    members: Mutex<BTreeMap<String, Members>>,
    /// What was last read or written: the base of the next commit.
    views: Mutex<BTreeMap<String, Arc<View>>>,
    /// The name of this process in the write queue.
    id: String,
    /// The node whose allocations are restored when another program erases them; empty: none.
    node: String,
    /// Whether a write that conflicted with another writer's is tried again.
    retries: u32,
}

impl std::fmt::Debug for ConfigMapLedger {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut debug = f.debug_struct("ConfigMapLedger");
        debug.field("namespace", &self.namespace).finish()
    }
}

/// The maps are whole whatever happened to another thread: every write to them is one step.
impl ConfigMapLedger {
    pub fn new(client: Client, namespace: impl Into<String>, timeout: Duration) -> Self {
        let namespace = namespace.into();
        Self {
            api: Api::namespaced(client, &namespace),
            namespace,
            timeout,
            members: Mutex::default(),
            views: Mutex::default(),
            id: format!("{:08x}", rand::random::<u32>()),
            node: String::new(),
            retries: 1,
        }
    }

    /// The node whose allocations this process keeps: what another program erases of them is restored.
    #[must_use]
    pub fn of_node(mut self, node: impl Into<String>) -> Self {
        self.node = node.into();
        self
    }

    /// With 0 a write that conflicts with another writer's fails.
    #[must_use]
    pub const fn with_retries(mut self, retries: u32) -> Self {
        self.retries = retries;
        self
    }

    /// The addresses that the settings list for the pool now, in their order. Members that the
    /// document does not mention are free from now on; addresses that are no members are not
    /// allocated any more, and stay with their owners.
    pub fn set_members(&self, pool: &PoolKey, addresses: &[Address]) {
        let mut places = BTreeMap::new();
        for (place, address) in addresses.iter().enumerate() {
            places.entry(*address).or_insert(place);
        }
        self.members.lock().insert(pool.name.clone(), Some(places));
    }

    /// Rebuilds the free list as the members in their order without those in use, and creates the
    /// state where there is none. Nothing in use is touched.
    pub async fn repair(&self, pool: &PoolKey) -> Result<Repairs, LedgerError> {
        let members = self.members(pool);
        let mut repairs = Repairs::default();
        self.edit(pool, None, 1, Room::None, &mut |stored, document| {
            repairs = repair::repair(document, &members, Timestamp::now());
            Ok(!repairs.is_empty() || !stored.exists())
        })
        .await?;
        Ok(repairs)
    }

    /// How many writes to the pool conflicted with another writer's, since this ledger was opened.
    pub fn conflicts(&self, pool: &PoolKey) -> u64 {
        self.view(pool).conflicts()
    }

    /// What other programs' writes did to the pool's state.
    pub fn foreign(&self, pool: &PoolKey) -> ForeignWrites {
        self.view(pool).foreign()
    }

    /// Whether another program erased an allocation of this node that is not in the state again yet: the next write restores
    /// it, for example [`Self::repair`].
    pub fn is_owing(&self, pool: &PoolKey) -> bool {
        self.view(pool).is_owing()
    }

    /// How many entries were set aside because they could not be parsed.
    pub fn unparsed(&self, pool: &PoolKey) -> u64 {
        self.view(pool).unparsed()
    }

    fn members(&self, pool: &PoolKey) -> Members {
        self.members.lock().get(&pool.name).cloned().flatten()
    }

    fn target(&self, pool: &PoolKey) -> String {
        format!("ConfigMap {}/{}", self.namespace, pool.name)
    }

    fn view(&self, pool: &PoolKey) -> Arc<View> {
        Arc::clone(self.views.lock().entry(pool.name.clone()).or_default())
    }

    fn snapshot(&self, pool: &PoolKey, stored: &Stored) -> Snapshot {
        Snapshot {
            pool: state::pool(stored.document(), &self.members(pool)),
            version: stored.version(),
        }
    }
}

#[async_trait]
impl Contention for ConfigMapLedger {
    async fn turn(&self, pool: &PoolKey, base: &Version) -> Turn {
        if !self.view(pool).has_member(&self.id) {
            return Turn::default();
        }
        let Ok((stored, _)) = self.at_turn(pool, None).await else {
            return Turn::default();
        };
        let is_newer = stored.version().order(base) == Some(Ordering::Greater);
        Turn {
            taken: true,
            newer: is_newer.then(|| self.snapshot(pool, &stored)),
        }
    }

    fn max_commit_delay(&self, _pool: &PoolKey) -> Duration {
        self.timeout + ETCD_TIMEOUT
    }
}

#[async_trait]
impl Ledger for ConfigMapLedger {
    async fn load(&self, pool: &PoolKey) -> Result<Snapshot, LedgerError> {
        let stored = self.fetch(pool).await?;
        Ok(self.snapshot(pool, &stored))
    }

    async fn commit(
        &self,
        pool: &PoolKey,
        base: &Version,
        changes: &[Change],
        guard: Option<&Guard>,
    ) -> Result<Version, LedgerError> {
        LedgerError::refuse_guard(pool, guard)?;
        if changes.is_empty() {
            return Ok(base.clone());
        }
        let members = self.members(pool);
        let target = self.target(pool);
        let count = changes.len();
        let claims = |change: &Change| matches!(change, Change::Allocate { .. });
        let room = match changes.iter().any(claims) {
            true => Room::Quarantine,
            false => Room::None,
        };
        self.edit(pool, Some(base), count, room, &mut |_, document| match state::apply(
            document,
            &members,
            changes,
            Timestamp::now(),
        ) {
            Ok(()) => Ok(true),
            Err(Obstacle::Mismatch(address)) => Err(LedgerError::Conflict {
                pool: target.clone(),
                held: vec![address],
            }),
            Err(Obstacle::SecondAddress { id, holds }) => Err(LedgerError::Rejected {
                operation: "claim",
                target: target.clone(),
                rejection: Rejection::Storage(format!(
                    "allocation {id:?} has {holds}, and the state has one address per allocation"
                )),
            }),
        })
        .await
    }

    fn contention(&self, _pool: &PoolKey) -> Option<&dyn Contention> {
        Some(self)
    }

    async fn watch_versions(
        &self,
        pool: &PoolKey,
    ) -> Result<BoxStream<'static, Result<Version, LedgerError>>, LedgerError> {
        let target = self.target(pool);
        let config = watcher::Config::default().fields(&format!("metadata.name={}", pool.name));
        let client = self.api.clone().into_client();
        let metadata: Api<PartialObjectMeta<ConfigMap>> = Api::namespaced(client, &self.namespace);
        let objects = watcher(metadata, config)
            .default_backoff()
            .touched_objects();
        let versions = objects.map(move |event| {
            let object = event.map_err(|error| LedgerError::Unavailable {
                target: target.clone(),
                why: error.to_string(),
                retry_after: None,
            })?;
            let version = object.metadata.resource_version;
            Ok(Version::new(version.unwrap_or_default()))
        });
        Ok(versions.boxed())
    }

    async fn pools(&self) -> Result<Vec<PoolKey>, LedgerError> {
        let selector = kube::api::ListParams::default().labels(&object::selector());
        let found = self
            .ask(Verb::List, "", self.api.list_metadata(&selector))
            .await?;
        let names = found
            .items
            .into_iter()
            .filter_map(|item| item.metadata.name);
        Ok(names.map(PoolKey::named).collect())
    }
}
