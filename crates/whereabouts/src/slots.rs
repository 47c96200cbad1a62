//! The pools that nodes publish, found by the slot that they lie in.
//!
//! The name of such a pool has its node in it, so the pools of a slot can't be read by name. A label has the slot, and one
//! list from the API server's cache finds them.

use std::collections::BTreeMap;

use berth_api::names;
use berth_core::Prefix;
use berth_kube::{Failure, Verb};
use kube::api::Patch;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::label::label;
use super::marks::PUBLISHED;
use super::resource::POOLS;
use super::{KubeLedger, snapshot};
use berth_ledger::{LedgerError, PoolKey};

/// The label of a published pool that tells the slot of its range.
pub const SLOT: &str = "berth.dev/slot";

/// The slots of the pools that this node publishes, by name.
#[derive(Debug, Default)]
pub(super) struct Slots(Mutex<BTreeMap<String, String>>);

impl Slots {
    pub fn of(&self, pool: &str) -> Option<String> {
        let all = self.0.lock();
        all.get(pool).cloned()
    }
}

impl KubeLedger {
    /// The pool lies in that slot: it is labelled so when this ledger makes it.
    pub fn place(&self, pool: &PoolKey, network: &str, slot: Prefix) {
        let all = &self.slots.0;
        let mut all = all.lock();
        let slot = label(&names::slice(network, slot));
        all.entry(pool.name.clone()).or_insert(slot);
    }

    /// Labels a pool that was made by a version without the label.
    pub(super) async fn label_slot(&self, pool: &PoolKey) -> Result<(), LedgerError> {
        let Some(slot) = self.slots.of(&pool.name) else {
            return Ok(());
        };
        let found = self.client.get_metadata(&POOLS, &pool.name).await?;
        let lacks = |object: &Value| object["metadata"]["labels"][SLOT].is_null();
        if !found.is_some_and(|found| lacks(&found.object)) {
            return Ok(());
        }
        let patch = Patch::Merge(json!({ "metadata": { "labels": { SLOT: slot } } }));
        match self.client.patch(&POOLS, &pool.name, &patch).await {
            Ok(_) => Ok(()),
            Err(Failure::Refused(refusal)) if refusal.is_absence_of(&pool.name) => Ok(()),
            Err(failure) => Err(failure
                .into_error(self.client.ask(Verb::Patch, &POOLS, &pool.name))
                .into()),
        }
    }

    /// Whether another node publishes entries of a slot: pods have addresses of it, whatever its claim says. One list from the
    /// API server's cache; each pool that it finds is read, and one that can't be counts as used (I5).
    pub async fn is_slot_used_elsewhere(
        &self,
        network: &str,
        slot: Prefix,
        node: &str,
    ) -> Result<bool, LedgerError> {
        let selector = format!("{SLOT}={}", label(&names::slice(network, slot)));
        let theirs = |metadata: &Value| {
            let publisher = metadata["annotations"][PUBLISHED].as_str()?;
            let name = metadata["name"].as_str().filter(|_| publisher != node);
            name.map(|name| PoolKey::of_network(name, slot))
        };
        let found = self.client.pick_cached_metadata(&POOLS, &selector, theirs);
        for pool in found.await? {
            if self.has_entries(&pool).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether a pool has entries, or can't be read.
    pub(super) async fn has_entries(&self, pool: &PoolKey) -> Result<bool, LedgerError> {
        match self.store(pool).read().await {
            Ok(now) => Ok(now.is_some_and(|object| !snapshot(Some(&object)).pool.is_empty())),
            Err(LedgerError::Unreadable { .. }) => Ok(true),
            Err(error) => Err(error),
        }
    }
}
