//! whereabouts' objects: pools in IPPools, named records in reservations, and the objects of slices (NodeSlicePools, claims,
//! SliceCalls).
//!
//! Promises: a live whereabouts and Berth can write the same objects: every commit is one patch with
//! a precondition per address, or a large object whole, on exactly its version; whereabouts' patches test the
//! resourceVersion, so neither overwrites the other (I1). Unknown fields, entries and annotations stay (I7). An object that would pass what
//! etcd takes is refused before it is sent, and never taken for written (I2).
//!
//! Of a record's attributes the node is kept, where the object has room for it, and the note of an allocation by hand
//! (`by_hand`); the objects have no place for the others.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod base;
mod by_hand;
mod calls;
mod claimants;
mod codec;
mod file;
mod label;
mod leftovers;
mod marks;
mod object;
mod patch;
mod patch_steps;
mod reservations;
mod resource;
pub mod slicepools;
mod slices;
mod slots;
mod store;
mod unknown;
mod visit;
mod whole;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::OnceLock;
use std::time::Duration;

use async_trait::async_trait;
use berth_core::{Change, Pool, Record};
use berth_kube::{Connection, ObjectClient, Verb};
use berth_ledger::object::{ETCD_TIMEOUT, ObjectCache, PAGE, WriteQueue, versions};
use futures::stream::BoxStream;
use kube::api::Preconditions;
use serde_json::{Value, json};

use berth_ledger::{
    ClaimKey, ClaimKind, Contention, Guard, Ledger, LedgerError, PoolKey, Records, Snapshot, Turn,
    Version, Visited,
};

pub use berth_ledger::object::ETCD_REQUEST_LIMIT;

pub use base::{NODE, NODE_ANNOTATION, UNCHECKED};
pub use calls::Heard;
pub use file::FileMark;
pub use leftovers::GIVEN_BACK;
pub use marks::{PUBLISHED, Writer};
pub use object::pool_of;
pub use resource::POOLS as IP_POOLS;
pub use slices::{SliceList, SliceObject, UnreadableSlice};
pub use slots::SLOT;

use base::Base;
use codec::IpPools;
use object::Object;
use reservations::Reservations;
use resource::POOLS;
use slots::Slots;
use store::{Store, Written};

#[cfg(test)]
mod tests;

pub struct KubeLedger {
    client: ObjectClient,
    limit: usize,
    seen: ObjectCache,
    queue: WriteQueue,
    moves: bool,
    /// Labels and annotations of new pools.
    new_pools: Value,
    /// The node's own file, where this is a node's ledger.
    file: OnceLock<FileMark>,
    slots: Slots,
}

impl fmt::Debug for KubeLedger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KubeLedger")
            .field("namespace", &self.client.namespace())
            .finish_non_exhaustive()
    }
}

impl KubeLedger {
    pub fn new(connection: Connection) -> Self {
        Self {
            client: ObjectClient::new(&connection),
            limit: ETCD_REQUEST_LIMIT,
            seen: ObjectCache::default(),
            queue: WriteQueue::default(),
            moves: false,
            new_pools: json!({}),
            file: OnceLock::new(),
            slots: Slots::default(),
        }
    }

    /// Says on every pool that it makes which node publishes it.
    #[must_use]
    pub fn publishing(mut self, node: &str) -> Self {
        self.new_pools = json!({ "annotations": { PUBLISHED: node } });
        self
    }

    /// Allows entries in plain pools whose ranges are allocated from node slices: only for a range that returns to its
    /// plain pool.
    #[must_use]
    pub const fn into_marked_pools(mut self) -> Self {
        self.moves = true;
        self
    }

    /// For an etcd with another `--max-request-bytes`.
    #[must_use]
    pub const fn with_limit(mut self, bytes: usize) -> Self {
        self.limit = bytes;
        self
    }

    /// Deletes a pool that is exactly what was read at `version` still: nothing that was written since is
    /// lost. One that does not exist is as deleted as asked.
    pub async fn retire(&self, pool: &PoolKey, version: &Version) -> Result<(), LedgerError> {
        let stamp = match Base::from(version) {
            Base::Absent => return Ok(()),
            Base::At(stamp) if !version.is_merged() => stamp,
            _ => {
                return Err(LedgerError::Conflict {
                    pool: self.client.ask(Verb::Delete, &POOLS, &pool.name).target(),
                    held: Vec::new(),
                });
            }
        };
        let preconditions = Preconditions {
            uid: None,
            resource_version: Some(stamp.resource_version),
        };
        let deleted = self.client.delete(&POOLS, &pool.name, preconditions);
        Ok(deleted.await?)
    }

    pub fn namespace(&self) -> &str {
        self.client.namespace()
    }

    const fn reservations(&self) -> Reservations<'_> {
        Reservations(&self.client)
    }

    fn store<'a>(&'a self, pool: &'a PoolKey) -> Store<'a> {
        let mut marks = self.new_pools.clone();
        let publishes = marks["annotations"].is_object();
        if let Some(file) = self.file.get().filter(|_| publishes) {
            marks["annotations"][file::FILE] = json!(file.text());
        }
        if let Some(slot) = self.slots.of(&pool.name).filter(|_| publishes) {
            marks["labels"][SLOT] = json!(slot);
        }
        Store {
            client: &self.client,
            seen: &self.seen,
            key: pool,
            codec: IpPools {
                network: pool.network,
                marks,
                moves: self.moves,
                limit: self.limit,
            },
        }
    }
}

/// Whether others wrote the pool between the caller's read and this commit.
fn is_met(written: &Result<Written, LedgerError>) -> bool {
    match written {
        Ok(written) => written.merged,
        Err(error) => matches!(error, LedgerError::Conflict { .. }),
    }
}

fn snapshot(object: Option<&Object>) -> Snapshot {
    let mut pool = Pool::new();
    let base = match object {
        Some(object) => {
            object.fill(&mut pool);
            Base::At(object.stamp.clone())
        }
        None => Base::Absent,
    };
    Snapshot {
        pool,
        version: Version::from(&base),
    }
}

#[async_trait]
impl Contention for KubeLedger {
    async fn turn(&self, pool: &PoolKey, base: &Version) -> Turn {
        if !self.queue.take(&self.client, &pool.name).await {
            return Turn::default();
        }
        // The writer before this one has written, most likely.
        let known = Base::from(base) != Base::Unknown;
        let newer = if known {
            self.load(pool).await.ok()
        } else {
            None
        };
        Turn { taken: true, newer }
    }

    fn pass_turn(&self, pool: &PoolKey) {
        self.queue.pass(&self.client, &pool.name);
    }

    fn max_commit_delay(&self, _pool: &PoolKey) -> Duration {
        self.client.timeout() + ETCD_TIMEOUT
    }

    fn has_room(&self, pool: &PoolKey, claims: &[Change]) -> Result<(), LedgerError> {
        self.store(pool).object().fits(claims)
    }
}

#[async_trait]
impl Ledger for KubeLedger {
    async fn load(&self, pool: &PoolKey) -> Result<Snapshot, LedgerError> {
        let object = self.store(pool).read().await?;
        Ok(snapshot(object.as_ref()))
    }

    async fn refresh(
        &self,
        pool: &PoolKey,
        base: &Version,
    ) -> Result<Option<Snapshot>, LedgerError> {
        let known = Base::from(base);
        if !base.is_merged() && known != Base::Unknown && self.store(pool).is_at(&known).await? {
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
        let written = self.store(pool).commit(&base.into(), changes).await;
        if is_met(&written) {
            self.queue.met_others(&pool.name);
        }
        let written = written?;
        self.queue.pass(&self.client, &pool.name);
        let (version, merged) = (Version::from(&Base::At(written.stamp)), written.merged);
        Ok(if merged || base.is_merged() {
            version.merged()
        } else {
            version
        })
    }

    fn contention(&self, _pool: &PoolKey) -> Option<&dyn Contention> {
        Some(self)
    }

    async fn watch_versions(
        &self,
        pool: &PoolKey,
    ) -> Result<BoxStream<'static, Result<Version, LedgerError>>, LedgerError> {
        Ok(versions(&self.client, &POOLS, &pool.name))
    }

    async fn peek(&self, pool: &PoolKey) -> Result<Snapshot, LedgerError> {
        let object = self.store(pool).peek().await?;
        Ok(snapshot(object.as_ref()))
    }

    async fn pools(&self) -> Result<Vec<PoolKey>, LedgerError> {
        self.keys().await
    }

    async fn visit_pools(
        &self,
        visit: &mut (dyn FnMut(Visited) + Send),
    ) -> Result<(), LedgerError> {
        self.visit_each(visit).await
    }

    async fn published_pools(&self) -> Result<BTreeMap<String, String>, LedgerError> {
        self.published().await
    }
}

#[async_trait]
impl Records for KubeLedger {
    async fn create(&self, key: &ClaimKey, record: &Record) -> Result<(), LedgerError> {
        self.reservations().create(key, record).await
    }

    async fn delete(&self, key: &ClaimKey, expected: &Record) -> Result<(), LedgerError> {
        self.reservations().delete(key, expected).await
    }

    async fn transfer(
        &self,
        key: &ClaimKey,
        expected: &Record,
        record: &Record,
    ) -> Result<(), LedgerError> {
        self.reservations().transfer(key, expected, record).await
    }

    async fn get(&self, key: &ClaimKey) -> Result<Option<Record>, LedgerError> {
        self.reservations().get(key).await
    }

    async fn visit(
        &self,
        kind: ClaimKind,
        visit: &mut (dyn FnMut(ClaimKey, Record) + Send),
    ) -> Result<(), LedgerError> {
        self.reservations().visit(kind, visit).await
    }
}
