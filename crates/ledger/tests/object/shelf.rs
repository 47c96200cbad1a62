//! A kind of the tests' own: cluster-scoped, with its entries in `status`, and its codec.

use berth_core::{Address, Change, Handle, Owner, Pool, Prefix, Record};
use berth_kube::{Part, Place, Resource};
use berth_ledger::PoolKey;
use berth_ledger::object::{Codec, Commit, Cooldowns, Creation, EncodeError, WriteAs, now};
use serde_json::{Value, json};

pub const SHELVES: Resource = Resource {
    group: "test.berth.dev",
    version: "v1",
    plural: "shelves",
    kind: "Shelf",
    place: Place::Cluster,
};

/// The definition of the kind.
pub fn definition() -> Value {
    let kept = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": { "name": SHELVES.name() },
        "spec": {
            "group": SHELVES.group,
            "scope": "Cluster",
            "names": { "plural": SHELVES.plural, "singular": "shelf", "kind": SHELVES.kind },
            "versions": [{
                "name": SHELVES.version,
                "served": true,
                "storage": true,
                "subresources": { "status": {} },
                "schema": { "openAPIV3Schema": {
                    "type": "object",
                    "properties": { "spec": kept, "status": kept },
                } },
            }],
        },
    })
}

/// The codec of the kind. Which addresses there are is in the spec, so a commit is guarded by its generation.
#[derive(Clone, Copy, Debug)]
pub struct Shelves {
    /// Whether the first commit creates the object.
    pub creates: bool,
    pub write_as: WriteAs,
    pub limit: usize,
}

impl Default for Shelves {
    fn default() -> Self {
        Self {
            creates: false,
            write_as: WriteAs::Replace,
            limit: 1 << 20,
        }
    }
}

fn range(object: &Value) -> Option<Prefix> {
    object["spec"]["range"].as_str()?.parse().ok()
}

fn read(entry: &Value) -> Option<Record> {
    let text = |field: &str| entry[field].as_str().map(str::to_owned);
    let owner = Owner::new(text("owner")?, text("part")?);
    let record = Record::new(owner, Handle::new(text("handle")?));
    Some(match text("node") {
        Some(node) => record.with("node", node),
        None => record,
    })
}

fn entry(record: &Record) -> Value {
    let mut entry = json!({
        "owner": record.owner.subject,
        "part": record.owner.part,
        "handle": record.handle,
    });
    if let Some(node) = record.attribute("node") {
        entry["node"] = json!(node);
    }
    entry
}

impl Codec for Shelves {
    fn resource(&self) -> &'static Resource {
        &SHELVES
    }

    fn part(&self) -> Part {
        Part::Status
    }

    fn write_as(&self) -> WriteAs {
        self.write_as
    }

    fn decode(&self, _key: &PoolKey, object: &Value) -> Result<Pool, String> {
        let range = range(object).ok_or("spec.range is no CIDR")?;
        let mut pool = Pool::new();
        let entries = object["status"]["entries"].as_object();
        for (key, value) in entries.into_iter().flatten() {
            let address: Address = key.parse().map_err(|_| format!("{key} is no address"))?;
            let record = read(value).ok_or(format!("the entry of {address} can't be read"))?;
            pool.restore(address, record);
        }
        let cooldowns = Cooldowns::read(object["status"]["cooldowns"].as_str(), "cooldowns");
        cooldowns.restore(range, "cooldowns", &mut pool);
        Ok(pool)
    }

    fn accepts(
        &self,
        _key: &PoolKey,
        object: &Value,
        changes: &[Change],
    ) -> Result<(), EncodeError> {
        let range = range(object).ok_or_else(|| EncodeError::Invalid("no range".into()))?;
        let mut addresses = changes.iter().map(Change::address);
        match addresses.find(|address| !range.contains(*address)) {
            Some(address) => {
                let why = format!("{address} is outside of {range}");
                Err(EncodeError::Invalid(why))
            }
            None => Ok(()),
        }
    }

    fn encode(&self, object: &mut Value, commit: &Commit<'_>) -> Result<(), EncodeError> {
        let range = range(object).ok_or_else(|| EncodeError::Invalid("no range".into()))?;
        for change in commit.changes {
            let key = change.address().to_string();
            match commit.after.get(change.address()) {
                Some(record) => object["status"]["entries"][key] = entry(record),
                None => {
                    let entries = object["status"]["entries"].as_object_mut();
                    entries.and_then(|entries| entries.remove(&key));
                }
            }
        }
        let cooldowns = Cooldowns::read(object["status"]["cooldowns"].as_str(), "cooldowns");
        if let Some(after) = cooldowns.after(range, commit.changes, now()) {
            object["status"]["cooldowns"] = json!(after.text());
        }
        object["status"]["used"] = json!(commit.after.len());
        Ok(())
    }

    fn guard(&self, object: &Value) -> Value {
        let metadata = &object["metadata"];
        json!([metadata["uid"], metadata["generation"]])
    }

    fn create(&self, key: &PoolKey) -> Creation {
        match key.network {
            Some(range) if self.creates => {
                Creation::Empty(json!({ "spec": { "range": range.to_string() } }))
            }
            _ => Creation::Never,
        }
    }

    fn network(&self, object: &Value) -> Option<Prefix> {
        range(object)
    }

    fn size_limit(&self) -> usize {
        self.limit
    }
}
