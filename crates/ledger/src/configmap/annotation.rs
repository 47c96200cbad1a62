//! Annotations on a pool's ConfigMap, by which the processes of a pool agree on something that is no part of its
//! state. Guarantees that a value is written only on exactly the object that it was decided on.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use berth_kube::Verb;
use berth_kube::events::Events;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::ResourceExt;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::json;

use super::{ConfigMapLedger, PATIENCE, object};
use crate::{LedgerError, PoolKey};

/// How long to wait before the next try on an object that others write all the time.
const PAUSE: Duration = Duration::from_millis(20);

impl ConfigMapLedger {
    /// Compare-and-set: `decide` gets the present value and returns the one to write, or `None` to leave it. True if
    /// it was written. An object that does not exist is created without a state, which means the same.
    pub async fn annotate(
        &self,
        pool: &PoolKey,
        key: &str,
        decide: impl Fn(Option<&str>) -> Option<String>,
    ) -> Result<bool, LedgerError> {
        let end = Instant::now() + PATIENCE;
        loop {
            let read = self.api.get_metadata_opt(&pool.name);
            let found = self.ask(Verb::Get, &pool.name, read).await?;
            let present = found
                .as_ref()
                .and_then(|object| object.annotations().get(key));
            let Some(value) = decide(present.map(String::as_str)) else {
                return Ok(false);
            };
            let written = match found {
                None => self.create_with(pool, key, value).await,
                Some(found) => {
                    let patch = json!({ "metadata": {
                        "resourceVersion": found.metadata.resource_version,
                        "annotations": { key: value },
                    }});
                    let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
                    let patched = self.api.patch_metadata(&pool.name, &params, &patch);
                    self.ask(Verb::Patch, &pool.name, patched).await.map(drop)
                }
            };
            match written {
                Ok(()) => return Ok(true),
                Err(LedgerError::Conflict { .. } | LedgerError::Taken { .. })
                    if Instant::now() < end =>
                {
                    tokio::time::sleep(PAUSE).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// The present value, by a quorum read of the object's metadata.
    pub async fn annotation(
        &self,
        pool: &PoolKey,
        key: &str,
    ) -> Result<Option<String>, LedgerError> {
        let read = self.api.get_metadata_opt(&pool.name);
        let found = self.ask(Verb::Get, &pool.name, read).await?;
        Ok(found.and_then(|object| object.annotations().get(key).cloned()))
    }

    async fn create_with(
        &self,
        pool: &PoolKey,
        key: &str,
        value: String,
    ) -> Result<(), LedgerError> {
        let mut object = object::new_object(&pool.name);
        object.metadata.annotations = Some(BTreeMap::from([(key.to_owned(), value)]));
        let params = PostParams::default();
        let created = self.api.create(&params, &object);
        self.ask(Verb::Create, &pool.name, created).await.map(drop)
    }

    /// The pool's object, for events on it.
    pub async fn reference(&self, pool: &PoolKey) -> Result<ObjectReference, LedgerError> {
        let read = self.api.get_metadata_opt(&pool.name);
        let found = self.ask(Verb::Get, &pool.name, read).await?;
        Ok(ObjectReference {
            api_version: Some("v1".into()),
            kind: Some("ConfigMap".into()),
            name: Some(pool.name.clone()),
            namespace: Some(self.namespace.clone()),
            uid: found.and_then(|found| found.metadata.uid),
            ..ObjectReference::default()
        })
    }

    /// Writes events on the pools' objects.
    pub fn events(&self, component: &str, host: &str) -> Events {
        let client = self.api.clone().into_client();
        Events::new(client, self.timeout, component, host)
    }
}
