//! How the objects of one kind keep a pool.

use std::fmt;

use berth_core::{Address, Change, Pool, Prefix, Record};
use berth_kube::{Part, Resource};
use serde_json::{Value, json};

use super::ETCD_REQUEST_LIMIT;
use crate::PoolKey;

/// Everything that [`super::ObjectLedger`] has to know of a kind. Lives with the front whose kind it is.
///
/// Guarantees that a codec gives: what it can't read holds its address and is never written over (I5); what it does not
/// know stays where it is (I7); decoding what it encoded gives the same pool.
pub trait Codec: fmt::Debug + Send + Sync + 'static {
    /// The kind.
    fn resource(&self) -> &'static Resource;

    /// Where the entries are: in the object, or in its `status` behind the subresource.
    fn part(&self) -> Part {
        Part::Object
    }

    /// How a changed object is sent. Roles have to allow that verb.
    fn write_as(&self) -> WriteAs {
        WriteAs::Replace
    }

    /// The pool that an object keeps, or why the object can't be read at all. An entry that can't be read is a
    /// [`berth_core::Unparsed`] of the pool.
    fn decode(&self, key: &PoolKey, object: &Value) -> Result<Pool, String>;

    /// Whether the object takes such changes at all: asked before their preconditions are checked.
    fn accepts(
        &self,
        _key: &PoolKey,
        _object: &Value,
        _changes: &[Change],
    ) -> Result<(), EncodeError> {
        Ok(())
    }

    /// Writes a commit into the object that its pool was decoded from, with everything that is kept together with the
    /// entries (counters, attributes, cooldowns). Every precondition has been checked. Does not touch
    /// `metadata.resourceVersion`.
    fn encode(&self, object: &mut Value, commit: &Commit<'_>) -> Result<(), EncodeError>;

    /// What has to be the same when a commit is written as it was when the caller read the pool, apart from the commit's
    /// own addresses: if it is not, the commit is a conflict. By default the object's UID. A kind whose spec decides which
    /// addresses there are adds `metadata.generation`, or that part of the spec where entries are in the spec too.
    fn guard(&self, object: &Value) -> Value {
        json!(object["metadata"]["uid"])
    }

    /// Whether and how a commit creates the object of a pool that does not exist.
    fn create(&self, _key: &PoolKey) -> Creation {
        Creation::Never
    }

    /// The network of the key that a listed object has.
    fn network(&self, _object: &Value) -> Option<Prefix> {
        None
    }

    /// Bytes that an entry takes in the object.
    fn entry_size(&self, address: Address, record: &Record) -> usize {
        json!({ address.to_string(): record }).to_string().len()
    }

    /// Bytes that an object may have.
    fn size_limit(&self) -> usize {
        ETCD_REQUEST_LIMIT
    }

    /// Bytes that an object may have after these changes.
    fn size_limit_of(&self, _changes: &[Change]) -> usize {
        self.size_limit()
    }

    /// What to do when an object is full.
    fn full_hint(&self) -> &'static str {
        "release what is not used, or make another pool"
    }

    /// Whether writes end the API server's managedFields of the objects: they are a third of an object with an entry
    /// per field. Not for kinds whose spec people apply (server-side apply needs them).
    fn drops_managed_fields(&self) -> bool {
        false
    }
}

/// Whether a commit creates the object of an absent pool.
#[derive(Clone, Debug, PartialEq)]
pub enum Creation {
    /// People create the objects: an absent one is an error.
    Never,
    /// The first commit creates this object of an empty pool; apiVersion, kind and name are filled in.
    Empty(Value),
    /// It would, but the key does not say enough: an absent pool is empty, and a commit is refused for this reason.
    Unknown(String),
}

/// How a changed object is sent; both on exactly the version that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteAs {
    /// All of it (`update`): the API server's cheapest write.
    Replace,
    /// What is different (`patch`).
    MergePatch,
}

/// Changes, and the pool before and after them.
#[derive(Clone, Copy, Debug)]
pub struct Commit<'a> {
    pub key: &'a PoolKey,
    pub before: &'a Pool,
    pub after: &'a Pool,
    pub changes: &'a [Change],
}

/// Why an object can't take a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EncodeError {
    /// For this reason: the same commit will not succeed later either.
    Invalid(String),
    /// Its addresses are allocated from elsewhere now.
    Moved,
    /// These addresses are not what their preconditions say.
    Conflict(Vec<Address>),
}
