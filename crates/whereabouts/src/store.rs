//! One IPPool object: read and patched.
//!
//! Two ways to commit, beside that of a large object ([`super::whole`]). The usual one is blind: one JSON patch with a
//! `test` per address, on whatever the object is now. When that is refused, or can't be said that way, the object is read
//! again and written on exactly that version, as objects of every kind are ([`berth_ledger::object`]). Both change nothing unless
//! every precondition holds.

use std::borrow::Cow;

use berth_core::{Change, Prefix};
use berth_kube::{Failure, Fetched, ObjectClient, Verb};
use kube::api::Patch;
use serde_json::Value;

use super::base::{Base, NODE, Stamp};
use super::codec::{IpPools, outside};
use super::object::Object;
use super::patch::{MOST_OPERATIONS, alters, by_address};
use super::resource::POOLS;
use berth_ledger::object::ObjectCache;
use berth_ledger::object::now;
use berth_ledger::object::store::{ENVELOPE, Store as ObjectStore};
use berth_ledger::object::write;
use berth_ledger::{LedgerError, PoolKey};

/// One object, by its name.
pub(super) struct Store<'a> {
    pub client: &'a ObjectClient,
    pub seen: &'a ObjectCache,
    pub key: &'a PoolKey,
    pub codec: IpPools,
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
    pub(super) fn name(&self) -> &str {
        &self.key.name
    }

    /// The object, as the ledger of objects of every kind writes it.
    pub(super) fn object(&self) -> ObjectStore<'_, IpPools> {
        ObjectStore {
            client: self.client,
            cache: self.seen,
            codec: &self.codec,
            key: self.key,
        }
    }

    pub(super) fn failed(&self, verb: Verb, failure: Failure) -> LedgerError {
        failure.into_error(self.object().ask(verb)).into()
    }

    pub async fn read(&self) -> Result<Option<Object>, LedgerError> {
        match self.client.get(&POOLS, self.name()).await? {
            Some(fetched) => self.parse(fetched).map(Some),
            None => Ok(None),
        }
    }

    /// The same without a copy of its text: for readers that will not write it.
    pub async fn peek(&self) -> Result<Option<Object>, LedgerError> {
        match self.client.get(&POOLS, self.name()).await? {
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
            Object::read(self.key.network, fetched).map_err(|why| LedgerError::Unreadable {
                target: self.object().target(),
                why,
            })?;
        self.seen.note(self.name(), object.size + ENVELOPE);
        if let Some(text) = text {
            self.seen
                .keep(self.name(), &object.stamp.resource_version, &text, None);
        }
        Ok(object)
    }

    /// Whether the object is at that state still.
    pub async fn is_at(&self, base: &Base) -> Result<bool, LedgerError> {
        let found = self.client.get_metadata(&POOLS, self.name()).await?;
        Ok(match found {
            None => *base == Base::Absent,
            Some(fetched) => Stamp::read(&fetched.object).is_ok_and(|stamp| base.is_at(&stamp)),
        })
    }

    pub async fn commit(&self, base: &Base, changes: &[Change]) -> Result<Written, LedgerError> {
        let changes = &*self.within_room(changes);
        match (base, self.key.network) {
            (Base::Absent, _) => self.stamped(self.object().create(changes).await?),
            (Base::At(stamp), Some(network)) if !(stamp.odd || stamp.bars(changes)) => {
                if let Some(written) = self.replace(stamp, changes).await? {
                    return Ok(written);
                }
                match self.blind(stamp, network, changes).await {
                    Ok(written) => Ok(written),
                    Err(Hitch::Look) => self.commit_on_newest(base, changes).await,
                    Err(Hitch::Error(error)) => Err(error),
                }
            }
            _ => self.commit_on_newest(base, changes).await,
        }
    }

    async fn commit_on_newest(
        &self,
        base: &Base,
        changes: &[Change],
    ) -> Result<Written, LedgerError> {
        let object = self.object();
        let written = object.commit_on_newest(&base.into(), changes).await?;
        self.stamped(written)
    }

    fn stamped(&self, written: write::Written) -> Result<Written, LedgerError> {
        let fetched = Fetched {
            object: written.object,
            size: 0,
            text: None,
        };
        let object = Object::read(self.key.network, fetched);
        let object = object.map_err(|why| self.uncertain(Verb::Patch, why))?;
        Ok(Written {
            stamp: object.stamp,
            merged: written.merged,
        })
    }

    /// The changes without the nodes of their records, once the object has a third of what it may have: room for 10,000
    /// addresses counts more.
    fn within_room<'c>(&self, changes: &'c [Change]) -> Cow<'c, [Change]> {
        if self.seen.size_after(self.name(), 0) <= self.codec.limit / 3 {
            return Cow::Borrowed(changes);
        }
        let mut changes = changes.to_vec();
        for change in &mut changes {
            if let Change::Allocate { record, .. } | Change::Update { record, .. } = change {
                record.attributes.remove(NODE);
            }
        }
        Cow::Owned(changes)
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
            .map_err(|address| Hitch::Error(self.object().unfit(outside(network, address))))?;
        let size = self.seen.size_after(self.name(), patch.growth);
        if patch.steps.len() > MOST_OPERATIONS || self.object().check(size).is_err() {
            return Err(Hitch::Look);
        }
        let patch = Patch::Json::<Value>(patch.steps.into_patch());
        match self.client.patch(&POOLS, self.name(), &patch).await {
            Ok(patched) => {
                self.seen.note(self.name(), size);
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
            Err(Failure::Refused(refusal)) if refusal.is_absence_of(self.name()) => {
                Err(Hitch::Error(self.object().conflict(Vec::new())))
            }
            Err(Failure::Refused(refusal)) if refusal.is_too_large() => {
                Err(Hitch::Error(self.object().full(size)))
            }
            Err(failure) => Err(Hitch::Error(self.failed(Verb::Patch, failure))),
        }
    }

    /// The write went through; without its version the caller has to look.
    pub(super) fn stamp(&self, verb: Verb, object: &Value) -> Result<Stamp, LedgerError> {
        Stamp::read(object).map_err(|why| self.uncertain(verb, why))
    }

    fn uncertain(&self, verb: Verb, why: String) -> LedgerError {
        LedgerError::Uncertain {
            operation: verb.name(),
            target: self.object().target(),
            why,
        }
    }
}
