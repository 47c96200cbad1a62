//! The write of one object: on exactly one version, or created.
//!
//! A commit on a state that this process has cached is written at once, on that version. If another client has written
//! since, or the state is not cached, the object is read again, the commit's guard and every precondition are checked on
//! what it is now, and that is written. Nothing is changed unless all of them hold (I1, I6).

use std::collections::BTreeMap;

use berth_core::{Address, Change, Pool};
use berth_kube::{Failure, Part, Verb};
use hyper::body::Bytes;
use kube::api::Patch;
use serde_json::{Value, json};

use super::codec::{Codec, Commit, Creation, EncodeError, WriteAs};
use super::cooldown::now;
use super::merge::merge_patch;
use super::store::{ENVELOPE, Guarded, Store, resource_version};
use crate::{LedgerError, Version};

/// Writes that met another writer, before the caller has to plan again.
const TRIES: usize = 3;

/// A commit that is durable.
#[derive(Debug)]
pub struct Written {
    /// The object as it is now.
    pub object: Value,
    /// Others wrote after the base was read: the caller's copy lacks what they did.
    pub merged: bool,
}

/// The object once a commit is made, to be written on the version that it has.
struct Next {
    before: Value,
    after: Value,
    size: usize,
}

/// Why a write was not made.
enum Unwritten {
    /// The object is at another version.
    Contended,
    Error(LedgerError),
}

impl<C: Codec> Store<'_, C> {
    pub async fn commit(&self, base: &Version, changes: &[Change]) -> Result<Version, LedgerError> {
        let written = self.write_changes(base, changes).await?;
        let version = resource_version(&written.object).unwrap_or_default();
        let version = Version::with_state(version, Guarded(self.codec.guard(&written.object)));
        Ok(match written.merged {
            true => version.merged(),
            false => version,
        })
    }

    async fn write_changes(
        &self,
        base: &Version,
        changes: &[Change],
    ) -> Result<Written, LedgerError> {
        if base.is_absent() {
            return self.create(changes).await;
        }
        if let Some(object) = self.cached(base)
            && let Ok(next) = self.next(object, changes)
        {
            match self.write(next).await {
                Ok(object) => {
                    let merged = base.is_merged();
                    return Ok(Written { object, merged });
                }
                Err(Unwritten::Error(error)) => return Err(error),
                Err(Unwritten::Contended) => {}
            }
        }
        self.commit_on_newest(base, changes).await
    }

    /// The object at that version, if this process has seen it.
    fn cached(&self, version: &Version) -> Option<Value> {
        version.state::<Guarded>()?;
        let text = self.cache.text(self.name(), version.stored())?;
        let mut object: Value = serde_json::from_slice(&text.bytes).ok()?;
        if let Some(metadata) = text.metadata {
            object["metadata"] = metadata;
        }
        Some(object)
    }

    /// Reads the object, checks everything on what it is now, and writes it on exactly that version.
    pub async fn commit_on_newest(
        &self,
        base: &Version,
        changes: &[Change],
    ) -> Result<Written, LedgerError> {
        let guard = base.state::<Guarded>();
        for _ in 0..TRIES {
            let Some(fetched) = self.get().await? else {
                return match (self.codec.create(self.key), guard) {
                    // It was there: the caller has to look what became of it.
                    (Creation::Never, Some(_)) => Err(self.conflict(Vec::new())),
                    _ => self.create(changes).await,
                };
            };
            self.note(&fetched);
            let object = fetched.object;
            if guard.is_some_and(|guard| guard.0 != self.codec.guard(&object)) {
                return Err(self.conflict(Vec::new()));
            }
            let exact = !base.is_merged() && resource_version(&object) == Some(base.stored());
            match self.write(self.next(object, changes)?).await {
                Ok(object) => {
                    let merged = !exact;
                    return Ok(Written { object, merged });
                }
                Err(Unwritten::Error(error)) => return Err(error),
                Err(Unwritten::Contended) => {}
            }
        }
        Err(self.conflict(Vec::new()))
    }

    /// What the object is after the changes, or why they can't be made on it.
    fn next(&self, mut object: Value, changes: &[Change]) -> Result<Next, LedgerError> {
        let before = self.decode(&object)?;
        let accepted = self.codec.accepts(self.key, &object, changes);
        accepted.map_err(|error| self.unfit(error))?;
        let mut after = before.clone();
        let resting = cooling(&before, changes);
        let fails = |change: &&Change| {
            resting.contains_key(&change.address()) || after.apply(change).is_err()
        };
        let violated: Vec<Address> = changes.iter().filter(fails).map(Change::address).collect();
        if !violated.is_empty() {
            return Err(self.conflict(violated));
        }
        let tracked = object["metadata"]
            .as_object_mut()
            .and_then(|metadata| metadata.remove("managedFields"))
            .is_some();
        let old = match self.codec.write_as() {
            WriteAs::MergePatch => object.clone(),
            WriteAs::Replace => Value::Null,
        };
        let commit = Commit {
            key: self.key,
            before: &before,
            after: &after,
            changes,
        };
        let encoded = self.codec.encode(&mut object, &commit);
        encoded.map_err(|error| self.unfit(error))?;
        let size = object.to_string().len() + ENVELOPE;
        if size > self.codec.size_limit_of(changes) {
            return Err(self.full(size));
        }
        // What is not said is left as it is.
        if tracked && self.codec.drops_managed_fields() {
            object["metadata"]["managedFields"] = json!([{}]);
        }
        Ok(Next {
            before: old,
            after: object,
            size,
        })
    }

    async fn write(&self, next: Next) -> Result<Value, Unwritten> {
        let (resource, part, name) = (self.codec.resource(), self.codec.part(), self.name());
        let text = Bytes::from(next.after.to_string());
        let (verb, written) = match self.codec.write_as() {
            WriteAs::Replace => {
                let replaced = self.client.replace(resource, part, name, &text);
                (Verb::Update, replaced.await)
            }
            WriteAs::MergePatch => {
                let patch = on_version(&next);
                let patched = self.client.patch_part(resource, part, name, &patch);
                (Verb::Patch, patched.await)
            }
        };
        let answer = match written {
            Ok(answer) => answer,
            Err(Failure::Refused(refusal)) if refusal.code == 409 => {
                return Err(Unwritten::Contended);
            }
            Err(Failure::Refused(refusal)) if refusal.is_absence_of(name) => {
                return Err(Unwritten::Error(self.conflict(Vec::new())));
            }
            Err(Failure::Refused(refusal)) if refusal.is_too_large() => {
                return Err(Unwritten::Error(self.full(next.size)));
            }
            Err(failure) => {
                let error = failure.into_error(self.ask(verb).of(part)).into();
                return Err(Unwritten::Error(error));
            }
        };
        self.written(verb, next, &text, &answer)
            .map_err(Unwritten::Error)
    }

    /// The object after a write that went through: without its version the caller has to look.
    fn written(
        &self,
        verb: Verb,
        next: Next,
        text: &Bytes,
        answer: &Value,
    ) -> Result<Value, LedgerError> {
        let version = self.version_of(verb, answer)?;
        let metadata = answer["metadata"].clone();
        self.cache.note(self.name(), next.size);
        self.cache
            .keep(self.name(), version, text, Some(metadata.clone()));
        let mut object = next.after;
        object["metadata"] = metadata;
        Ok(object)
    }

    fn version_of<'v>(&self, verb: Verb, answer: &'v Value) -> Result<&'v str, LedgerError> {
        resource_version(answer).ok_or_else(|| LedgerError::Uncertain {
            operation: verb.name(),
            target: self.target(),
            why: "metadata.resourceVersion is missing".to_owned(),
        })
    }

    /// The first commit of a pool whose kind has it created so. Where entries are in the status, which a CREATE can't have,
    /// the empty pool is created first.
    pub async fn create(&self, changes: &[Change]) -> Result<Written, LedgerError> {
        let resource = self.codec.resource();
        let mut object = match self.codec.create(self.key) {
            Creation::Empty(object) => object,
            Creation::Unknown(why) => return Err(self.unfit(EncodeError::Invalid(why))),
            Creation::Never => return Err(self.missing()),
        };
        object["apiVersion"] = json!(resource.api_version());
        object["kind"] = json!(resource.kind);
        object["metadata"]["name"] = json!(self.name());
        let in_status = self.codec.part() == Part::Status;
        let next = self.next(object.clone(), changes)?;
        let (object, size) = match in_status {
            true => (object, ENVELOPE),
            false => (next.after, next.size),
        };
        match self.client.create(resource, &object).await {
            Ok(_) if in_status => {
                Box::pin(self.commit_on_newest(&Version::default(), changes)).await
            }
            Ok(created) => {
                self.cache.note(self.name(), size);
                self.version_of(Verb::Create, &created)?;
                Ok(Written {
                    object: created,
                    merged: false,
                })
            }
            Err(Failure::Refused(refusal)) if refusal.is_taken_name() => {
                Err(self.conflict(Vec::new()))
            }
            Err(Failure::Refused(refusal)) if refusal.is_too_large() => Err(self.full(size)),
            Err(failure) => Err(failure.into_error(self.ask(Verb::Create)).into()),
        }
    }
}

/// The difference, to be applied to that version of that object alone.
fn on_version(next: &Next) -> Patch<Value> {
    let mut patch = merge_patch(&next.before, &next.after).unwrap_or_else(|| json!({}));
    for field in ["resourceVersion", "uid"] {
        patch["metadata"][field] = next.after["metadata"][field].clone();
    }
    Patch::Merge(patch)
}

/// The claimed addresses that cool down for another owner (I10).
fn cooling<'a>(pool: &Pool, changes: &'a [Change]) -> BTreeMap<Address, &'a Change> {
    let claims = changes.iter().filter_map(|change| match change {
        Change::Allocate { address, record } => Some((*address, (record, change))),
        _ => None,
    });
    let claims: BTreeMap<Address, _> = claims.collect();
    let now = now();
    let cooling = pool
        .cooldowns()
        .filter(|(_, cooldown)| cooldown.until > now);
    cooling
        .filter_map(|(address, cooldown)| {
            let (record, change) = claims.get(&address)?;
            (record.owner != cooldown.owner).then_some((address, *change))
        })
        .collect()
}
