//! One object: read, created, written on exactly one version.
//!
//! A commit on a state that this process has seen is written at once, on that version. If somebody else has written in
//! between, or the state was not seen, the object is read again, the commit's guard and every precondition are checked on
//! what it is now, and that is written. Nothing is changed unless all of them hold (I1, I6).

use std::collections::BTreeMap;

use berth_core::{Address, Change, Pool};
use hyper::body::Bytes;
use kube::api::Patch;
use serde_json::{Value, json};

use super::codec::{Codec, Commit, EncodeError, WriteAs};
use super::cooldown::now;
use super::merge::merge_patch;
use crate::kube::object_cache::ObjectCache;
use crate::kube::store::ENVELOPE;
use crate::kube::{Ask, Failure, Fetched, ObjectClient, Part, Verb};
use crate::{LedgerError, PoolKey, Rejection, Snapshot, Version};

/// Writes that met another writer, before the caller has to plan again.
const TRIES: usize = 3;

pub(super) struct Store<'a, C> {
    pub client: &'a ObjectClient,
    pub cache: &'a ObjectCache,
    pub codec: &'a C,
    pub key: &'a PoolKey,
}

/// What a version remembers: the guard of commits that were planned on it.
struct Guarded(Value);

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

fn resource_version(object: &Value) -> Option<&str> {
    object["metadata"]["resourceVersion"].as_str()
}

impl<C: Codec> Store<'_, C> {
    fn name(&self) -> &str {
        &self.key.name
    }

    fn ask(&self, verb: Verb) -> Ask<'_> {
        self.client.ask(verb, self.codec.resource(), self.name())
    }

    fn target(&self) -> String {
        self.ask(Verb::Get).target()
    }

    pub async fn get(&self) -> Result<Option<Fetched>, LedgerError> {
        self.client.get(self.codec.resource(), self.name()).await
    }

    /// The pool as it is, kept for the next commit.
    pub async fn load(&self) -> Result<Snapshot, LedgerError> {
        match self.get().await? {
            Some(fetched) => {
                self.note(&fetched);
                self.snapshot(&fetched.object)
            }
            None => self.absent(),
        }
    }

    /// The same for a reader that will not write it.
    pub async fn peek(&self) -> Result<Snapshot, LedgerError> {
        match self.get().await? {
            Some(fetched) => self.snapshot(&fetched.object),
            None => self.absent(),
        }
    }

    fn absent(&self) -> Result<Snapshot, LedgerError> {
        match self.codec.create(self.key) {
            Some(_) => Ok(Snapshot {
                pool: Pool::new(),
                version: Version::absent(),
            }),
            None => Err(self.missing()),
        }
    }

    pub fn snapshot(&self, object: &Value) -> Result<Snapshot, LedgerError> {
        Ok(Snapshot {
            pool: self.decode(object)?,
            version: self.version(object)?,
        })
    }

    fn decode(&self, object: &Value) -> Result<Pool, LedgerError> {
        let pool = self.codec.decode(self.key, object);
        pool.map_err(|why| self.unreadable(why))
    }

    fn version(&self, object: &Value) -> Result<Version, LedgerError> {
        let missing = || self.unreadable("metadata.resourceVersion is missing".to_owned());
        let version = resource_version(object).ok_or_else(missing)?;
        Ok(Version::with_state(
            version,
            Guarded(self.codec.guard(object)),
        ))
    }

    fn note(&self, fetched: &Fetched) {
        let tracked = fetched.object["metadata"].get("managedFields");
        let tracked = tracked.map_or(0, |fields| fields.to_string().len());
        let size = fetched.size.saturating_sub(tracked) + ENVELOPE;
        self.cache.note(self.name(), size);
        if let (Some(text), Some(version)) = (&fetched.text, resource_version(&fetched.object)) {
            self.cache.keep(self.name(), version, text, None);
        }
    }

    /// Whether the object is at that version still. Reads its metadata alone.
    pub async fn is_at(&self, version: &Version) -> Result<bool, LedgerError> {
        let (resource, name) = (self.codec.resource(), self.name());
        let found = self.client.get_metadata(resource, name).await?;
        Ok(match found {
            Some(found) => resource_version(&found.object) == Some(version.stored()),
            None => version.is_absent(),
        })
    }

    pub async fn commit(&self, base: &Version, changes: &[Change]) -> Result<Version, LedgerError> {
        if base.is_absent() {
            return self.create(changes).await;
        }
        if let Some(object) = self.cached(base)
            && let Ok(next) = self.next(object, changes)
        {
            match self.write(next).await {
                Ok(version) if base.is_merged() => return Ok(version.merged()),
                Ok(version) => return Ok(version),
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

    async fn commit_on_newest(
        &self,
        base: &Version,
        changes: &[Change],
    ) -> Result<Version, LedgerError> {
        let guard = base.state::<Guarded>();
        for _ in 0..TRIES {
            let Some(fetched) = self.get().await? else {
                return match guard {
                    // It was there: the caller has to look what became of it.
                    Some(_) => Err(self.conflict(Vec::new())),
                    None => self.create(changes).await,
                };
            };
            self.note(&fetched);
            let object = fetched.object;
            if guard.is_some_and(|guard| guard.0 != self.codec.guard(&object)) {
                return Err(self.conflict(Vec::new()));
            }
            let exact = !base.is_merged() && resource_version(&object) == Some(base.stored());
            match self.write(self.next(object, changes)?).await {
                Ok(version) if exact => return Ok(version),
                Ok(version) => return Ok(version.merged()),
                Err(Unwritten::Error(error)) => return Err(error),
                Err(Unwritten::Contended) => {}
            }
        }
        Err(self.conflict(Vec::new()))
    }

    /// What the object is after the changes, or why they can't be made on it.
    fn next(&self, mut object: Value, changes: &[Change]) -> Result<Next, LedgerError> {
        let before = self.decode(&object)?;
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
        self.check(size)?;
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

    async fn write(&self, next: Next) -> Result<Version, Unwritten> {
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
                let error = failure.into_error(self.ask(verb).of(part));
                return Err(Unwritten::Error(error));
            }
        };
        self.written(verb, next, &text, &answer)
            .map_err(Unwritten::Error)
    }

    /// The write went through: without its version the caller has to look.
    fn written(
        &self,
        verb: Verb,
        next: Next,
        text: &Bytes,
        answer: &Value,
    ) -> Result<Version, LedgerError> {
        let Some(version) = resource_version(answer) else {
            return Err(LedgerError::Uncertain {
                operation: verb.name(),
                target: self.target(),
                why: "the answer has no metadata.resourceVersion".to_owned(),
            });
        };
        let metadata = answer["metadata"].clone();
        self.cache.note(self.name(), next.size);
        self.cache
            .keep(self.name(), version, text, Some(metadata.clone()));
        let mut object = next.after;
        object["metadata"] = metadata;
        let guard = Guarded(self.codec.guard(&object));
        Ok(Version::with_state(version, guard))
    }

    /// The first commit of a pool whose kind has it created so. Where entries are in the status, which a CREATE can't have,
    /// the empty pool is created first.
    async fn create(&self, changes: &[Change]) -> Result<Version, LedgerError> {
        let resource = self.codec.resource();
        let Some(mut object) = self.codec.create(self.key) else {
            return Err(self.missing());
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
                self.version(&created).map_err(|_| LedgerError::Uncertain {
                    operation: Verb::Create.name(),
                    target: self.target(),
                    why: "the answer has no metadata.resourceVersion".to_owned(),
                })
            }
            Err(Failure::Refused(refusal)) if refusal.is_taken_name() => {
                Err(self.conflict(Vec::new()))
            }
            Err(Failure::Refused(refusal)) if refusal.is_too_large() => Err(self.full(size)),
            Err(failure) => Err(failure.into_error(self.ask(Verb::Create))),
        }
    }

    /// Whether the object, as it was seen last, has room for these claims.
    pub fn fits(&self, claims: &[Change]) -> Result<(), LedgerError> {
        let bytes = |change: &Change| match change {
            Change::Claim { address, record } => self.codec.entry_size(*address, record),
            Change::Release { .. } | Change::Update { .. } => 0,
        };
        let growth: usize = claims.iter().map(bytes).sum();
        let growth = i64::try_from(growth).unwrap_or(i64::MAX);
        self.check(self.cache.size_after(self.name(), growth))
    }

    fn check(&self, size: usize) -> Result<(), LedgerError> {
        match size > self.codec.size_limit() {
            true => Err(self.full(size)),
            false => Ok(()),
        }
    }

    fn full(&self, size: usize) -> LedgerError {
        LedgerError::Full {
            target: self.target(),
            size,
            // The server has the last word, and may take less than was thought.
            limit: self.codec.size_limit().min(size),
            hint: self.codec.full_hint().to_owned(),
        }
    }

    fn conflict(&self, held: Vec<Address>) -> LedgerError {
        LedgerError::Conflict {
            pool: self.target(),
            held,
        }
    }

    fn unreadable(&self, why: String) -> LedgerError {
        LedgerError::Unreadable {
            target: self.target(),
            why,
        }
    }

    fn missing(&self) -> LedgerError {
        let kind = self.codec.resource().kind;
        LedgerError::Rejected {
            operation: Verb::Get.name(),
            target: self.target(),
            rejection: Rejection::Missing(format!(
                "no such object; create the {kind}: an allocation does not"
            )),
        }
    }

    fn unfit(&self, error: EncodeError) -> LedgerError {
        match error {
            EncodeError::Moved => LedgerError::Moved {
                pool: self.key.name.clone(),
            },
            EncodeError::Invalid(message) => LedgerError::Rejected {
                operation: Verb::Update.name(),
                target: self.target(),
                rejection: Rejection::Invalid { code: 422, message },
            },
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
        Change::Claim { address, record } => Some((*address, (record, change))),
        _ => None,
    });
    let claims: BTreeMap<Address, _> = claims.collect();
    let now = now();
    let cooling = pool.rests().filter(|(_, rest)| rest.until > now);
    cooling
        .filter_map(|(address, rest)| {
            let (record, change) = claims.get(&address)?;
            (record.owner != rest.owner).then_some((address, *change))
        })
        .collect()
}
