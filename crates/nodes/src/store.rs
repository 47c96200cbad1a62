//! NodeIPPools as a ledger of the engine: entries in `status`, each write under the version that was read.
//!
//! Guarantees: a write holds only for the pool, by UID, and the spec, by generation, that the changes were planned on: a pool that was
//! deleted and created again, or that grew, is a conflict (I1). When another writer was first and the spec is the same, the changes
//! are tried on the newer status as long as their preconditions hold there. A write whose outcome is unknown is reported as
//! such, never as a failure (I2).

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use berth_core::{Change, Record};
use berth_ledger::{
    ClaimKey, ClaimKind, Ledger, LedgerError, PoolKey, Rejection, Snapshot, Version,
};
use futures::StreamExt;
use futures::stream::BoxStream;
use jiff::Timestamp;
use kube::api::{DynamicObject, PostParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};
use serde_json::Value;

use crate::objects::{self, NODE_IP_POOL};
use crate::pool::codec::{self, ChangeError};

/// How often one commit meets other writers before it is planned again.
const TRIES: u32 = 8;

/// All NodeIPPools of a cluster.
pub struct PoolStore {
    api: Api<DynamicObject>,
    timeout: Duration,
    /// What was last read or written of each pool: the base of the next commit, which then needs no read.
    known: Mutex<BTreeMap<String, Value>>,
}

impl std::fmt::Debug for PoolStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PoolStore").finish_non_exhaustive()
    }
}

impl PoolStore {
    pub fn new(client: Client, timeout: Duration) -> PoolStore {
        PoolStore {
            api: objects::api(client, NODE_IP_POOL),
            timeout,
            known: Mutex::default(),
        }
    }

    /// The object as it stands durably; none if there is no such pool.
    pub async fn object(&self, name: &str) -> Result<Option<Value>, LedgerError> {
        let found = self.ask("get", name, self.api.get_opt(name)).await?;
        let Some(found) = found else {
            self.forget(name);
            return Ok(None);
        };
        let object = objects::value(&found);
        self.remember(name, &object);
        Ok(Some(object))
    }

    /// Writes the object's status if the object is still at the version that it was read at.
    pub async fn put(&self, name: &str, object: &Value) -> Result<Value, LedgerError> {
        let typed: DynamicObject =
            serde_json::from_value(object.clone()).map_err(|error| LedgerError::Unreadable {
                target: target(name),
                why: error.to_string(),
            })?;
        let params = PostParams::default();
        let written = self
            .ask(
                "update",
                name,
                self.api.replace_status(name, &params, &typed),
            )
            .await;
        match written {
            Ok(written) => {
                let object = objects::value(&written);
                self.remember(name, &object);
                Ok(object)
            }
            Err(error) => {
                self.forget(name);
                Err(error)
            }
        }
    }

    async fn ask<T>(
        &self,
        operation: &'static str,
        name: &str,
        request: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, LedgerError> {
        let answer = tokio::time::timeout(self.timeout, request).await;
        answer
            .map_err(|_| LedgerError::Uncertain {
                operation,
                target: target(name),
                why: format!("no answer within {} s", self.timeout.as_secs_f32()),
            })?
            .map_err(|error| failure(operation, name, &error))
    }

    fn remember(&self, name: &str, object: &Value) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.insert(name.to_owned(), object.clone());
    }

    fn forget(&self, name: &str) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.remove(name);
    }

    fn known_at(&self, name: &str, base: &Version) -> Option<Value> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let found = known.get(name)?;
        (version(found).stored() == base.stored()).then(|| found.clone())
    }

    async fn existing(&self, name: &str) -> Result<Value, LedgerError> {
        self.object(name).await?.ok_or_else(|| missing(name))
    }
}

fn target(name: &str) -> String {
    format!("NodeIPPool {name}")
}

fn missing(name: &str) -> LedgerError {
    LedgerError::Rejected {
        operation: "get",
        target: target(name),
        rejection: Rejection::Missing("there is no such pool".to_owned()),
    }
}

/// The version of an object: what a commit is planned on.
fn version(object: &Value) -> Version {
    let text = |field: &str| {
        let value = object.pointer(&format!("/metadata/{field}"));
        value.map(|value| match value {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        })
    };
    let part = |field| text(field).unwrap_or_default();
    Version::new(format!(
        "{}/{}/{}",
        part("resourceVersion"),
        part("uid"),
        part("generation")
    ))
}

/// The pool and the spec of a version: all but the resourceVersion.
fn spec_of(version: &Version) -> &str {
    version
        .stored()
        .split_once('/')
        .map_or("", |(_, rest)| rest)
}

fn conflict(name: &str) -> LedgerError {
    LedgerError::Conflict {
        pool: target(name),
        held: Vec::new(),
    }
}

fn failure(operation: &'static str, name: &str, error: &kube::Error) -> LedgerError {
    let target = target(name);
    let kube::Error::Api(status) = error else {
        let why = berth_ledger::chain(error);
        // Whether a request that got no answer was carried out is unknown.
        return match operation {
            "get" | "list" => LedgerError::Unavailable {
                target,
                why,
                retry_after: None,
            },
            _ => LedgerError::Uncertain {
                operation,
                target,
                why,
            },
        };
    };
    let message = status.message.clone();
    let rejection = match status.code {
        409 => return conflict(name),
        401 => Rejection::Unauthenticated(message),
        403 => Rejection::Forbidden(message),
        404 => Rejection::Missing(message),
        400 | 413 | 422 => Rejection::Invalid {
            code: status.code,
            message,
        },
        _ => {
            return LedgerError::Unavailable {
                target,
                why: message,
                retry_after: None,
            };
        }
    };
    LedgerError::Rejected {
        operation,
        target,
        rejection,
    }
}

fn refused(name: &str, error: ChangeError) -> LedgerError {
    match error {
        ChangeError::Mismatch { address, .. } => LedgerError::Conflict {
            pool: target(name),
            held: vec![address],
        },
        // Planned on an older spec; the next plan knows better.
        ChangeError::Place { .. } | ChangeError::Reserved { .. } => conflict(name),
        ChangeError::Closed { .. } | ChangeError::Spec(_) => LedgerError::Rejected {
            operation: "claim",
            target: target(name),
            rejection: Rejection::Storage(error.to_string()),
        },
    }
}

fn snapshot(name: &str, object: &Value) -> Result<Snapshot, LedgerError> {
    let read = codec::decode(object).map_err(|error| LedgerError::Unreadable {
        target: target(name),
        why: error.to_string(),
    })?;
    Ok(Snapshot {
        pool: read.pool,
        version: version(object),
    })
}

#[async_trait]
impl Ledger for PoolStore {
    async fn load(&self, pool: &PoolKey) -> Result<Snapshot, LedgerError> {
        snapshot(&pool.name, &self.existing(&pool.name).await?)
    }

    async fn commit(
        &self,
        pool: &PoolKey,
        base: &Version,
        changes: &[Change],
    ) -> Result<Version, LedgerError> {
        let name = &pool.name;
        if changes.is_empty() {
            return Ok(base.clone());
        }
        let mut known = self.known_at(name, base);
        for _ in 0..TRIES {
            let object = match known.take() {
                Some(object) => object,
                None => self.existing(name).await?,
            };
            let read_at = version(&object);
            if spec_of(&read_at) != spec_of(base) {
                return Err(conflict(name));
            }
            let next = codec::apply(&object, changes, Timestamp::now());
            let next = next.map_err(|error| refused(name, error))?;
            match self.put(name, &next).await {
                Err(LedgerError::Conflict { .. }) => continue,
                Err(error) => return Err(error),
                Ok(written) => {
                    let exact = read_at.stored() == base.stored() && !base.is_merged();
                    let version = version(&written);
                    return Ok(if exact { version } else { version.merged() });
                }
            }
        }
        Err(conflict(name))
    }

    fn in_doubt(&self, _: &PoolKey) -> Duration {
        self.timeout + Duration::from_secs(10)
    }

    async fn watch(
        &self,
        pool: &PoolKey,
    ) -> Result<BoxStream<'static, Result<Snapshot, LedgerError>>, LedgerError> {
        let name = pool.name.clone();
        let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
        let objects = watcher(self.api.clone(), config)
            .default_backoff()
            .touched_objects();
        let snapshots = objects.map(move |event| {
            let object = event.map_err(|error| LedgerError::Unavailable {
                target: target(&name),
                why: error.to_string(),
                retry_after: None,
            })?;
            snapshot(&name, &objects::value(&object))
        });
        Ok(snapshots.boxed())
    }

    async fn pools(&self) -> Result<Vec<PoolKey>, LedgerError> {
        let params = kube::api::ListParams::default();
        let list = self.api.list_metadata(&params);
        let found = self.ask("list", "", list).await?.items;
        let names = found.into_iter().filter_map(|item| item.metadata.name);
        Ok(names.map(PoolKey::named).collect())
    }

    async fn create(&self, key: &ClaimKey, _: &Record) -> Result<(), LedgerError> {
        no_claims("create", key)
    }

    async fn remove(&self, key: &ClaimKey, _: &Record) -> Result<(), LedgerError> {
        no_claims("remove", key)
    }

    async fn pass(&self, key: &ClaimKey, _: &Record, _: &Record) -> Result<(), LedgerError> {
        no_claims("transfer", key)
    }

    async fn claim(&self, key: &ClaimKey) -> Result<Option<Record>, LedgerError> {
        no_claims("read", key)
    }

    async fn claims(&self, _: ClaimKind) -> Result<Vec<(ClaimKey, Record)>, LedgerError> {
        Ok(Vec::new())
    }
}

fn no_claims<T>(operation: &'static str, key: &ClaimKey) -> Result<T, LedgerError> {
    Err(LedgerError::Rejected {
        operation,
        target: key.to_string(),
        rejection: Rejection::Storage("a NodeIPPool keeps no claims by name".to_owned()),
    })
}
