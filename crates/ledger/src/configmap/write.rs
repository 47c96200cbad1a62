//! The requests for one ConfigMap, and how a change gets into it among other writers.
//!
//! Guarantees: each write goes under the version that it was made on, and is repeated on what another wrote before it;
//! a process that conflicts with others joins their write queue.

use std::sync::Arc;
use std::time::{Duration, Instant};

use berth_core::Address;
use berth_kube::{Ask, Failure, Part, Verb};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Patch, PatchParams, PostParams};
use rand::RngExt;

use super::object::{self, Draft, Room, Stored};
use super::{ConfigMapLedger, Document, PATIENCE, gojson, repair};
use crate::turns::Ring;
use crate::{LedgerError, PoolKey, Version};

/// A state that was learned no longer ago than this was as good as new when its write was sent.
const YOUNG: Duration = Duration::from_millis(500);

impl ConfigMapLedger {
    /// One request, bounded; its failure says whether the outcome is known.
    pub(super) async fn ask<T>(
        &self,
        verb: Verb,
        name: &str,
        request: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, LedgerError> {
        let failure = match tokio::time::timeout(self.timeout, request).await {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(error)) => Failure::of(error),
            Err(_) => Failure::Lost(format!("no answer within {:?}", self.timeout)),
        };
        Err(failure
            .into_error(Ask {
                verb,
                resource: &object::CONFIG_MAPS,
                part: Part::Object,
                connection: &self.namespace,
                name,
            })
            .into())
    }

    pub(super) async fn get(&self, pool: &PoolKey) -> Result<Option<ConfigMap>, LedgerError> {
        self.ask(Verb::Get, &pool.name, self.api.get_opt(&pool.name))
            .await
    }

    /// Reads and remembers. A state that was there and is gone is not an empty one: its removal
    /// did not release the VMs in it.
    pub(super) async fn fetch(&self, pool: &PoolKey) -> Result<Arc<Stored>, LedgerError> {
        let found = self.get(pool).await?;
        let target = self.target(pool);
        let view = self.view(pool);
        let before = view.last().map(|last| last.in_use());
        if found.is_none()
            && let Some(in_use @ 1..) = before
        {
            return Err(LedgerError::Unreadable {
                target,
                why: format!(
                    "it is gone, and {in_use} allocations were in it when it was last read; put it \
                     back, or restart Berth to begin with an empty pool"
                ),
            });
        }
        let mut stored = Stored::read(&target, found)?;
        view.restore(&pool.name, &self.node, &mut stored);
        let stored = Arc::new(stored);
        view.learn(Arc::clone(&stored));
        Ok(stored)
    }

    /// Whether the ConfigMap is there and can be read, now.
    pub async fn check(&self, pool: &PoolKey) -> Result<(), LedgerError> {
        let target = self.target(pool);
        match self.get(pool).await? {
            None => Err(LedgerError::Unreadable {
                target,
                why: "it does not exist".into(),
            }),
            found => Stored::read(&target, found).map(drop),
        }
    }

    /// Creates or replaces, under the version that the object was read at.
    async fn put(&self, pool: &PoolKey, next: &Draft) -> Result<Arc<Stored>, LedgerError> {
        let params = PostParams::default();
        let object = &next.object;
        let answer = if object.metadata.resource_version.is_none() {
            self.ask(Verb::Create, &pool.name, self.api.create(&params, object))
                .await?
        } else {
            let replaced = self.api.replace(&pool.name, &params, object);
            self.ask(Verb::Update, &pool.name, replaced).await?
        };
        Ok(Arc::new(Stored::written(&self.target(pool), next, answer)?))
    }

    /// Writes and remembers. `None`: another writer was first, and it is to be tried again on what
    /// that one wrote; after `end` the caller does that.
    pub(super) async fn write(
        &self,
        pool: &PoolKey,
        next: Draft,
        end: Instant,
    ) -> Result<Option<Version>, LedgerError> {
        let (view, begun) = (self.view(pool), Instant::now());
        match self.put(pool, &next).await {
            Ok(stored) => {
                view.wrote(begun.elapsed());
                if let Some(conflicts) = view.resolved() {
                    tracing::info!(
                        target = self.target(pool),
                        conflicts,
                        "conflict resolved: another writer was first, and the change was written on its state"
                    );
                }
                view.wrote_own(&self.node, &stored);
                let version = stored.version();
                view.learn(stored);
                Ok(Some(version))
            }
            Err(LedgerError::Conflict { .. }) if Instant::now() < end && self.retries > 0 => {
                view.collided();
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Edits the document of the newest state until a write gets through. `edit` says whether
    /// anything is to be written, and is called again for each newer state.
    pub(super) async fn edit(
        &self,
        pool: &PoolKey,
        base: Option<&Version>,
        changes: usize,
        room: Room,
        edit: &mut (dyn FnMut(&Stored, &mut Document) -> Result<bool, LedgerError> + Send),
    ) -> Result<Version, LedgerError> {
        let end = Instant::now() + PATIENCE;
        let (view, target) = (self.view(pool), self.target(pool));
        let last = view.last();
        let is_base =
            |last: &Arc<Stored>| base.is_some_and(|base| base.stored() == last.version().stored());
        let mut known = last.filter(is_base);
        let members = self.members(pool);
        loop {
            let (current, passed) = self.at_turn(pool, known.take()).await?;
            let mut document = current.document().clone();
            let unparsed = repair::take_strays(&mut document, &members, Timestamp::now());
            if !edit(&current, &mut document)? && unparsed.is_none() && !view.is_owing() {
                return Ok(current.version());
            }
            let exact = base.is_none_or(|base| *base == current.version());
            let ring = current.ring();
            let keeps = ring.place(&self.id).is_some() && view.keeps_turn(changes);
            let ring = ring.after_write(&self.id, passed, keeps);
            let mut next = current.with(&target, &pool.name, document, &ring, room)?;
            if let Some(unparsed) = &unparsed {
                let text = gojson::to_string(&unparsed.entries).unwrap_or_default();
                self.keep_aside(pool, &mut next, &text).await?;
            }
            if let Some(version) = self.write(pool, next, end).await? {
                if let Some(unparsed) = unparsed {
                    view.set_aside(unparsed.entries.len());
                    let (ids, held) = (unparsed.entries.keys().cloned().collect(), unparsed.held);
                    self.report_strays(pool, ids, &held);
                }
                return Ok(if exact { version } else { version.merged() });
            }
            known = self.after_conflict(pool, &current).await?;
        }
    }

    fn report_strays(&self, pool: &PoolKey, ids: Vec<String>, held: &[Address]) {
        tracing::warn!(
            pool = pool.name,
            entries = ids.join(" "),
            held = held.len(),
            "entries of the state without an address were set aside; VMs that they may mean are held as unreadable-IP"
        );
    }

    /// Waits for the turn, if there is a queue. The state to write on, which is `known` where there is none,
    /// and how many members were waited for and did not write.
    pub(super) async fn at_turn(
        &self,
        pool: &PoolKey,
        known: Option<Arc<Stored>>,
    ) -> Result<(Arc<Stored>, usize), LedgerError> {
        let view = self.view(pool);
        while let Some(turn) = view.turn(&self.id).await {
            view.follow(&self.api, &pool.name);
            match turn.stored {
                Some(stored) => return Ok((stored, turn.passed)),
                None => self.fetch(pool).await?,
            };
        }
        match known {
            Some(known) => Ok((known, 0)),
            None => Ok((self.fetch(pool).await?, 0)),
        }
    }

    /// The state to try on next, if it is known. A process that lost on a state that had just been read competes with
    /// others that write at this moment, and joins their queue; an old state proves nothing.
    async fn after_conflict(
        &self,
        pool: &PoolKey,
        lost: &Stored,
    ) -> Result<Option<Arc<Stored>>, LedgerError> {
        let view = self.view(pool);
        if lost.ring().place(&self.id).is_some() {
            let is_known = view.is_followed() && view.is_newer(lost).await;
            if !is_known {
                self.fetch(pool).await?;
            }
            if view.has_member(&self.id) {
                return Ok(None);
            }
        } else if lost.age() > YOUNG {
            let newer = self.fetch(pool).await?;
            if newer.ring().next().is_none() {
                return Ok(Some(newer));
            }
        }
        self.sign_up(pool).await.map(Some)
    }

    /// Joins the write queue.
    async fn sign_up(&self, pool: &PoolKey) -> Result<Arc<Stored>, LedgerError> {
        let (view, target) = (self.view(pool), self.target(pool));
        let (params, patch) = (
            PatchParams::default(),
            Patch::Merge(Ring::sign_up(&self.id)),
        );
        let signed = self.api.patch(&pool.name, &params, &patch);
        match self.ask(Verb::Patch, &pool.name, signed).await {
            Ok(object) => {
                let mut stored = Stored::read(&target, Some(object))?;
                view.restore(&pool.name, &self.node, &mut stored);
                let stored = Arc::new(stored);
                view.new_turn();
                view.learn(Arc::clone(&stored));
                view.follow(&self.api, &pool.name);
                Ok(stored)
            }
            Err(error) => {
                // No right to patch, or too many at once: then random backoff separates them, more slowly.
                tracing::debug!(target, %error, "the write queue can't be joined");
                let share: f64 = rand::rng().random_range(0.0..4.0);
                tokio::time::sleep(view.turn_time().mul_f64(share)).await;
                self.fetch(pool).await
            }
        }
    }
}
