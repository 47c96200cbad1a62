//! Pools in Kubernetes objects of any kind: the ledger is here, what a kind looks like says its [`Codec`].
//!
//! Guarantees: every commit is one write on exactly one version of the object, after its preconditions and the codec's
//! guard were checked on that version (I1, I6); a write whose outcome is unknown is reported as such (I2); an object that can't
//! be read, or would pass what etcd takes, is left as it is (I5); an object is created by a commit only where its codec
//! says so.

mod codec;
pub mod cooldown;
mod merge;
pub mod object_cache;
pub mod store;
mod version_watch;
pub mod write;
pub mod write_queue;

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use berth_core::Change;
use berth_kube::{Connection, ObjectClient, Selection};
use futures::stream::BoxStream;
use serde_json::Value;

use crate::{Contention, Guard, Ledger, LedgerError, PoolKey, Snapshot, Turn, Version, Visited};

pub use codec::{Codec, Commit, Creation, EncodeError, WriteAs};
pub use cooldown::{Cooldowns, now};
pub use object_cache::ObjectCache;
pub use version_watch::versions;
pub use write_queue::WriteQueue;

use store::Store;

/// What etcd takes in one request by default.
pub const ETCD_REQUEST_LIMIT: usize = 1_572_864;

/// A write whose answer was lost may still be carried out: the API server ends it at its timeout, and etcd ends what it
/// got by then within this time.
pub const ETCD_TIMEOUT: Duration = Duration::from_secs(8);

/// Pools in one answer of a list. Each may have 1.5 MB: the text of a page stays below 8 MiB.
pub const PAGE: u32 = 4;

/// A ledger of the pools that objects of one kind keep.
pub struct ObjectLedger<C> {
    client: ObjectClient,
    codec: C,
    cache: ObjectCache,
    queue: WriteQueue,
}

impl<C: Codec> fmt::Debug for ObjectLedger<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObjectLedger")
            .field("codec", &self.codec)
            .field("client", &self.client)
            .finish_non_exhaustive()
    }
}

impl<C: Codec> ObjectLedger<C> {
    pub fn new(connection: &Connection, codec: C) -> Self {
        Self {
            client: ObjectClient::new(connection),
            codec,
            // Each commit is a write of the object: what was seen of it spares a read.
            cache: ObjectCache::from(0),
            queue: WriteQueue::default(),
        }
    }

    pub const fn client(&self) -> &ObjectClient {
        &self.client
    }

    pub const fn codec(&self) -> &C {
        &self.codec
    }

    /// Whether the pool's object is there. Reads its metadata alone.
    pub async fn exists(&self, pool: &PoolKey) -> Result<bool, LedgerError> {
        let resource = self.codec.resource();
        let found = self.client.get_metadata(resource, &pool.name).await?;
        Ok(found.is_some())
    }

    /// The pool that an object keeps, for callers that read the object another way (a list, a watch).
    pub fn snapshot_of(&self, pool: &PoolKey, object: &Value) -> Result<Snapshot, LedgerError> {
        self.store(pool).snapshot(object)
    }

    fn store<'a>(&'a self, key: &'a PoolKey) -> Store<'a, C> {
        Store {
            client: &self.client,
            cache: &self.cache,
            codec: &self.codec,
            key,
        }
    }

    /// The name of the queue of a pool's writers.
    fn queue_name(&self, pool: &PoolKey) -> String {
        format!("{}/{}", self.codec.resource().name(), pool.name)
    }

    fn key_of(&self, object: &Value) -> PoolKey {
        let name = object["metadata"]["name"].as_str();
        PoolKey {
            name: name.unwrap_or_default().to_owned(),
            network: self.codec.network(object),
        }
    }
}

#[async_trait]
impl<C: Codec> Contention for ObjectLedger<C> {
    async fn turn(&self, pool: &PoolKey, base: &Version) -> Turn {
        if !self.queue.take(&self.client, &self.queue_name(pool)).await {
            return Turn::default();
        }
        // The writer before this one has written, most likely.
        let newer = match *base != Version::default() {
            true => self.load(pool).await.ok(),
            false => None,
        };
        Turn { taken: true, newer }
    }

    fn pass_turn(&self, pool: &PoolKey) {
        self.queue.pass(&self.client, &self.queue_name(pool));
    }

    fn max_commit_delay(&self, _pool: &PoolKey) -> Duration {
        self.client.timeout() + ETCD_TIMEOUT
    }

    fn has_room(&self, pool: &PoolKey, claims: &[Change]) -> Result<(), LedgerError> {
        self.store(pool).fits(claims)
    }
}

#[async_trait]
impl<C: Codec> Ledger for ObjectLedger<C> {
    async fn load(&self, pool: &PoolKey) -> Result<Snapshot, LedgerError> {
        self.store(pool).load().await
    }

    async fn refresh(
        &self,
        pool: &PoolKey,
        base: &Version,
    ) -> Result<Option<Snapshot>, LedgerError> {
        let known = !base.is_merged() && *base != Version::default();
        if known && self.store(pool).is_at(base).await? {
            return Ok(None);
        }
        let now = self.load(pool).await?;
        Ok((now.version != *base).then_some(now))
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
        let written = self.store(pool).commit(base, changes).await;
        let met_others = match &written {
            Ok(version) => version.is_merged() && !base.is_merged(),
            Err(error) => matches!(error, LedgerError::Conflict { .. }),
        };
        let name = self.queue_name(pool);
        if met_others {
            self.queue.met_others(&name);
        }
        if written.is_ok() {
            self.queue.pass(&self.client, &name);
        }
        written
    }

    fn contention(&self, _pool: &PoolKey) -> Option<&dyn Contention> {
        Some(self)
    }

    async fn watch_versions(
        &self,
        pool: &PoolKey,
    ) -> Result<BoxStream<'static, Result<Version, LedgerError>>, LedgerError> {
        Ok(versions(&self.client, self.codec.resource(), &pool.name))
    }

    async fn peek(&self, pool: &PoolKey) -> Result<Snapshot, LedgerError> {
        self.store(pool).peek().await
    }

    async fn pools(&self) -> Result<Vec<PoolKey>, LedgerError> {
        let mut keys = Vec::new();
        let keep = |object: Value| keys.push(self.key_of(&object));
        let resource = self.codec.resource();
        self.client.reduce(resource, "", PAGE, keep).await?;
        Ok(keys)
    }

    async fn visit_pools(
        &self,
        visit: &mut (dyn FnMut(Visited) + Send),
    ) -> Result<(), LedgerError> {
        let selection = Selection {
            page: PAGE,
            ..Selection::default()
        };
        let show = |object: Value| {
            let key = self.key_of(&object);
            let snapshot = self.store(&key).snapshot(&object);
            visit(Visited {
                key,
                publisher: None,
                snapshot,
            });
        };
        let resource = self.codec.resource();
        Ok(self.client.list(resource, &selection, show).await?)
    }
}
