//! Marks on pool objects: annotations that say what a pool is, written with the old value as precondition.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::names;
use berth_core::Prefix;
use berth_core::slice::elastic::Mark;
use berth_core::slice::range_mode::Closed;
use berth_core::slice::range_mode::{Exclusion, PlainMarks};
use berth_kube::{Failure, Verb};
use kube::api::Patch;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::base::{SLICED, annotation};
use super::file::{FILE, FileMark};
use super::resource::POOLS;
use super::unknown::rewritten;
use super::{KubeLedger, snapshot};
use berth_ledger::{LedgerError, PoolKey, Snapshot};

/// The annotation of a slice's pool that a node publishes: its value is the node.
pub const PUBLISHED: &str = "berth.dev/published-by";

/// Who writes a pool's object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writer {
    /// There is no object.
    None,
    /// All nodes, and the leader for them: a plain pool.
    Shared,
    /// Only the node that publishes its slice with it.
    Publisher,
}

/// The label of a plain pool whose range is sliced has the mark's own key, and this value.
const YES: &str = "true";

/// Pools in one answer of a list of metadata.
const METADATA_PAGE: u32 = 500;

/// Writes that met another writer, before the caller has to look again.
const TRIES: usize = 5;

impl KubeLedger {
    /// What a plain pool says about slices that nodes claim.
    pub async fn mark(&self, pool: &PoolKey) -> Result<Option<Mark>, LedgerError> {
        match self.client.get_metadata(&POOLS, &pool.name).await? {
            Some(found) => self.mark_of(pool, &found.object),
            None => Ok(None),
        }
    }

    /// The same as it was a moment ago. For callers that read again before it matters: this costs no read of etcd.
    pub async fn recent_mark(&self, pool: &PoolKey) -> Result<Option<Mark>, LedgerError> {
        match self.client.get_cached_metadata(&POOLS, &pool.name).await? {
            Some(found) => self.mark_of(pool, &found.object),
            None => Ok(None),
        }
    }

    /// All that a plain pool says about slices.
    pub async fn marks(&self, pool: &PoolKey) -> Result<PlainMarks, LedgerError> {
        match self.client.get_metadata(&POOLS, &pool.name).await? {
            Some(found) => self.marks_of(pool, &found.object),
            None => Ok(PlainMarks::default()),
        }
    }

    /// A plain pool and its marks, of one state.
    pub async fn marked(&self, pool: &PoolKey) -> Result<(PlainMarks, Snapshot), LedgerError> {
        let Some(found) = self.client.get(&POOLS, &pool.name).await? else {
            return Ok((PlainMarks::default(), snapshot(None)));
        };
        let marks = self.marks_of(pool, &found.object)?;
        let object = self.store(pool).parse(found)?;
        Ok((marks, snapshot(Some(&object))))
    }

    fn marks_of(&self, pool: &PoolKey, object: &Value) -> Result<PlainMarks, LedgerError> {
        let has = |bar| !object["metadata"]["annotations"][annotation(bar)].is_null();
        Ok(PlainMarks {
            sliced: self.mark_of(pool, object)?,
            assigned: has(Exclusion::Assigned),
            unreserved: has(Exclusion::Unreserved),
        })
    }

    /// Whether a plain pool is closed so, and by which tables.
    pub async fn closed(
        &self,
        pool: &PoolKey,
        bar: Exclusion,
    ) -> Result<Option<Closed>, LedgerError> {
        match self.client.get_metadata(&POOLS, &pool.name).await? {
            Some(found) => self.read_mark(pool, &found.object, annotation(bar)),
            None => Ok(None),
        }
    }

    /// Who writes the pool's object. Reads its metadata alone.
    pub async fn writer(&self, pool: &PoolKey) -> Result<Writer, LedgerError> {
        let Some(found) = self.client.get_metadata(&POOLS, &pool.name).await? else {
            return Ok(Writer::None);
        };
        match &found.object["metadata"]["annotations"][PUBLISHED] {
            Value::Null => Ok(Writer::Shared),
            _ => Ok(Writer::Publisher),
        }
    }

    /// A pool that does not exist: a commit on it makes it, or fails if it does exist.
    pub fn absent() -> Snapshot {
        snapshot(None)
    }

    fn mark_of(&self, pool: &PoolKey, object: &Value) -> Result<Option<Mark>, LedgerError> {
        self.read_mark(pool, object, SLICED)
    }

    fn read_mark<T: DeserializeOwned>(
        &self,
        pool: &PoolKey,
        object: &Value,
        key: &str,
    ) -> Result<Option<T>, LedgerError> {
        match &object["metadata"]["annotations"][key] {
            Value::Null => Ok(None),
            text => text
                .as_str()
                .and_then(|text| serde_json::from_str(text).ok())
                .map(Some)
                .ok_or_else(|| LedgerError::Unreadable {
                    target: self.client.ask(Verb::Get, &POOLS, &pool.name).target(),
                    why: format!("the annotation {key} is {text}"),
                }),
        }
    }

    /// Changes a plain pool's mark if it is `from` now; says whether it was. The pool is made if it does not exist.
    pub async fn set_mark(
        &self,
        pool: &PoolKey,
        from: Option<Mark>,
        to: Option<Mark>,
    ) -> Result<bool, LedgerError> {
        self.write_mark(pool, SLICED, from.as_ref(), to.as_ref())
            .await
    }

    /// Closes a plain pool, opens it, or says that it is about to be opened: the same for the other marks.
    pub async fn set_closed(
        &self,
        pool: &PoolKey,
        bar: Exclusion,
        from: Option<&Closed>,
        to: Option<&Closed>,
    ) -> Result<bool, LedgerError> {
        self.write_mark(pool, annotation(bar), from, to).await
    }

    /// What a mark says is compared, not its text: a newer version's fields are kept (I7).
    async fn write_mark<T>(
        &self,
        pool: &PoolKey,
        key: &str,
        from: Option<&T>,
        to: Option<&T>,
    ) -> Result<bool, LedgerError>
    where
        T: Serialize + DeserializeOwned + PartialEq,
    {
        let is_from = |now: Option<&str>| match (now, from) {
            (None, None) => true,
            (Some(text), Some(from)) => serde_json::from_str(text).is_ok_and(|now: T| now == *from),
            _ => false,
        };
        let next = |now: Option<&str>| to.and_then(|to| rewritten(now, to).ok());
        self.annotate(pool, key, is_from, next).await
    }

    /// Says on a slice's pool which node publishes it.
    pub async fn publish_as(&self, pool: &PoolKey, node: &str) -> Result<(), LedgerError> {
        let to_node = |_: Option<&str>| Some(node.to_owned());
        self.annotate(pool, PUBLISHED, |now| now != Some(node), to_node)
            .await?;
        if let Some(file) = self.file.get() {
            let other = |now: Option<&str>| FileMark::parse(now).as_ref() != Some(file);
            let to_file = |now: Option<&str>| Some(file.text_after(now));
            self.annotate(pool, FILE, other, to_file).await?;
        }
        self.label_slot(pool).await
    }

    /// The pools that nodes publish.
    pub(super) async fn published(&self) -> Result<BTreeMap<String, String>, LedgerError> {
        let marked = |metadata: &Value| {
            let node = metadata["annotations"][PUBLISHED].as_str()?.to_owned();
            Some((metadata["name"].as_str()?.to_owned(), node))
        };
        let marked = self.client.pick_metadata(&POOLS, "", METADATA_PAGE, marked);
        Ok(marked.await?.into_iter().collect())
    }

    /// The ranges of a network that are sliced by the nodes themselves, or on their way back; a mark that can't be read hides
    /// no other. Metadata alone is read.
    pub async fn sliced_ranges(
        &self,
        network: &str,
    ) -> Result<Vec<(Prefix, Result<Mark, LedgerError>)>, LedgerError> {
        let marked = |metadata: &Value| {
            let text = metadata["annotations"][SLICED].as_str()?.to_owned();
            let name = metadata["name"].as_str()?;
            Some((names::range_of_pool(network, name)?, name.to_owned(), text))
        };
        let labels = format!("{SLICED}={YES}");
        let found = self
            .client
            .pick_metadata(&POOLS, &labels, METADATA_PAGE, marked);
        let found = found.await?;
        let mark = |(range, name, text): (Prefix, String, String)| {
            let mark = serde_json::from_str(&text).map_err(|error| LedgerError::Unreadable {
                target: self.client.ask(Verb::Get, &POOLS, &name).target(),
                why: format!("its annotation {SLICED}: {error}"),
            });
            (range, mark)
        };
        Ok(found.into_iter().map(mark).collect())
    }

    /// The pools that one node publishes. Metadata alone is read.
    pub async fn published_by(&self, node: &str) -> Result<BTreeSet<String>, LedgerError> {
        let name = |metadata: &Value| {
            let theirs = metadata["annotations"][PUBLISHED].as_str() == Some(node);
            let name = metadata["name"].as_str().filter(|_| theirs);
            name.map(str::to_owned)
        };
        let names = self.client.pick_metadata(&POOLS, "", METADATA_PAGE, name);
        let names = names.await?;
        Ok(names.into_iter().collect())
    }

    /// Whether another node publishes entries of a sub-range: pods have addresses of it, whatever its claim says. Reads the
    /// metadata of all pools.
    pub async fn is_used_elsewhere(
        &self,
        network: &str,
        range: Prefix,
        node: &str,
    ) -> Result<bool, LedgerError> {
        let theirs = |metadata: &Value| {
            let publisher = metadata["annotations"][PUBLISHED].as_str()?;
            let before = match network {
                "" => publisher.to_owned(),
                network => format!("{network}-{publisher}"),
            };
            let name = metadata["name"].as_str()?;
            let slice = names::range_of_pool(&before, name)?;
            let matters = publisher != node && slice.overlaps(range);
            matters.then(|| PoolKey::of_network(name, slice))
        };
        let found = self.client.pick_metadata(&POOLS, "", METADATA_PAGE, theirs);
        for pool in found.await? {
            if self.has_entries(&pool).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    pub(super) async fn annotate(
        &self,
        pool: &PoolKey,
        key: &str,
        applies: impl Fn(Option<&str>) -> bool,
        to: impl Fn(Option<&str>) -> Option<String>,
    ) -> Result<bool, LedgerError> {
        for _ in 0..TRIES {
            let found = self.client.get_metadata(&POOLS, &pool.name).await?;
            let now = found
                .as_ref()
                .and_then(|found| found.object["metadata"]["annotations"][key].as_str());
            if !applies(now) {
                return Ok(false);
            }
            let to = to(now);
            // A sliced range is found by its label among the pools that nodes publish, of which there may be thousands.
            let labels = match key {
                SLICED => json!({ key: to.as_ref().map(|_| YES) }),
                _ => json!({}),
            };
            let (verb, written) = match &found {
                None => {
                    let Some(range) = pool.network else {
                        return Ok(false);
                    };
                    let mut metadata = self.store(pool).codec.marks;
                    metadata["name"] = json!(pool.name);
                    metadata["annotations"][key] = json!(to);
                    if key == SLICED {
                        metadata["labels"][key] = labels[key].clone();
                    }
                    let object = json!({
                        "apiVersion": POOLS.api_version(),
                        "kind": POOLS.kind,
                        "metadata": metadata,
                        "spec": { "range": range.to_string(), "allocations": {} },
                    });
                    (Verb::Create, self.client.create(&POOLS, &object).await)
                }
                Some(found) => {
                    let merge = json!({ "metadata": {
                        "resourceVersion": found.object["metadata"]["resourceVersion"],
                        "annotations": { key: to },
                        "labels": labels,
                    } });
                    let patch = Patch::Merge(merge);
                    let patched = self.client.patch(&POOLS, &pool.name, &patch).await;
                    (Verb::Patch, patched)
                }
            };
            match written {
                Ok(_) => return Ok(true),
                Err(Failure::Refused(refusal)) if refusal.code == 409 => {}
                Err(Failure::Refused(refusal)) if refusal.is_absence_of(&pool.name) => {}
                Err(failure) => {
                    return Err(failure
                        .into_error(self.client.ask(verb, &POOLS, &pool.name))
                        .into());
                }
            }
        }
        Err(LedgerError::Conflict {
            pool: self.client.ask(Verb::Patch, &POOLS, &pool.name).target(),
            held: Vec::new(),
        })
    }
}
