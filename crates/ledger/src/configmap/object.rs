//! The ConfigMap around the document.
//!
//! Promises: every other key of the ConfigMap, its labels and annotations stay as they are (I7);
//! what would pass the API server's limit is refused before it is sent.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::ObjectMeta;

use super::document::Document;
use crate::kube::resource::Resource;
use crate::{LedgerError, Version};

/// The key of the ConfigMap that holds the document.
pub const STATE_KEY: &str = "allocation-state";
/// What the API server takes as the sum of all values of a ConfigMap.
pub const MAX_DATA_BYTES: usize = 1024 * 1024;
pub const COMPONENT_LABEL: (&str, &str) = ("app.kubernetes.io/component", "byom-ip-pool-state");
const NAME_LABEL: (&str, &str) = ("app.kubernetes.io/name", "cloud-api-adaptor");

pub(super) const CONFIG_MAPS: Resource = Resource {
    group: "",
    version: "v1",
    plural: "configmaps",
    kind: "ConfigMap",
};

/// Finds the pools among other ConfigMaps.
pub(super) fn selector() -> String {
    format!("{}={}", COMPONENT_LABEL.0, COMPONENT_LABEL.1)
}

/// A state as it was read: the object, for its version and its other content, and the document.
#[derive(Clone, Debug, Default)]
pub(super) struct Stored {
    object: Option<ConfigMap>,
    document: Document,
}

impl Stored {
    /// An object without the key has no state yet, like one that does not exist.
    pub(super) fn read(target: &str, found: Option<ConfigMap>) -> Result<Self, LedgerError> {
        let Some(mut object) = found else {
            return Ok(Self::default());
        };
        // The text is decoded, and written anew each time: no need to carry it along.
        let text = object.data.as_mut().and_then(|data| data.remove(STATE_KEY));
        let document = match &text {
            None => Document::default(),
            Some(text) => Document::decode(text).map_err(|error| LedgerError::Unreadable {
                target: format!("{target} key {STATE_KEY}"),
                why: std::error::Error::source(&error)
                    .map_or_else(String::new, ToString::to_string),
            })?,
        };
        object.metadata.managed_fields = None;
        Ok(Self {
            object: Some(object),
            document,
        })
    }

    pub(super) const fn document(&self) -> &Document {
        &self.document
    }

    pub(super) const fn exists(&self) -> bool {
        self.object.is_some()
    }

    pub(super) fn in_use(&self) -> usize {
        self.document.allocated.len()
    }

    /// Empty if there is no object yet.
    pub(super) fn version(&self) -> Version {
        let version = self
            .object
            .as_ref()
            .and_then(|object| object.metadata.resource_version.clone());
        Version(version.unwrap_or_default())
    }

    /// The object with another document in it, to be written under the version that was read.
    pub(super) fn with(
        &self,
        target: &str,
        name: &str,
        document: &Document,
    ) -> Result<ConfigMap, LedgerError> {
        let object = self.object.clone().unwrap_or_else(|| new_object(name));
        with_document(object, target, document)
    }
}

fn new_object(name: &str) -> ConfigMap {
    let labels = [NAME_LABEL, COMPONENT_LABEL].map(|(key, value)| (key.into(), value.into()));
    ConfigMap {
        metadata: ObjectMeta {
            name: Some(name.into()),
            labels: Some(BTreeMap::from(labels)),
            ..ObjectMeta::default()
        },
        ..ConfigMap::default()
    }
}

fn with_document(
    mut object: ConfigMap,
    target: &str,
    document: &Document,
) -> Result<ConfigMap, LedgerError> {
    let text = document.encode().map_err(|error| LedgerError::Unreadable {
        target: target.into(),
        why: error.to_string(),
    })?;
    let data = object.data.get_or_insert_default();
    data.insert(STATE_KEY.into(), text);
    let texts: usize = data.values().map(String::len).sum();
    let binary: usize = object
        .binary_data
        .iter()
        .flat_map(|data| data.values())
        .map(|v| v.0.len())
        .sum();
    let size = texts + binary;
    if size > MAX_DATA_BYTES {
        return Err(LedgerError::Full {
            target: target.into(),
            size,
            limit: MAX_DATA_BYTES,
            hint: format!(
                "{} allocations are in it: spread the VMs over several pools",
                document.allocated.len()
            ),
        });
    }
    Ok(object)
}

/// The object and its text, if the text is there and is no document.
pub(super) fn unreadable(found: &Option<ConfigMap>) -> Option<(ConfigMap, String)> {
    let mut object = found.clone()?;
    let text = object.data.as_mut()?.remove(STATE_KEY)?;
    object.metadata.managed_fields = None;
    Document::decode(&text).is_err().then_some((object, text))
}

/// The object with the unreadable text under a key of its own and a new document in the old place.
pub(super) fn with_set_aside(
    mut object: ConfigMap,
    text: String,
    document: &Document,
    now: Timestamp,
) -> Result<ConfigMap, LedgerError> {
    let target = object.metadata.name.clone().unwrap_or_default();
    let data = object.data.get_or_insert_default();
    let stamp = now.strftime("%Y%m%dT%H%M%SZ");
    let mut key = format!("{STATE_KEY}.unreadable-{stamp}");
    while data.contains_key(&key) {
        key.push('x');
    }
    data.insert(key, text);
    with_document(object, &target, document)
}
