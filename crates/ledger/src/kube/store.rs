//! One IPPool object: read, created, patched.
//!
//! Two ways to commit, beside that of a large object ([`super::whole`]). The usual one is blind: one JSON patch with a `test` per address, on whatever
//! the object is now. When that is refused, or can't be said that way, the careful one reads the
//! object, checks every precondition itself and writes a merge patch on exactly that
//! resourceVersion. Both change nothing unless every precondition holds.

use std::borrow::Cow;

use berth_core::{Address, Change, Pool, Prefix};
use kube::api::Patch;
use serde_json::{Map, Value, json};

use super::base::{Base, NODE, RESTING, Stamp};
use super::client::{Fetched, ObjectClient};
use super::object::{Draft, Object, entry, key, weight};
use super::object_cache::ObjectCache;
use super::patch::{MOST_OPERATIONS, alters, by_address};
use super::resource::POOLS;
use super::response::{Failure, Verb};
use crate::object::{Cooldowns, now};
use crate::{LedgerError, Rejection};

/// What etcd and the API server add around an object: its key, twice, and the transaction.
pub(crate) const ENVELOPE: usize = 768;

/// Careful commits that met another writer, before the caller has to plan again.
const TRIES: usize = 3;

/// One object, by its name.
pub(super) struct Store<'a> {
    pub client: &'a ObjectClient,
    pub seen: &'a ObjectCache,
    pub limit: usize,
    pub name: &'a str,
    pub network: Option<Prefix>,
    /// Labels and annotations of a new object.
    pub marks: Value,
    /// Whether entries are brought into a pool whose range is given from node slices.
    pub moves: bool,
}

/// A commit that is durable.
pub(super) struct Written {
    pub stamp: Stamp,
    /// Others wrote after the base was read: the caller's copy lacks what they did.
    pub merged: bool,
}

/// Why a blind patch did not go through.
enum Hitch {
    /// Look at the object.
    Look,
    Error(LedgerError),
}

impl Store<'_> {
    fn target(&self) -> String {
        self.client.ask(Verb::Get, &POOLS, self.name).target()
    }

    pub(super) fn failed(&self, verb: Verb, failure: Failure) -> LedgerError {
        failure.into_error(self.client.ask(verb, &POOLS, self.name))
    }

    pub async fn read(&self) -> Result<Option<Object>, LedgerError> {
        match self.client.get(&POOLS, self.name).await? {
            Some(fetched) => self.parse(fetched).map(Some),
            None => Ok(None),
        }
    }

    /// The same without a copy of its text: for readers that will not write it.
    pub async fn peek(&self) -> Result<Option<Object>, LedgerError> {
        match self.client.get(&POOLS, self.name).await? {
            Some(mut fetched) => {
                fetched.text = None;
                self.parse(fetched).map(Some)
            }
            None => Ok(None),
        }
    }

    pub fn parse(&self, mut fetched: Fetched) -> Result<Object, LedgerError> {
        let text = fetched.text.take();
        let object =
            Object::read(self.network, fetched).map_err(|why| LedgerError::Unreadable {
                target: self.target(),
                why,
            })?;
        self.seen.note(self.name, object.size + ENVELOPE);
        if let Some(text) = text {
            self.seen
                .keep(self.name, &object.stamp.resource_version, &text, None);
        }
        Ok(object)
    }

    /// Whether the object is at that state still.
    pub async fn is_at(&self, base: &Base) -> Result<bool, LedgerError> {
        let found = self.client.get_metadata(&POOLS, self.name).await?;
        Ok(match found {
            None => *base == Base::Absent,
            Some(fetched) => Stamp::read(&fetched.object).is_ok_and(|stamp| base.is_at(&stamp)),
        })
    }

    pub async fn commit(&self, base: &Base, changes: &[Change]) -> Result<Written, LedgerError> {
        let changes = &*self.within_room(changes);
        match (base, self.network) {
            (Base::Absent, _) => self.create(changes).await,
            (Base::At(stamp), Some(network)) if !(stamp.odd || stamp.bars(changes)) => {
                if let Some(written) = self.replace(stamp, changes).await? {
                    return Ok(written);
                }
                match self.blind(stamp, network, changes).await {
                    Ok(written) => Ok(written),
                    Err(Hitch::Look) => self.careful(base, changes).await,
                    Err(Hitch::Error(error)) => Err(error),
                }
            }
            _ => self.careful(base, changes).await,
        }
    }

    /// The changes without the nodes of their records, once the object has a third of what it may have: room for 10,000
    /// addresses counts more.
    fn within_room<'c>(&self, changes: &'c [Change]) -> Cow<'c, [Change]> {
        if self.seen.size_after(self.name, 0) <= self.limit / 3 {
            return Cow::Borrowed(changes);
        }
        let mut changes = changes.to_vec();
        for change in &mut changes {
            if let Change::Claim { record, .. } | Change::Update { record, .. } = change {
                record.attributes.remove(NODE);
            }
        }
        Cow::Owned(changes)
    }

    /// The CREATE of the object is the first commit: an empty pool costs one write.
    async fn create(&self, changes: &[Change]) -> Result<Written, LedgerError> {
        let Some(network) = self.network else {
            return Err(self.unfit("the pool does not exist, and its range is not known".into()));
        };
        let mut pool = Pool::new();
        let violated: Vec<Address> = changes
            .iter()
            .filter(|change| pool.apply(change).is_err())
            .map(Change::address)
            .collect();
        if !violated.is_empty() {
            return Err(self.conflict(violated));
        }
        let mut allocations = Map::new();
        let mut size = ENVELOPE;
        for (address, record) in pool.records() {
            let key = key(network, address).ok_or_else(|| self.outside(network, address))?;
            let entry = Value::Object(entry(record));
            size += weight(&key, &entry.to_string());
            allocations.insert(key, entry);
        }
        self.check(size)?;
        let mut metadata = self.marks.clone();
        metadata["name"] = json!(self.name);
        let rests = Cooldowns::default().after(network, changes, now());
        if let Some(text) = rests.and_then(|rests| rests.text()) {
            metadata["annotations"][RESTING] = json!(text);
        }
        let object = json!({
            "apiVersion": POOLS.api_version(),
            "kind": POOLS.kind,
            "metadata": metadata,
            "spec": { "range": network.to_string(), "allocations": allocations },
        });
        match self.client.create(&POOLS, &object).await {
            Ok(created) => {
                self.seen.note(self.name, size);
                let stamp = self.stamp(Verb::Create, &created)?;
                Ok(Written {
                    stamp,
                    merged: false,
                })
            }
            Err(Failure::Refused(refusal)) if refusal.is_taken_name() => {
                Err(self.conflict(Vec::new()))
            }
            Err(Failure::Refused(refusal)) if refusal.is_too_large() => Err(self.full(size)),
            Err(failure) => Err(self.failed(Verb::Create, failure)),
        }
    }

    async fn blind(
        &self,
        stamp: &Stamp,
        network: Prefix,
        changes: &[Change],
    ) -> Result<Written, Hitch> {
        let resting = stamp.notes.cooldowns();
        // The annotation may have been mended since.
        if resting.bars(changes).is_some() {
            return Err(Hitch::Look);
        }
        let rests = resting.after(network, changes, now());
        let patch = by_address(network, stamp, rests.as_ref(), changes)
            .map_err(|address| Hitch::Error(self.outside(network, address)))?;
        let size = self.seen.size_after(self.name, patch.growth);
        if patch.operations.len() > MOST_OPERATIONS || self.check(size).is_err() {
            return Err(Hitch::Look);
        }
        let patch = Patch::Json::<Value>(
            serde_json::from_value(Value::Array(patch.operations))
                .map_err(|error| Hitch::Error(self.unfit(error.to_string())))?,
        );
        match self.client.patch(&POOLS, self.name, &patch).await {
            Ok(patched) => {
                self.seen.note(self.name, size);
                let now = self.stamp(Verb::Patch, &patched).map_err(Hitch::Error)?;
                let expected = stamp.generation + i64::from(alters(changes));
                let merged = now.generation != expected;
                if !merged {
                    self.follow(stamp, changes, &now, &patched);
                }
                Ok(Written { merged, stamp: now })
            }
            // A test failed, or the object is not shaped as the patch takes for granted.
            Err(Failure::Refused(refusal)) if refusal.code == 422 => Err(Hitch::Look),
            Err(Failure::Refused(refusal)) if refusal.is_absence_of(self.name) => {
                Err(Hitch::Error(self.conflict(Vec::new())))
            }
            Err(Failure::Refused(refusal)) if refusal.is_too_large() => {
                Err(Hitch::Error(self.full(size)))
            }
            Err(failure) => Err(Hitch::Error(self.failed(Verb::Patch, failure))),
        }
    }

    async fn careful(&self, base: &Base, changes: &[Change]) -> Result<Written, LedgerError> {
        let mut tries = 0;
        loop {
            tries += 1;
            let Some(object) = self.read().await? else {
                return self.create(changes).await;
            };
            if let Some(outside) = changes
                .iter()
                .map(Change::address)
                .find(|address| key(object.network, *address).is_none())
            {
                return Err(self.outside(object.network, outside));
            }
            if object.stamp.bars(changes) && !self.moves {
                return Err(LedgerError::Moved {
                    pool: self.name.to_owned(),
                });
            }
            // Invalid: a desk that writes for several then carries out what is no allocation.
            if let Some(why) = object.resting.bars(changes) {
                return Err(self.unfit(why.to_owned()));
            }
            let draft = Draft::of(&object, changes).map_err(|violated| self.conflict(violated))?;
            let resting: Vec<Address> = changes
                .iter()
                .filter(|change| object.resting.forbids(object.network, change, now()))
                .map(Change::address)
                .collect();
            if !resting.is_empty() {
                return Err(self.conflict(resting));
            }
            let size = draft.size() + ENVELOPE;
            let merge = merge(&object, &draft, changes);
            self.check(size)?;
            match self
                .client
                .patch(&POOLS, self.name, &Patch::Merge(merge))
                .await
            {
                Ok(patched) => {
                    self.seen.note(self.name, size);
                    let mut stamp = self.stamp(Verb::Patch, &patched)?;
                    stamp.odd = object.stamp.odd;
                    return Ok(Written {
                        merged: !base.is_at(&object.stamp),
                        stamp,
                    });
                }
                Err(Failure::Refused(refusal)) if refusal.code == 409 && tries < TRIES => {}
                Err(Failure::Refused(refusal)) if refusal.is_absence_of(self.name) => {
                    return Err(self.conflict(Vec::new()));
                }
                Err(Failure::Refused(refusal)) if refusal.is_too_large() => {
                    return Err(self.full(size));
                }
                Err(failure) => return Err(self.failed(Verb::Patch, failure)),
            }
        }
    }

    /// The write went through; without its version the caller has to look.
    pub(super) fn stamp(&self, verb: Verb, object: &Value) -> Result<Stamp, LedgerError> {
        Stamp::read(object).map_err(|why| LedgerError::Uncertain {
            operation: verb.name(),
            target: self.target(),
            why,
        })
    }

    /// Whether the object, as it was seen last, has room for these claims.
    pub fn fits(&self, claims: &[Change]) -> Result<(), LedgerError> {
        let growth: usize = claims.iter().map(|claim| self.growth(claim)).sum();
        let growth = i64::try_from(growth).unwrap_or(i64::MAX);
        self.check(self.seen.size_after(self.name, growth))
    }

    fn growth(&self, change: &Change) -> usize {
        let Change::Claim { address, record } = change else {
            return 0;
        };
        let key = self.network.and_then(|network| key(network, *address));
        weight(
            &key.unwrap_or_default(),
            &Value::Object(entry(record)).to_string(),
        )
    }

    pub(super) fn check(&self, size: usize) -> Result<(), LedgerError> {
        if size > self.limit {
            return Err(self.full(size));
        }
        Ok(())
    }

    pub(super) fn full(&self, size: usize) -> LedgerError {
        LedgerError::Full {
            target: self.target(),
            size,
            // The server has the last word, and may take less than was thought.
            limit: self.limit.min(size),
            hint: "release what is not used, or give the network node slices (`fast_ipam: true`), which have no such limit".into(),
        }
    }

    fn conflict(&self, held: Vec<Address>) -> LedgerError {
        LedgerError::Conflict {
            pool: self.target(),
            held,
        }
    }

    fn outside(&self, network: Prefix, address: Address) -> LedgerError {
        self.unfit(format!("{address} is outside of its range {network}"))
    }

    fn unfit(&self, message: String) -> LedgerError {
        LedgerError::Rejected {
            operation: Verb::Patch.name(),
            target: self.target(),
            rejection: Rejection::Invalid { code: 422, message },
        }
    }
}

/// Everything that the changes make different, on exactly the version that was read.
fn merge(object: &Object, draft: &Draft<'_>, changes: &[Change]) -> Value {
    let mut merge = json!({
        "metadata": { "resourceVersion": object.stamp.resource_version },
        "spec": { "allocations": draft.merge() },
    });
    if object.stamp.tracked {
        merge["metadata"]["managedFields"] = json!([{}]);
    }
    if let Some(rests) = object.resting.after(object.network, changes, now()) {
        merge["metadata"]["annotations"] = json!({ RESTING: rests.text() });
    }
    merge
}
