//! Keeps what can't be parsed, for a person to read (I5): under another key of the pool's ConfigMap, or in a
//! second ConfigMap where the first has no room.

use std::collections::BTreeMap;
use std::time::Instant;

use berth_kube::Verb;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::json;

use super::document::Document;
use super::foreign_writes::{self, Stamp};
use super::object::{
    COMPONENT_LABEL, Draft, MAX_DATA_BYTES, Room, STATE_KEY, data_bytes, new_object, with_document,
};
use super::salvage::{self, Salvage};
use super::{ConfigMapLedger, PATIENCE};
use crate::{LedgerError, PoolKey, Rejection};

/// The label of ConfigMaps that hold no pool's state.
const ASIDE_COMPONENT: &str = "byom-ip-pool-state-unreadable";
/// The second ConfigMap of a pool is named after the first.
const ASIDE_SUFFIX: &str = "-unreadable";

/// A state whose text is no document.
struct Unreadable {
    object: ConfigMap,
    text: String,
    stamp: Stamp,
}

impl Unreadable {
    fn find(found: Option<ConfigMap>) -> Option<Self> {
        let mut object = found?;
        let text = object.data.as_mut()?.remove(STATE_KEY)?;
        object.metadata.managed_fields = None;
        let stamp = Stamp::read(&text, object.metadata.annotations.as_ref());
        Document::decode(&text).is_err().then_some(Self {
            object,
            text,
            stamp,
        })
    }
}

impl ConfigMapLedger {
    /// Sets aside a state that can't be parsed, and replaces it by what could be parsed of it. `None` if it can be parsed
    /// after all.
    ///
    /// What could not be parsed is not free: its owner is unknown (I4). See [`Salvage`].
    pub async fn set_aside(&self, pool: &PoolKey) -> Result<Option<Salvage>, LedgerError> {
        let (members, view) = (self.members(pool), self.view(pool));
        let end = Instant::now() + PATIENCE;
        loop {
            let Some(found) = Unreadable::find(self.get(pool).await?) else {
                return Ok(None);
            };
            let known = view.known_entries();
            let salvage = salvage::salvage(&found.text, &members, &known, Timestamp::now());
            let document = salvage.document.clone();
            let target = self.target(pool);
            let mut next = with_document(found.object, &target, document, found.stamp, Room::None)?;
            self.keep_aside(pool, &mut next, &found.text).await?;
            if self.write(pool, next, end).await?.is_some() {
                view.set_aside(salvage.unknown.len());
                return Ok(Some(salvage));
            }
        }
    }

    /// Puts the text beside the state that is about to be written, or, before that, into a second ConfigMap.
    pub(super) async fn keep_aside(
        &self,
        pool: &PoolKey,
        next: &mut Draft,
        text: &str,
    ) -> Result<(), LedgerError> {
        if let Some(key) = put_beside(&mut next.object, text, Timestamp::now()) {
            tracing::warn!(
                pool = pool.name,
                key,
                "a part of the state can't be read; it is kept under this key"
            );
            return Ok(());
        }
        let name = format!("{}{ASIDE_SUFFIX}", pool.name);
        // The key is made of the text: a second try writes it once more.
        let data = BTreeMap::from([(
            format!("{STATE_KEY}.{:016x}", foreign_writes::digest(text)),
            text.to_owned(),
        )]);
        // Patched before it is created: the account of the pools may create no ConfigMap (deploy/vms/state.yaml does).
        let patch = Patch::Merge(json!({ "data": data }));
        let params = PatchParams::default();
        let patched = self.api.patch(&name, &params, &patch);
        match self.ask(Verb::Patch, &name, patched).await {
            Ok(_) => {}
            Err(LedgerError::Rejected {
                rejection: Rejection::Missing(_),
                ..
            }) => {
                let (params, object) = (PostParams::default(), aside_object(&name, data));
                let created = self.api.create(&params, &object);
                self.ask(Verb::Create, &name, created).await?;
            }
            Err(error) => return Err(error),
        }
        tracing::warn!(
            pool = pool.name,
            configmap = name,
            "a part of the state can't be read; it is kept in this ConfigMap"
        );
        Ok(())
    }
}

/// The key, if the object has room for the text.
fn put_beside(object: &mut ConfigMap, text: &str, now: Timestamp) -> Option<String> {
    if data_bytes(object) + text.len() > MAX_DATA_BYTES {
        return None;
    }
    let data = object.data.get_or_insert_default();
    let stamp = now.strftime("%Y%m%dT%H%M%SZ");
    let mut key = format!("{STATE_KEY}.unreadable-{stamp}");
    while data.contains_key(&key) {
        key.push('x');
    }
    data.insert(key.clone(), text.into());
    Some(key)
}

fn aside_object(name: &str, data: BTreeMap<String, String>) -> ConfigMap {
    let mut object = new_object(name);
    let label = (COMPONENT_LABEL.0.into(), ASIDE_COMPONENT.into());
    object
        .metadata
        .labels
        .get_or_insert_default()
        .extend([label]);
    object.data = Some(data);
    object
}
