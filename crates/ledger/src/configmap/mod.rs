//! VM pools, each in one key of one ConfigMap, in the form that live clusters hold.
//!
//! Promises: a write goes under the resourceVersion that was read, so no other writer's change is
//! lost (I1); writers that meet take turns ([`crate::turns`]), so that each write counts; a state that can't be read, or is suddenly gone, is an error and never an empty pool
//! (I5); a state that would not fit is refused before it is sent. When another writer was first, the
//! same changes are tried on the newer state as long as their preconditions hold there, without
//! planning again: that is what makes two writers of different addresses cheap.
//!
//! Does not keep rests (the document has no place for them) and has no claims by name.

mod document;
mod gojson;
mod object;
mod salvage;
mod state;
mod view;

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use berth_core::{Address, Change, Record};
use futures::StreamExt;
use futures::stream::BoxStream;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Patch, PatchParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};
use rand::RngExt;

use crate::{
    ClaimKey, ClaimKind, Ledger, LedgerError, PoolKey, Rejection, Snapshot, Turn, Version,
};

pub use document::{Allocation, Document, DocumentError};
pub use object::{COMPONENT_LABEL, MAX_DATA_BYTES, STATE_KEY};
pub use salvage::Salvage;
pub use state::{Repairs, attribute};

use crate::kube::ETCD_PATIENCE;
use crate::kube::status::{Ask, Failure, Verb};
use crate::turns::Ring;
use object::{Draft, Stored};
use state::{Members, Obstacle};
use view::View;

/// How long one commit is tried on newer and newer states, before the desk is told.
const PATIENCE: Duration = Duration::from_secs(10);

/// A state that was learned no longer ago than this was as good as new when its write was sent.
const YOUNG: Duration = Duration::from_millis(500);

/// The pools of one namespace; a pool's name is its ConfigMap's.
pub struct ConfigMapLedger {
    api: Api<ConfigMap>,
    namespace: String,
    /// For one request to the API server.
    timeout: Duration,
    members: Mutex<BTreeMap<String, Members>>,
    /// What was last read, written or heard: the base of the next commit.
    views: Mutex<BTreeMap<String, Arc<View>>>,
    /// The name of this process among those that take turns.
    id: String,
}

impl std::fmt::Debug for ConfigMapLedger {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut debug = f.debug_struct("ConfigMapLedger");
        debug.field("namespace", &self.namespace).finish()
    }
}

/// The maps are whole whatever happened to another thread: every write to them is one step.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

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
        }
    }

    /// The addresses that the settings give to the pool now, in their order. Members that the
    /// document does not mention are free from now on; addresses that are no members are not
    /// given any more, and stay with who has them.
    pub fn set_members(&self, pool: &PoolKey, addresses: &[Address]) {
        let mut places = BTreeMap::new();
        for (place, address) in addresses.iter().enumerate() {
            places.entry(*address).or_insert(place);
        }
        lock(&self.members).insert(pool.name.clone(), Some(places));
    }

    /// Rebuilds the free list as the members in their order without those in use, and creates the
    /// state where there is none. Nothing in use is touched.
    pub async fn repair(&self, pool: &PoolKey) -> Result<Repairs, LedgerError> {
        let members = self.members(pool);
        let mut repairs = Repairs::default();
        self.edit(pool, None, 1, &mut |stored, document| {
            repairs = state::repair(document, &members, Timestamp::now());
            Ok(!repairs.is_empty() || !stored.exists())
        })
        .await?;
        Ok(repairs)
    }

    /// Puts a state that can't be read under another key of the same ConfigMap, where it stays,
    /// and begins anew with what can be made out of it. `None` if it can be read after all.
    ///
    /// What can't be made out is not free: nobody knows who has it (I4). See [`Salvage`].
    pub async fn set_aside(&self, pool: &PoolKey) -> Result<Option<Salvage>, LedgerError> {
        let members = self.members(pool);
        let end = Instant::now() + PATIENCE;
        loop {
            let found = self.get(pool).await?;
            let Some((kept, text)) = object::unreadable(&found) else {
                return Ok(None);
            };
            let now = Timestamp::now();
            let salvage = salvage::salvage(&text, &members, now);
            let next = object::with_set_aside(kept, text, salvage.document.clone(), now)?;
            if self.write(pool, next, end).await?.is_some() {
                return Ok(Some(salvage));
            }
        }
    }

    /// How many writes to the pool met another writer, since this ledger was opened.
    pub fn conflicts(&self, pool: &PoolKey) -> u64 {
        self.view(pool).conflicts()
    }

    fn members(&self, pool: &PoolKey) -> Members {
        lock(&self.members).get(&pool.name).cloned().flatten()
    }

    fn target(&self, pool: &PoolKey) -> String {
        format!("ConfigMap {}/{}", self.namespace, pool.name)
    }

    fn view(&self, pool: &PoolKey) -> Arc<View> {
        Arc::clone(lock(&self.views).entry(pool.name.clone()).or_default())
    }

    /// One request, bounded, whose failure says what is known of its outcome.
    async fn ask<T>(
        &self,
        verb: Verb,
        name: &str,
        request: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, LedgerError> {
        let failure = match tokio::time::timeout(self.timeout, request).await {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(error)) => Failure::of(error),
            Err(_) => Failure::Lost(format!("no answer within {:?}", self.timeout)),
        };
        Err(failure.into_error(Ask {
            verb,
            resource: &object::CONFIG_MAPS,
            namespace: &self.namespace,
            name,
        }))
    }

    async fn get(&self, pool: &PoolKey) -> Result<Option<ConfigMap>, LedgerError> {
        self.ask(Verb::Get, &pool.name, self.api.get_opt(&pool.name))
            .await
    }

    /// Reads and remembers. A state that was there and is gone is not an empty one: whoever removed
    /// it did not free the VMs in it.
    async fn fetch(&self, pool: &PoolKey) -> Result<Arc<Stored>, LedgerError> {
        let found = self.get(pool).await?;
        let target = self.target(pool);
        let view = self.view(pool);
        let before = view.last().map(|last| last.in_use());
        if found.is_none()
            && let Some(in_use @ 1..) = before
        {
            return Err(LedgerError::Unreadable {
                target,
                why: format!(
                    "it is gone, and {in_use} allocations were in it when it was last read; put it \
                     back, or restart Berth to begin with an empty pool"
                ),
            });
        }
        let stored = Arc::new(Stored::read(&target, found)?);
        view.learn(Arc::clone(&stored));
        Ok(stored)
    }

    /// Creates or replaces, under the version that the object was read at.
    async fn put(&self, pool: &PoolKey, next: &Draft) -> Result<Arc<Stored>, LedgerError> {
        let params = kube::api::PostParams::default();
        let object = &next.object;
        let answer = if object.metadata.resource_version.is_none() {
            self.ask(Verb::Create, &pool.name, self.api.create(&params, object))
                .await?
        } else {
            let replaced = self.api.replace(&pool.name, &params, object);
            self.ask(Verb::Update, &pool.name, replaced).await?
        };
        Ok(Arc::new(Stored::written(&self.target(pool), next, answer)?))
    }

    /// Writes and remembers. `None`: another writer was first, and it is to be tried again on what
    /// that one wrote; after `end` that is the caller's business.
    async fn write(
        &self,
        pool: &PoolKey,
        next: Draft,
        end: Instant,
    ) -> Result<Option<Version>, LedgerError> {
        let (view, begun) = (self.view(pool), Instant::now());
        match self.put(pool, &next).await {
            Ok(stored) => {
                view.wrote(begun.elapsed());
                let version = stored.version();
                view.learn(stored);
                Ok(Some(version))
            }
            Err(LedgerError::Conflict { .. }) if Instant::now() < end => {
                view.collided();
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Edits the document of the newest state until a write gets through. `edit` says whether
    /// anything is to be written, and is called again for each newer state.
    async fn edit(
        &self,
        pool: &PoolKey,
        base: Option<&Version>,
        changes: usize,
        edit: &mut (dyn FnMut(&Stored, &mut Document) -> Result<bool, LedgerError> + Send),
    ) -> Result<Version, LedgerError> {
        let end = Instant::now() + PATIENCE;
        let (view, target) = (self.view(pool), self.target(pool));
        let last = view.last();
        let is_base =
            |last: &Arc<Stored>| base.is_some_and(|base| base.stored() == last.version().stored());
        let mut known = last.filter(is_base);
        loop {
            let (current, passed) = self.at_turn(pool, known.take()).await?;
            let mut document = current.document().clone();
            if !edit(&current, &mut document)? {
                return Ok(current.version());
            }
            let exact = base.is_none_or(|base| *base == current.version());
            let ring = current.ring();
            let keeps = ring.place(&self.id).is_some() && view.keeps_turn(changes);
            let ring = ring.after_write(&self.id, passed, keeps);
            let next = current.with(&target, &pool.name, document, &ring)?;
            if let Some(version) = self.write(pool, next, end).await? {
                return Ok(if exact { version } else { version.merged() });
            }
            known = self.after_conflict(pool, &current).await?;
        }
    }

    /// Waits for the turn, if turns are taken. The state to write on, which is `known` where they are not,
    /// and how many members were waited for in vain.
    async fn at_turn(
        &self,
        pool: &PoolKey,
        known: Option<Arc<Stored>>,
    ) -> Result<(Arc<Stored>, usize), LedgerError> {
        let view = self.view(pool);
        while let Some(turn) = view.turn(&self.id).await {
            view.follow(&self.api, &pool.name);
            match turn.stored {
                Some(stored) => return Ok((stored, turn.passed)),
                None => self.fetch(pool).await?,
            };
        }
        match known {
            Some(known) => Ok((known, 0)),
            None => Ok((self.fetch(pool).await?, 0)),
        }
    }

    /// The state to try on next, if it is known. Whoever lost on a state that had just been read met others
    /// who write at this moment, and joins their turns; a state that was old proves nothing.
    async fn after_conflict(
        &self,
        pool: &PoolKey,
        lost: &Stored,
    ) -> Result<Option<Arc<Stored>>, LedgerError> {
        let view = self.view(pool);
        if lost.ring().place(&self.id).is_some() {
            let told = view.is_followed() && view.is_newer(lost).await;
            if !told {
                self.fetch(pool).await?;
            }
            if view.has_member(&self.id) {
                return Ok(None);
            }
        } else if lost.age() > YOUNG {
            let newer = self.fetch(pool).await?;
            if newer.ring().next().is_none() {
                return Ok(Some(newer));
            }
        }
        self.sign_up(pool).await.map(Some)
    }

    /// Joins those who take turns, as the next.
    async fn sign_up(&self, pool: &PoolKey) -> Result<Arc<Stored>, LedgerError> {
        let (view, target) = (self.view(pool), self.target(pool));
        let (params, patch) = (
            PatchParams::default(),
            Patch::Merge(Ring::sign_up(&self.id)),
        );
        let signed = self.api.patch(&pool.name, &params, &patch);
        match self.ask(Verb::Patch, &pool.name, signed).await {
            Ok(object) => {
                let stored = Arc::new(Stored::read(&target, Some(object))?);
                view.new_turn();
                view.learn(Arc::clone(&stored));
                view.follow(&self.api, &pool.name);
                Ok(stored)
            }
            Err(error) => {
                // No right to patch, or too many at once: then chance parts them, more slowly.
                tracing::debug!(target, %error, "no turn is to be had");
                let share: f64 = rand::rng().random_range(0.0..4.0);
                tokio::time::sleep(view.turn_time().mul_f64(share)).await;
                self.fetch(pool).await
            }
        }
    }

    fn snapshot(&self, pool: &PoolKey, stored: &Stored) -> Snapshot {
        Snapshot {
            pool: state::pool(stored.document(), &self.members(pool)),
            version: stored.version(),
        }
    }

    fn no_claims<T>(&self, operation: &'static str, key: &str) -> Result<T, LedgerError> {
        Err(LedgerError::Rejected {
            operation,
            target: key.into(),
            rejection: Rejection::Storage("a ConfigMap keeps pools, and no claims by name".into()),
        })
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
    ) -> Result<Version, LedgerError> {
        if changes.is_empty() {
            return Ok(base.clone());
        }
        let members = self.members(pool);
        let target = self.target(pool);
        let count = changes.len();
        self.edit(pool, Some(base), count, &mut |_, document| match state::apply(
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

    fn in_doubt(&self, _pool: &PoolKey) -> Duration {
        self.timeout + ETCD_PATIENCE
    }

    async fn watch(
        &self,
        pool: &PoolKey,
    ) -> Result<BoxStream<'static, Result<Snapshot, LedgerError>>, LedgerError> {
        let members = self.members(pool);
        let target = self.target(pool);
        let config = watcher::Config::default().fields(&format!("metadata.name={}", pool.name));
        let objects = watcher(self.api.clone(), config)
            .default_backoff()
            .touched_objects();
        let snapshots = objects.map(move |event| {
            let object = event.map_err(|error| LedgerError::Unavailable {
                target: target.clone(),
                why: error.to_string(),
                retry_after: None,
            })?;
            let stored = Stored::read(&target, Some(object))?;
            Ok(Snapshot {
                pool: state::pool(stored.document(), &members),
                version: stored.version(),
            })
        });
        Ok(snapshots.boxed())
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

    async fn create(&self, key: &ClaimKey, _: &Record) -> Result<(), LedgerError> {
        self.no_claims("create", &key.name)
    }

    async fn remove(&self, key: &ClaimKey, _: &Record) -> Result<(), LedgerError> {
        self.no_claims("remove", &key.name)
    }

    async fn claim(&self, key: &ClaimKey) -> Result<Option<Record>, LedgerError> {
        self.no_claims("read", &key.name)
    }

    async fn claims(&self, _: ClaimKind) -> Result<Vec<(ClaimKey, Record)>, LedgerError> {
        Ok(Vec::new())
    }
}
