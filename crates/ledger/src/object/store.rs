//! One object: read, decoded, and what is wrong with it.

use berth_core::{Address, Change, Pool};
use berth_kube::{Ask, Fetched, ObjectClient, Verb};
use serde_json::Value;

use super::codec::{Codec, Creation, EncodeError, WriteAs};
use super::object_cache::ObjectCache;
use crate::{LedgerError, PoolKey, Rejection, Snapshot, Version};

/// What etcd and the API server add around an object: its key, twice, and the transaction.
pub const ENVELOPE: usize = 768;

#[derive(Debug)]
pub struct Store<'a, C> {
    pub client: &'a ObjectClient,
    pub cache: &'a ObjectCache,
    pub codec: &'a C,
    pub key: &'a PoolKey,
}

/// What a version remembers: the guard of commits that were planned on it.
pub(super) struct Guarded(pub(super) Value);

pub(super) fn resource_version(object: &Value) -> Option<&str> {
    object["metadata"]["resourceVersion"].as_str()
}

impl<C: Codec> Store<'_, C> {
    pub(super) fn name(&self) -> &str {
        &self.key.name
    }

    pub fn ask(&self, verb: Verb) -> Ask<'_> {
        self.client.ask(verb, self.codec.resource(), self.name())
    }

    pub fn target(&self) -> String {
        self.ask(Verb::Get).target()
    }

    pub async fn get(&self) -> Result<Option<Fetched>, LedgerError> {
        let read = self.client.get(self.codec.resource(), self.name());
        Ok(read.await?)
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
            Creation::Empty(_) | Creation::Unknown(_) => Ok(Snapshot {
                pool: Pool::new(),
                version: Version::absent(),
            }),
            Creation::Never => Err(self.missing()),
        }
    }

    pub fn snapshot(&self, object: &Value) -> Result<Snapshot, LedgerError> {
        Ok(Snapshot {
            pool: self.decode(object)?,
            version: self.version(object)?,
        })
    }

    pub(super) fn decode(&self, object: &Value) -> Result<Pool, LedgerError> {
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

    pub(super) fn note(&self, fetched: &Fetched) {
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

    /// Whether the object, as it was seen last, has room for these claims.
    pub fn fits(&self, claims: &[Change]) -> Result<(), LedgerError> {
        let bytes = |change: &Change| match change {
            Change::Allocate { address, record } => self.codec.entry_size(*address, record),
            Change::Release { .. } | Change::Update { .. } => 0,
        };
        let growth: usize = claims.iter().map(bytes).sum();
        let growth = i64::try_from(growth).unwrap_or(i64::MAX);
        self.check(self.cache.size_after(self.name(), growth))
    }

    pub fn check(&self, size: usize) -> Result<(), LedgerError> {
        match size > self.codec.size_limit() {
            true => Err(self.full(size)),
            false => Ok(()),
        }
    }

    pub fn full(&self, size: usize) -> LedgerError {
        LedgerError::Full {
            target: self.target(),
            size,
            // The server has the last word, and may take less than was thought.
            limit: self.codec.size_limit().min(size),
            hint: self.codec.full_hint().to_owned(),
        }
    }

    pub fn conflict(&self, held: Vec<Address>) -> LedgerError {
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

    pub(super) fn missing(&self) -> LedgerError {
        let kind = self.codec.resource().kind;
        LedgerError::Rejected {
            operation: Verb::Get.name(),
            target: self.target(),
            rejection: Rejection::Missing(format!(
                "no such object; create the {kind}: an allocation does not"
            )),
        }
    }

    pub fn unfit(&self, error: EncodeError) -> LedgerError {
        match error {
            EncodeError::Moved => LedgerError::Moved {
                pool: self.key.name.clone(),
            },
            EncodeError::Conflict(held) => self.conflict(held),
            EncodeError::Invalid(message) => LedgerError::Rejected {
                operation: match self.codec.write_as() {
                    WriteAs::Replace => Verb::Update.name(),
                    WriteAs::MergePatch => Verb::Patch.name(),
                },
                target: self.target(),
                rejection: Rejection::Invalid { code: 422, message },
            },
        }
    }
}
