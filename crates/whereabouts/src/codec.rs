//! The codec of whereabouts' IPPools: entries in `spec.allocations`, by offset; cooldowns in an annotation.

use berth_core::{Address, Change, Pool, Prefix, Record};
use berth_kube::{Fetched, Resource};
use serde_json::{Value, json};

use super::base::{RESTING, Stamp};
use super::object::{Draft, Object, entry, key, read_pool, weight};
use super::resource::POOLS;
use berth_ledger::PoolKey;
use berth_ledger::object::{Codec, Commit, Creation, EncodeError, WriteAs, now};

/// IPPools, as one ledger writes one of them.
#[derive(Clone, Debug)]
pub(super) struct IpPools {
    /// The range of the pool.
    pub network: Option<Prefix>,
    /// Labels and annotations of a new object.
    pub marks: Value,
    /// Whether entries are brought into a pool whose range is given from node slices.
    pub moves: bool,
    /// Bytes that an object may have.
    pub limit: usize,
}

pub(super) fn outside(network: Prefix, address: Address) -> EncodeError {
    EncodeError::Invalid(format!("{address} is outside of its range {network}"))
}

/// An object that was decoded before. One that is not stored yet has no version.
fn reread(key: &PoolKey, mut object: Value) -> Result<Object, EncodeError> {
    if is_new(&object) {
        object["metadata"]["resourceVersion"] = json!("");
    }
    let fetched = Fetched {
        object,
        size: 0,
        text: None,
    };
    Object::read(key.network, fetched).map_err(EncodeError::Invalid)
}

fn is_new(object: &Value) -> bool {
    object["metadata"]["resourceVersion"].is_null()
}

impl Codec for IpPools {
    fn resource(&self) -> &'static Resource {
        &POOLS
    }

    /// whereabouts' own role allows no more.
    fn write_as(&self) -> WriteAs {
        WriteAs::MergePatch
    }

    fn decode(&self, key: &PoolKey, object: &Value) -> Result<Pool, String> {
        read_pool(key.network, object)
    }

    fn accepts(
        &self,
        pool: &PoolKey,
        object: &Value,
        changes: &[Change],
    ) -> Result<(), EncodeError> {
        let range = object["spec"]["range"].as_str().unwrap_or_default();
        if let Some(network) = pool.network.or_else(|| range.parse().ok()) {
            let mut addresses = changes.iter().map(Change::address);
            if let Some(address) = addresses.find(|address| key(network, *address).is_none()) {
                return Err(outside(network, address));
            }
        }
        if is_new(object) {
            return Ok(());
        }
        let stamp = Stamp::read(object).map_err(EncodeError::Invalid)?;
        if stamp.bars(changes) && !self.moves {
            return Err(EncodeError::Moved);
        }
        // Invalid: a desk that writes for several then carries out what is no allocation.
        match stamp.notes.cooldowns().bars(changes) {
            Some(why) => Err(EncodeError::Invalid(why.to_owned())),
            None => Ok(()),
        }
    }

    fn encode(&self, object: &mut Value, commit: &Commit<'_>) -> Result<(), EncodeError> {
        let is_new = is_new(object);
        let pool = reread(commit.key, object.take())?;
        let draft = Draft::of(&pool, commit.changes).map_err(EncodeError::Conflict)?;
        let entries = draft.into_entries();
        let rests = pool.resting.after(pool.network, commit.changes, now());
        *object = pool.with(entries);
        if is_new && let Some(metadata) = object["metadata"].as_object_mut() {
            metadata.remove("resourceVersion");
        }
        match rests.map(|rests| rests.text()) {
            Some(Some(text)) => object["metadata"]["annotations"][RESTING] = json!(text),
            Some(None) => {
                let annotations = object["metadata"]["annotations"].as_object_mut();
                annotations.and_then(|annotations| annotations.remove(RESTING));
            }
            None => {}
        }
        Ok(())
    }

    /// Each address guards itself, whatever became of the object meanwhile: whereabouts may have made it again.
    fn guard(&self, _object: &Value) -> Value {
        Value::Null
    }

    fn create(&self, pool: &PoolKey) -> Creation {
        match pool.network {
            Some(network) => Creation::Empty(json!({
                "metadata": self.marks,
                "spec": { "range": network.to_string(), "allocations": {} },
            })),
            None => {
                Creation::Unknown("the pool does not exist, and its range is not known".to_owned())
            }
        }
    }

    fn entry_size(&self, address: Address, record: &Record) -> usize {
        let key = self.network.and_then(|network| key(network, address));
        let entry = Value::Object(entry(record));
        weight(&key.unwrap_or_default(), &entry.to_string())
    }

    fn size_limit(&self) -> usize {
        self.limit
    }

    fn full_hint(&self) -> &'static str {
        "release what is not used, or give the network node slices (`fast_ipam: true`), which have no such limit"
    }

    fn drops_managed_fields(&self) -> bool {
        true
    }
}
