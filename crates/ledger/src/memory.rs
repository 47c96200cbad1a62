//! A ledger in memory: the reference that the others are measured against.
//!
//! Durable only as long as the process: for tests, models and dry runs.

use std::collections::BTreeMap;

use async_trait::async_trait;
use berth_core::{Change, Pool, Record};
use futures::StreamExt;
use futures::stream::BoxStream;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::{ClaimKey, ClaimKind, Guard, Ledger, LedgerError, PoolKey, Records, Snapshot, Version};

type Pools = BTreeMap<PoolKey, watch::Sender<(u64, Pool)>>;

#[derive(Debug, Default)]
pub struct MemoryLedger {
    pools: Mutex<Pools>,
    claims: Mutex<BTreeMap<ClaimKey, Record>>,
}

impl MemoryLedger {
    pub fn new() -> Self {
        Self::default()
    }
}

/// A poisoned lock means a test thread panicked elsewhere; the maps are whole, every write is one
/// step.
fn snapshot(state: &(u64, Pool)) -> Snapshot {
    Snapshot {
        pool: state.1.clone(),
        version: Version::new(state.0.to_string()),
    }
}

/// A pool that was never written is at version 0, and at the default version.
fn is_at(number: u64, version: &Version) -> bool {
    version.stored() == number.to_string() || (number == 0 && version.stored().is_empty())
}

fn write(
    pools: &mut Pools,
    pool: &PoolKey,
    base: &Version,
    changes: &[Change],
) -> Result<Version, LedgerError> {
    let state = pools
        .entry(pool.clone())
        .or_insert_with(|| watch::channel((0, Pool::new())).0);
    let (number, mut next) = state.borrow().clone();
    for change in changes {
        next.apply(change).map_err(|_| LedgerError::Conflict {
            pool: pool.to_string(),
            held: vec![change.address()],
        })?;
    }
    state.send_replace((number + 1, next));
    let version = Version::new((number + 1).to_string());
    let exact = is_at(number, base) && !base.is_merged();
    Ok(if exact { version } else { version.merged() })
}

#[async_trait]
impl Ledger for MemoryLedger {
    async fn load(&self, pool: &PoolKey) -> Result<Snapshot, LedgerError> {
        let pools = self.pools.lock();
        Ok(pools
            .get(pool)
            .map(|state| snapshot(&state.borrow()))
            .unwrap_or_default())
    }

    async fn commit(
        &self,
        pool: &PoolKey,
        base: &Version,
        changes: &[Change],
        guard: Option<&Guard>,
    ) -> Result<Version, LedgerError> {
        let mut pools = self.pools.lock();
        if let Some(guard) = guard {
            let number = pools.get(&guard.pool).map_or(0, |state| state.borrow().0);
            if !is_at(number, &guard.version) {
                return Err(LedgerError::Conflict {
                    pool: guard.pool.to_string(),
                    held: Vec::new(),
                });
            }
        }
        write(&mut pools, pool, base, changes)
    }

    async fn watch_versions(
        &self,
        pool: &PoolKey,
    ) -> Result<BoxStream<'static, Result<Version, LedgerError>>, LedgerError> {
        let mut pools = self.pools.lock();
        let state = pools
            .entry(pool.clone())
            .or_insert_with(|| watch::channel((0, Pool::new())).0);
        let mut receiver = state.subscribe();
        receiver.mark_changed();
        let changes = futures::stream::unfold(receiver, |mut receiver| async move {
            receiver.changed().await.ok()?;
            let number = receiver.borrow_and_update().0;
            Some((Ok(Version::new(number.to_string())), receiver))
        });
        Ok(changes.boxed())
    }

    async fn pools(&self) -> Result<Vec<PoolKey>, LedgerError> {
        Ok(self.pools.lock().keys().cloned().collect())
    }
}

#[async_trait]
impl Records for MemoryLedger {
    async fn create(&self, key: &ClaimKey, record: &Record) -> Result<(), LedgerError> {
        let mut claims = self.claims.lock();
        match claims.get(key) {
            Some(held) if !held.same_holder(record) => Err(LedgerError::Taken {
                name: key.to_string(),
                by: held.owner.to_string(),
            }),
            Some(_) => Ok(()),
            None => {
                claims.insert(key.clone(), record.clone());
                Ok(())
            }
        }
    }

    async fn delete(&self, key: &ClaimKey, expected: &Record) -> Result<(), LedgerError> {
        let mut claims = self.claims.lock();
        match claims.get(key) {
            Some(held) if !held.same_holder(expected) => Err(LedgerError::Taken {
                name: key.to_string(),
                by: held.owner.to_string(),
            }),
            _ => {
                claims.remove(key);
                Ok(())
            }
        }
    }

    async fn transfer(
        &self,
        key: &ClaimKey,
        expected: &Record,
        record: &Record,
    ) -> Result<(), LedgerError> {
        let mut claims = self.claims.lock();
        match claims.get_mut(key) {
            Some(held) if held.same_holder(record) => Ok(()),
            Some(held) if held.same_holder(expected) => {
                *held = record.clone();
                Ok(())
            }
            held => Err(LedgerError::Taken {
                name: key.to_string(),
                by: held.map_or_else(|| "nobody".into(), |held| held.owner.to_string()),
            }),
        }
    }

    async fn get(&self, key: &ClaimKey) -> Result<Option<Record>, LedgerError> {
        Ok(self.claims.lock().get(key).cloned())
    }

    async fn visit(
        &self,
        kind: ClaimKind,
        visit: &mut (dyn FnMut(ClaimKey, Record) + Send),
    ) -> Result<(), LedgerError> {
        let claims = self.claims.lock().clone();
        for (key, record) in claims.into_iter().filter(|(key, _)| key.kind == kind) {
            visit(key, record);
        }
        Ok(())
    }
}
