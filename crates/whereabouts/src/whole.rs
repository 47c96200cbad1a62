//! Full replacement: a large object is written as a whole, where this process knows exactly what it is.
//!
//! The API server applies a patch to the object's text and then reads that again: of a pool with 10,000 entries a sixth
//! to a fifth of what the write costs (docs/decisions/0012). So a process that has the object's text sends all of it, on
//! exactly that version. If another client wrote in between, only the attempt is lost: the patch, which tests no other
//! addresses, follows.

use berth_core::Change;
use berth_kube::{Failure, Fetched, Part, Verb};
use hyper::body::Bytes;
use serde_json::{Value, json};

use super::base::{RESTING, Stamp};
use super::object::{Draft, Object};
use super::resource::POOLS;
use super::store::{Store, Written};
use berth_ledger::LedgerError;
use berth_ledger::object::now;
use berth_ledger::object::store::ENVELOPE;

/// The whole object once some changes are made.
struct Rewritten {
    text: Bytes,
    size: usize,
    uid: Value,
}

impl Store<'_> {
    /// The changes made on the object as it was seen last; none, if that has to be done by a patch.
    pub(super) async fn replace(
        &self,
        stamp: &Stamp,
        changes: &[Change],
    ) -> Result<Option<Written>, LedgerError> {
        if !self.seen.may_replace(self.name()) {
            return Ok(None);
        }
        let Some(Rewritten { text, size, uid }) = self.rewritten(stamp, changes) else {
            return Ok(None);
        };
        if self.object().check(size).is_err() {
            return Ok(None);
        }
        match self
            .client
            .replace(&POOLS, Part::Object, self.name(), &text)
            .await
        {
            Ok(replaced) => {
                self.seen.note(self.name(), size);
                let stamp = self.stamp(Verb::Update, &replaced)?;
                self.keep(&stamp, &text, &uid, &replaced);
                Ok(Some(Written {
                    stamp,
                    merged: false,
                }))
            }
            Err(Failure::Refused(refusal)) if refusal.code == 409 => {
                self.seen.met_another(self.name());
                Ok(None)
            }
            // An older role does not allow `update`: a patch does the same.
            Err(Failure::Refused(refusal)) if refusal.code == 403 => {
                self.seen.may_not_replace(self.name());
                Ok(None)
            }
            Err(Failure::Refused(refusal)) if refusal.is_too_large() => {
                Err(self.object().full(size))
            }
            // Gone, or not valid: the patch meets the same, and says it in its own words.
            Err(Failure::Refused(refusal)) if matches!(refusal.code, 404 | 422) => Ok(None),
            Err(failure) => Err(self.failed(Verb::Update, failure)),
        }
    }

    /// A patch on that state has made these changes, and no other client changed an entry: the cached text follows.
    pub(super) fn follow(
        &self,
        before: &Stamp,
        changes: &[Change],
        after: &Stamp,
        patched: &Value,
    ) {
        if let Some(Rewritten { text, uid, .. }) = self.rewritten(before, changes) {
            self.keep(after, &text, &uid, patched);
        }
    }

    /// The entries are those of the text, everything else is as the answer says: marks are set by others, and the
    /// generation does not count them. An object that was created again has entries of its own.
    fn keep(&self, stamp: &Stamp, text: &Bytes, uid: &Value, answer: &Value) {
        let metadata = &answer["metadata"];
        if metadata["uid"] == *uid {
            let metadata = Some(metadata.clone());
            self.seen
                .keep(self.name(), &stamp.resource_version, text, metadata);
        }
    }

    /// None, if the object is not known at that state.
    fn rewritten(&self, stamp: &Stamp, changes: &[Change]) -> Option<Rewritten> {
        let text = self.seen.text(self.name(), &stamp.resource_version)?;
        let size = text.bytes.len();
        let mut object: Value = serde_json::from_slice(&text.bytes).ok()?;
        if let Some(metadata) = text.metadata {
            object["metadata"] = metadata;
        }
        let uid = object["metadata"]["uid"].clone();
        let fetched = Fetched {
            object,
            size,
            text: None,
        };
        let object = Object::read(self.key.network, fetched).ok()?;
        if object.resting.bars(changes).is_some() {
            return None;
        }
        let rests = object.resting.after(object.network, changes, now());
        let draft = Draft::of(&object, changes).ok()?;
        let size = draft.size() + ENVELOPE;
        let entries = draft.into_entries();
        let mut whole = object.with(entries);
        let metadata = whole.get_mut("metadata")?.as_object_mut()?;
        metadata.insert("resourceVersion".into(), json!(stamp.resource_version));
        // Left out, the API server keeps them; an empty entry ends them.
        metadata.remove("managedFields");
        if stamp.tracked {
            metadata.insert("managedFields".into(), json!([{}]));
        }
        if let Some(rests) = rests {
            let annotations = metadata.entry("annotations").or_insert_with(|| json!({}));
            let annotations = annotations.as_object_mut()?;
            match rests.text() {
                Some(text) => annotations.insert(RESTING.into(), Value::String(text)),
                None => annotations.remove(RESTING),
            };
        }
        let text = serde_json::to_vec(&whole).ok()?.into();
        Some(Rewritten { text, size, uid })
    }
}
