//! Pools of released slices: labelled by their nodes, which may not delete pools, and deleted by the controller.
//!
//! Guarantee: a pool is deleted only if it is empty at exactly the version that was judged. A node that publishes the
//! slice again loses nothing: its write finds no object, and creates one.

use berth_kube::{Failure, KubeError, Verb};
use kube::api::{Patch, Preconditions};
use serde_json::{Value, json};

use super::resource::POOLS;
use super::{KubeLedger, PAGE};
use berth_ledger::{LedgerError, PoolKey};

/// The label of a pool whose slice was released.
pub const GIVEN_BACK: &str = "berth.dev/given-back";

impl KubeLedger {
    /// Labels a slice's pool as released, if it exists and is empty.
    pub async fn label_given_back(&self, pool: &PoolKey) -> Result<(), LedgerError> {
        match self.client.get(&POOLS, &pool.name).await? {
            Some(found) if is_empty(&found.object) => {
                let version = text(&found.object, "resourceVersion");
                self.relabel(&pool.name, &version, json!("true")).await
            }
            _ => Ok(()),
        }
    }

    /// Deletes pools of slices that were given back; how many. One that is published again stays.
    pub async fn delete_given_back(&self) -> Result<usize, LedgerError> {
        let labelled = format!("{GIVEN_BACK}=true");
        let mut leftovers: Vec<Leftover> = Vec::new();
        let keep = |object: Value| leftovers.extend(Leftover::of(&object));
        self.client.reduce(&POOLS, &labelled, PAGE, keep).await?;
        let mut deleted = 0;
        for one in leftovers {
            if !one.is_empty {
                self.relabel(&one.name, &one.version, Value::Null).await?;
                continue;
            }
            let preconditions = Preconditions {
                uid: one.uid,
                resource_version: one.version,
            };
            match self.client.delete(&POOLS, &one.name, preconditions).await {
                Ok(()) => deleted += 1,
                // Written meanwhile: read again the next time.
                Err(KubeError::Conflict { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(deleted)
    }

    async fn relabel(
        &self,
        name: &str,
        version: &Option<String>,
        label: Value,
    ) -> Result<(), LedgerError> {
        let merge = Patch::Merge(json!({ "metadata": {
            "resourceVersion": version,
            "labels": { GIVEN_BACK: label },
        } }));
        match self.client.patch(&POOLS, name, &merge).await {
            Ok(_) => Ok(()),
            // Written or deleted meanwhile: the next time decides.
            Err(Failure::Refused(refusal))
                if refusal.code == 409 || refusal.is_absence_of(name) =>
            {
                Ok(())
            }
            Err(failure) => Err(failure
                .into_error(self.client.ask(Verb::Patch, &POOLS, name))
                .into()),
        }
    }
}

/// What is kept of a labelled pool that a list showed.
struct Leftover {
    name: String,
    uid: Option<String>,
    version: Option<String>,
    is_empty: bool,
}

impl Leftover {
    fn of(object: &Value) -> Option<Leftover> {
        Some(Leftover {
            name: text(object, "name")?,
            uid: text(object, "uid"),
            version: text(object, "resourceVersion"),
            is_empty: is_empty(object),
        })
    }
}

fn text(object: &Value, field: &str) -> Option<String> {
    object["metadata"][field].as_str().map(str::to_owned)
}

fn is_empty(object: &Value) -> bool {
    let allocations = &object["spec"]["allocations"];
    allocations.as_object().is_none_or(|all| all.is_empty())
}
