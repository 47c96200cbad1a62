//! NodeIPPools as pools of the engine: a codec of the object ledger, and the whole objects, for plans that need more than the entries.
//!
//! Guarantees: a commit holds only for the pool, by UID, and the spec, by generation, that it was planned on: a pool that was deleted and
//! created again, or that grew, is a conflict (I1). A status is written under the version that was read.

use std::time::Duration;

use berth_core::Pool;
use berth_kube::{Connection, Part, Place, Resource};
use berth_ledger::object::{Codec, Commit, EncodeError, ObjectLedger};
use berth_ledger::{LedgerError, PoolKey, Rejection, SharedLedger};
use jiff::Timestamp;
use kube::Api;
use kube::api::{DynamicObject, PostParams};
use serde_json::{Value, json};

use crate::objects::{self, NODE_IP_POOL};
use crate::pool::codec;

/// The kind, for the ledger.
pub const POOLS: Resource = Resource {
    group: "nmstate.io",
    version: "v1",
    plural: "nodeippools",
    kind: "NodeIPPool",
    place: Place::Cluster,
};

/// How a NodeIPPool keeps a pool: entries in `status`.
#[derive(Clone, Copy, Debug, Default)]
pub struct NodePoolCodec;

/// Bytes of an allocation beside its texts.
const ENTRY: usize = 80;

impl Codec for NodePoolCodec {
    fn resource(&self) -> &'static Resource {
        &POOLS
    }

    fn part(&self) -> Part {
        Part::Status
    }

    fn decode(&self, _: &PoolKey, object: &Value) -> Result<Pool, String> {
        let read = codec::decode(object).map_err(|error| error.to_string())?;
        Ok(read.pool)
    }

    fn encode(&self, object: &mut Value, commit: &Commit<'_>) -> Result<(), EncodeError> {
        let next = codec::apply(object, commit.changes, Timestamp::now());
        *object = next.map_err(|error| EncodeError::Invalid(error.to_string()))?;
        Ok(())
    }

    fn guard(&self, object: &Value) -> Value {
        let metadata = &object["metadata"];
        json!([metadata["uid"], metadata["generation"]])
    }

    fn entry_size(&self, _: berth_core::Address, record: &berth_core::Record) -> usize {
        ENTRY + record.owner.subject.len() + record.owner.part.len()
    }

    fn full_hint(&self) -> &'static str {
        "split the pool: append no further ranges, make another pool"
    }
}

/// All NodeIPPools of a cluster, for desks.
pub fn ledger(connection: &Connection) -> SharedLedger {
    std::sync::Arc::new(ObjectLedger::new(connection, NodePoolCodec))
}

/// The whole objects.
#[derive(Clone)]
pub struct PoolStore {
    api: Api<DynamicObject>,
    timeout: Duration,
}

impl std::fmt::Debug for PoolStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PoolStore").finish_non_exhaustive()
    }
}

impl PoolStore {
    pub fn new(connection: &Connection) -> PoolStore {
        PoolStore {
            api: objects::api(connection.client.clone(), NODE_IP_POOL),
            timeout: connection.timeout,
        }
    }

    /// The object as it stands durably; none if there is no such pool.
    pub async fn object(&self, name: &str) -> Result<Option<Value>, LedgerError> {
        let found = self.ask("get", name, self.api.get_opt(name)).await?;
        Ok(found.map(|object| objects::value(&object)))
    }

    /// Writes the object's status if the object is still at the version that it was read at.
    pub async fn put(&self, name: &str, object: &Value) -> Result<(), LedgerError> {
        let typed: DynamicObject =
            serde_json::from_value(object.clone()).map_err(|error| LedgerError::Unreadable {
                target: target(name),
                why: error.to_string(),
            })?;
        let params = PostParams::default();
        let write = self.api.replace_status(name, &params, &typed);
        self.ask("update", name, write).await.map(drop)
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
}

fn target(name: &str) -> String {
    format!("NodeIPPool {name}")
}

fn failure(operation: &'static str, name: &str, error: &kube::Error) -> LedgerError {
    let target = target(name);
    let kube::Error::Api(status) = error else {
        let why = berth_ledger::chain(error);
        // Whether a request that got no answer was carried out is unknown.
        return match operation {
            "get" => LedgerError::Unavailable {
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
        // A pool that was deleted is a conflict, too.
        404 | 409 => {
            return LedgerError::Conflict {
                pool: target,
                held: Vec::new(),
            };
        }
        401 => Rejection::Unauthenticated(message),
        403 => Rejection::Forbidden(message),
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
