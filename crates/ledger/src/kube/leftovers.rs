//! Pools of slices that were given back: labelled by their nodes, which may not delete pools, and deleted by the
//! controller.
//!
//! Promises: a pool goes only if it is empty at exactly the version that was judged. Whoever publishes the slice again
//! loses nothing: its write finds no object, and makes one.

use kube::api::{Patch, Preconditions};
use serde_json::{Value, json};

use super::resource::POOLS;
use super::status::{Failure, Verb};
use super::{KubeLedger, PAGE};
use crate::{LedgerError, PoolKey};

/// The label of a pool whose slice was given back.
pub const GIVEN_BACK: &str = "berth.dev/given-back";

impl KubeLedger {
    /// Says on a slice's pool that its slice was given back, if it is there and empty.
    pub async fn label_given_back(&self, pool: &PoolKey) -> Result<(), LedgerError> {
        match self.wire.get(&POOLS, &pool.name).await? {
            Some(found) if is_empty(&found.object) => {
                self.relabel(&pool.name, &found.object, json!("true")).await
            }
            _ => Ok(()),
        }
    }

    /// Deletes pools of slices that were given back; how many. One that is published again is nobody's leftover.
    pub async fn delete_given_back(&self) -> Result<usize, LedgerError> {
        let labelled = format!("{GIVEN_BACK}=true");
        let mut deleted = 0;
        for object in self.wire.list(&POOLS, &labelled, PAGE).await? {
            let text = |field: &str| object["metadata"][field].as_str().map(str::to_owned);
            let Some(name) = text("name") else {
                continue;
            };
            if !is_empty(&object) {
                self.relabel(&name, &object, Value::Null).await?;
                continue;
            }
            let preconditions = Preconditions {
                uid: text("uid"),
                resource_version: text("resourceVersion"),
            };
            match self.wire.delete(&POOLS, &name, preconditions).await {
                Ok(()) => deleted += 1,
                // Written meanwhile: looked at the next time.
                Err(LedgerError::Conflict { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(deleted)
    }

    async fn relabel(&self, name: &str, seen: &Value, label: Value) -> Result<(), LedgerError> {
        let merge = Patch::Merge(json!({ "metadata": {
            "resourceVersion": seen["metadata"]["resourceVersion"],
            "labels": { GIVEN_BACK: label },
        } }));
        match self.wire.patch(&POOLS, name, &merge).await {
            Ok(_) => Ok(()),
            // Somebody has written or deleted it meanwhile: then it is none, or is looked at the next time.
            Err(Failure::Refused(refusal))
                if refusal.code == 409 || refusal.is_absence_of(name) =>
            {
                Ok(())
            }
            Err(failure) => Err(failure.into_error(self.wire.ask(Verb::Patch, &POOLS, name))),
        }
    }
}

fn is_empty(object: &Value) -> bool {
    let allocations = &object["spec"]["allocations"];
    allocations.as_object().is_none_or(|all| all.is_empty())
}
