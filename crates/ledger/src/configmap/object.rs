//! The ConfigMap around the document.
//!
//! Guarantees: every other key of the ConfigMap, its labels and annotations stay as they are (I7);
//! what would pass the API server's limit is refused before it is sent.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use berth_kube::{Place, Resource};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::ObjectMeta;

use super::document::Document;
use super::foreign_writes::Stamp;
use crate::turns::{PREFIX, Ring};
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
    place: Place::Namespaced,
};

/// Selects the pools among other ConfigMaps.
pub(super) fn selector() -> String {
    format!("{}={}", COMPONENT_LABEL.0, COMPONENT_LABEL.1)
}

/// A state as it was read: the object, for its version and its other content, and the document.
#[derive(Clone, Debug)]
pub(super) struct Stored {
    object: Option<ConfigMap>,
    document: Document,
    ring: Ring,
    /// Who wrote it last.
    stamp: Stamp,
    learned: Instant,
}

impl Stored {
    /// An object without the key has no state yet, like one that does not exist.
    pub(super) fn read(target: &str, found: Option<ConfigMap>) -> Result<Self, LedgerError> {
        let Some(mut object) = found else {
            return Ok(Self::holding(None, Document::default(), Stamp::default()));
        };
        // The text is decoded, and written again each time: it is not kept.
        let text = object.data.as_mut().and_then(|data| data.remove(STATE_KEY));
        let document = match &text {
            None => Document::default(),
            Some(text) => Document::decode(text).map_err(|error| LedgerError::Unreadable {
                target: format!("{target} key {STATE_KEY}"),
                why: std::error::Error::source(&error)
                    .map_or_else(String::new, ToString::to_string),
            })?,
        };
        let stamp = Stamp::read(
            text.as_deref().unwrap_or_default(),
            object.metadata.annotations.as_ref(),
        );
        Ok(Self::holding(Some(object), document, stamp))
    }

    fn holding(mut object: Option<ConfigMap>, document: Document, stamp: Stamp) -> Self {
        if let Some(object) = &mut object {
            object.metadata.managed_fields = None;
        }
        let annotations = object.as_ref().map(|object| &object.metadata.annotations);
        Self {
            ring: Ring::read(PREFIX, annotations.and_then(Option::as_ref)),
            object,
            document,
            stamp,
            learned: Instant::now(),
        }
    }

    /// The state after a write, from the server's answer to it. What came back as it was sent is not
    /// decoded again.
    pub(super) fn written(
        target: &str,
        sent: &Draft,
        mut answer: ConfigMap,
    ) -> Result<Self, LedgerError> {
        let text = answer.data.as_mut().and_then(|data| data.get(STATE_KEY));
        if text.is_none() || text != sent.text() {
            return Self::read(target, Some(answer));
        }
        if let Some(data) = &mut answer.data {
            data.remove(STATE_KEY);
        }
        Ok(Self::holding(
            Some(answer),
            sent.document.clone(),
            sent.stamp,
        ))
    }

    pub(super) const fn document(&self) -> &Document {
        &self.document
    }

    /// For what other programs erased.
    pub(super) const fn document_mut(&mut self) -> &mut Document {
        &mut self.document
    }

    pub(super) const fn stamp(&self) -> Stamp {
        self.stamp
    }

    /// How long ago it was read or written.
    pub(super) fn age(&self) -> Duration {
        self.learned.elapsed()
    }

    pub(super) const fn exists(&self) -> bool {
        self.object.is_some()
    }

    pub(super) fn in_use(&self) -> usize {
        self.document.allocated.len()
    }

    /// The write queue.
    pub(super) const fn ring(&self) -> &Ring {
        &self.ring
    }

    /// Empty if there is no object yet.
    pub(super) fn version(&self) -> Version {
        let version = self
            .object
            .as_ref()
            .and_then(|object| object.metadata.resource_version.clone());
        Version::new(version.unwrap_or_default())
    }

    /// The object with another document in it, to be written under the version that was read, and the
    /// queue as it is after that.
    pub(super) fn with(
        &self,
        target: &str,
        name: &str,
        document: Document,
        ring: &Ring,
        room: Room,
    ) -> Result<Draft, LedgerError> {
        let mut object = self.object.clone().unwrap_or_else(|| new_object(name));
        ring.write(&mut object.metadata.annotations);
        with_document(object, target, document, self.stamp, room)
    }
}

/// Whether a write leaves room for what must be possible later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Room {
    /// It may fill the object to its last byte.
    None,
    /// A new allocation: the entries that are there must be able to become quarantined ones.
    Quarantine,
}

/// The fields of a quarantine without its node, its tries and the text of an error.
const QUARANTINE_BYTES: usize = 128;

impl Room {
    fn bytes(self, document: &Document) -> usize {
        match self {
            Self::None => 0,
            Self::Quarantine => {
                let entries = document.allocated.values();
                let bytes = entries.map(|entry| QUARANTINE_BYTES + entry.node_name.len());
                bytes.sum()
            }
        }
    }
}

/// An object that is ready to be written, and the document in it.
#[derive(Debug)]
pub(super) struct Draft {
    pub object: ConfigMap,
    document: Document,
    stamp: Stamp,
}

impl Draft {
    fn text(&self) -> Option<&String> {
        self.object.data.as_ref()?.get(STATE_KEY)
    }
}

pub(super) fn new_object(name: &str) -> ConfigMap {
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

/// What counts against [`MAX_DATA_BYTES`].
pub(super) fn data_bytes(object: &ConfigMap) -> usize {
    let texts = object.data.iter().flat_map(|data| data.values());
    let binary = object.binary_data.iter().flat_map(|data| data.values());
    texts.map(String::len).sum::<usize>() + binary.map(|bytes| bytes.0.len()).sum::<usize>()
}

pub(super) fn with_document(
    mut object: ConfigMap,
    target: &str,
    document: Document,
    base: Stamp,
    room: Room,
) -> Result<Draft, LedgerError> {
    let text = document.encode().map_err(|error| LedgerError::Unreadable {
        target: target.into(),
        why: error.to_string(),
    })?;
    let stamp = base.write(&text, &mut object.metadata.annotations);
    let data = object.data.get_or_insert_default();
    data.insert(STATE_KEY.into(), text);
    let size = data_bytes(&object) + room.bytes(&document);
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
    Ok(Draft {
        object,
        document,
        stamp,
    })
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::Arc;

    use super::*;

    /// An empty state at a version, with a ring.
    pub(in crate::configmap) fn stored(version: u64, ring: &[(&str, u64)]) -> Arc<Stored> {
        let mut object = new_object("pool");
        object.metadata.resource_version = Some(version.to_string());
        let signed = ring
            .iter()
            .map(|(id, place)| (format!("turn.berth.dev/{id}"), place.to_string()));
        object.metadata.annotations = Some(signed.collect());
        Arc::new(Stored::read("pool", Some(object)).unwrap())
    }

    #[test]
    fn an_answer_that_is_not_what_was_sent_is_believed() {
        let before = Stored::read("pool", None).unwrap();
        let document = Document::default();
        let draft = before
            .with("pool", "pool", document, &Ring::default(), Room::None)
            .unwrap();
        let mut answer = draft.object.clone();
        let same = Stored::written("pool", &draft, answer.clone()).unwrap();
        assert_eq!(*same.document(), Document::default());
        let other = Document {
            version: 9,
            ..Document::default()
        };
        let text = other.encode().unwrap();
        answer.data.as_mut().unwrap().insert(STATE_KEY.into(), text);
        let changed = Stored::written("pool", &draft, answer).unwrap();
        assert_eq!(changed.document().version, 9);
    }
}
