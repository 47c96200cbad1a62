//! Slices that the node claims by itself, ahead of need, and gives back when they have been empty for a while.

use std::sync::Arc;
use std::time::Duration;

use berth_core::slice::elastic::{
    Claimed, Known, Mark, MarkState, Standing, Walk, standing, usual_size, wanted,
};
use berth_core::slice::{Cut, Epoch, Holding as Slot, NodeName, SliceTable};
use berth_core::{Pool, Prefix};
use berth_ledger::LedgerError;
use berth_ledger::kube::SliceObject;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use tokio::time::Instant;

use crate::error::SliceError;
use crate::holdings::{Holding, State};
use crate::pool::{SlicePool, World};
use crate::sliced::{Mode, Sliced};
use crate::surrender::parent_of;

/// Slots that turned out to be taken before all claims are read at once.
const WALKED: usize = 8;
/// Free slots of that list that turned out to be taken, before it is left to the next try.
const LISTED: usize = 64;
/// How long a range may be on its way back before a network that is sliced takes it again.
const LEAVING_LIMIT: Duration = Duration::from_secs(30);
/// The first epoch of a slice that is claimed by name: whoever has the name has it.
const FIRST: Epoch = Epoch(1);

impl World {
    /// The UID of this node's object: a node made again under the name is another one. Empty if there is none.
    pub async fn node_uid(&self) -> Result<String, LedgerError> {
        let ask = async || {
            let nodes: Api<Node> = Api::all(self.connection.client.clone());
            let found = nodes.get_opt(self.node.as_str());
            let unseen = |why: String| LedgerError::Unavailable {
                target: format!("Node {}", self.node),
                why,
                retry_after: None,
            };
            match tokio::time::timeout(self.connection.timeout, found).await {
                Ok(Ok(node)) => Ok(node.and_then(|node| node.metadata.uid).unwrap_or_default()),
                Ok(Err(error)) => Err(unseen(error.to_string())),
                Err(_) => Err(unseen("no answer".to_owned())),
            }
        };
        self.node_uid.get_or_try_init(ask).await.cloned()
    }

    /// What was claimed in this node's name when this process began.
    pub async fn found(&self) -> Result<&Vec<SliceObject>, LedgerError> {
        let list = async || self.cluster.slices(None, Some(&self.node)).await;
        self.found.get_or_try_init(list).await
    }

    /// Tells a node that something was written on a claim of its. A hint: without it, it sees that later.
    pub async fn call(&self, node: &NodeName) {
        if node.as_str().is_empty() || *node == self.node {
            return;
        }
        if let Err(error) = self.cluster.call_node(node).await {
            tracing::warn!(%node, %error, "the node was not called; it looks by itself later");
        }
    }

    pub fn claimed(&self, range: Prefix, node_uid: String) -> Claimed {
        Claimed {
            range,
            node: self.node.clone(),
            node_uid,
            epoch: FIRST,
            offers: Vec::new(),
            wants: Vec::new(),
        }
    }
}

impl SlicePool {
    /// Takes on what is claimed in this node's name, loses what is not any more. The gate must be held.
    pub async fn compare_claims(&self, of: &Arc<Sliced>) -> Result<(), SliceError> {
        let world = &self.world;
        let uid = world.node_uid().await?;
        let mut mine = self.claims_of_ours(of).await?;
        let find = |slice: Prefix| mine.iter().find(|object| object.claim.range == slice);
        for holding in self.held().iter().filter(|holding| holding.is_active()) {
            let known = Known {
                range: holding.slice,
                node_uid: holding.node_uid.clone(),
                epoch: holding.epoch,
            };
            let claim = find(holding.slice).map(|object| &object.claim);
            if let Standing::Lost { to, .. } = standing(&world.node, &known, claim) {
                let to = to.map_or("nobody's".to_owned(), |node| format!("{node}'s"));
                self.lose(holding, &to).await?;
            }
        }
        if self.settle_surrenders(of).await? {
            mine = self.claims_of_ours(of).await?;
        }
        // The large ones first: what lies in them is put into use after they took it out.
        let mut by_size: Vec<&SliceObject> = mine.iter().collect();
        by_size.sort_by_key(|object| object.claim.range.length());
        for object in by_size {
            let slice = object.claim.range;
            let held = self.held();
            let known = held
                .iter()
                .find(|one| one.slice == slice && one.is_active());
            let confirmed = known.is_some_and(|known| known.boot == world.boot);
            if confirmed && object.claim.node_uid == uid {
                continue;
            }
            let known = known.cloned();
            // A write before anything is given: a DELETE of before may be on its way, ours or a controller's.
            let renewed = Claimed {
                node_uid: uid.clone(),
                ..object.claim.clone()
            };
            let Some(object) = world.cluster.amend_slice(object, &renewed).await? else {
                self.set_unsure(true);
                continue;
            };
            let holding = self.holding(&object.claim, &uid);
            if known.is_some() {
                self.renew_holding(&holding).await?;
                continue;
            }
            if !self.is_granted(of, &object).await? {
                continue;
            }
            let _donating = self.donating.lock().await;
            self.put_into_use(of, &object.claim).await?;
            self.adopt(of, slice).await?;
            self.surrender_offers(of, &object.claim).await?;
            self.hold(holding).await?;
        }
        Ok(())
    }

    /// The claims in this node's name: those of what it holds, read by name, and those that it knows nothing of. A list
    /// of them would have the API server look at every claim of the cluster, for every node and range.
    async fn claims_of_ours(&self, of: &Arc<Sliced>) -> Result<Vec<SliceObject>, LedgerError> {
        let world = &self.world;
        if self.is_unsure() {
            // First: what becomes unsure while the list is read needs another.
            self.set_unsure(false);
            let range = Some((of.network.as_str(), of.range));
            let listed = world.cluster.slices(range, Some(&world.node)).await;
            self.set_unsure(listed.is_err() || self.is_unsure());
            return listed;
        }
        let mut mine = Vec::new();
        for holding in self.held().iter() {
            let found = world.cluster.slice(&of.network, holding.slice).await?;
            mine.extend(found.filter(|object| object.claim.node == world.node));
        }
        if !self.is_confirmed() {
            let known: Vec<Prefix> = mine.iter().map(|object| object.claim.range).collect();
            let of_range = world.found().await?.iter().filter(|object| {
                object.is_of(&of.network, of.range) && !known.contains(&object.claim.range)
            });
            mine.extend(of_range.cloned());
        }
        Ok(mine)
    }

    /// Whether a claim in this node's name that it holds nothing of may be held: a slot of the cut, or a part whose offer
    /// stands. What is neither is a leftover of a crash, and goes.
    async fn is_granted(&self, of: &Arc<Sliced>, object: &SliceObject) -> Result<bool, SliceError> {
        let part = object.claim.range;
        // A later epoch than the first: whoever had it has passed it on.
        if part.length() <= self.mark(of).await?.size || object.claim.epoch > FIRST {
            return Ok(true);
        }
        let all = self.all_claims(of).await?;
        let Some(parent) = parent_of(part, &all) else {
            // Made late, by a CREATE of before: what it was to be a part of is anybody's to claim, all of it.
            self.world.cluster.end_slice(object).await?;
            return Ok(false);
        };
        if parent.claim.lets(part, &self.world.node) {
            return Ok(true);
        }
        let _donating = self.donating.lock().await;
        if parent.claim.node == self.world.node {
            self.finish_withdrawal(of, parent, object).await?;
        } else {
            self.world.cluster.end_slice(object).await?;
        }
        Ok(false)
    }

    /// Whether a claim is as this node holds it.
    pub fn knows(&self, claim: &Claimed) -> bool {
        self.held().iter().any(|holding| {
            holding.is_active()
                && holding.slice == claim.range
                && claim.node == self.world.node
                && holding.epoch == claim.epoch
                && holding.node_uid == claim.node_uid
        })
    }

    fn holding(&self, claim: &Claimed, uid: &str) -> Holding {
        Holding {
            slice: claim.range,
            epoch: claim.epoch,
            node: self.world.node.clone(),
            node_uid: uid.to_owned(),
            boot: self.world.boot.clone(),
            state: State::Active,
            disjoint: self.is_disjoint(),
        }
    }

    /// The range's mark; made, if there is none.
    pub async fn mark(&self, of: &Arc<Sliced>) -> Result<Mark, SliceError> {
        if let Some(mark) = self.known_mark() {
            return Ok(mark);
        }
        let size = match of.mode {
            Mode::Elastic {
                size: Some(size), ..
            } => size,
            _ => usual_size(of.range),
        };
        Cut::new(of.range, size)?;
        // Whoever claims by it looks again after its claim.
        let mut found = self.world.cluster.recent_mark(&of.plain()).await?;
        if !found.is_some_and(|mark| mark.state == MarkState::Sliced) {
            found = self.world.cluster.mark(&of.plain()).await?;
        }
        loop {
            match found {
                Some(mark) if mark.state == MarkState::Leaving => {
                    // Nobody finished going back: the network is sliced again.
                    let now = Instant::now();
                    let since = self.idle_since(of.range, Some(now)).unwrap_or(now);
                    if now - since < LEAVING_LIMIT {
                        return Err(SliceError::Leaving { range: of.range });
                    }
                    let again = Some(Mark::sliced(mark.size));
                    self.world
                        .cluster
                        .set_mark(&of.plain(), Some(mark), again)
                        .await?;
                }
                Some(mark) => {
                    self.idle_since(of.range, None);
                    self.set_mark(Some(mark));
                    return Ok(mark);
                }
                None => {
                    // What a controller has assigned is still given from; whoever claims looks again after its claim.
                    if !of.checked {
                        self.world.plain.open(of).await?;
                    }
                    let mark = Some(Mark::sliced(size));
                    self.world.cluster.set_mark(&of.plain(), None, mark).await?;
                }
            }
            found = self.world.cluster.mark(&of.plain()).await?;
        }
    }

    /// Claims one more slice, if one is free. The gate must be held.
    pub async fn claim_free(&self, of: &Arc<Sliced>) -> Result<bool, SliceError> {
        let world = &self.world;
        let cut = Cut::new(of.range, self.mark(of).await?.size)?;
        let fits = |slot: &Prefix| {
            let held = self.held();
            !of.usable.clipped(*slot).is_empty()
                && !held.iter().any(|one| one.slice.overlaps(*slot))
        };
        let walk = Walk::of(cut, &world.node, &of.network).take(4 * WALKED);
        for slot in walk.filter(fits).take(WALKED) {
            if self.claim_slot(of, slot).await? {
                return Ok(true);
            }
        }
        let mut table = SliceTable::new(cut);
        for object in self.all_claims(of).await? {
            table.restore(Slot {
                slice: object.claim.range,
                node: object.claim.node,
                epoch: object.claim.epoch,
            });
        }
        for holding in self.held().iter() {
            table.restore(Slot {
                slice: holding.slice,
                node: world.node.clone(),
                epoch: holding.epoch,
            });
        }
        let start = cut.search_start(&NodeName::new(format!("{}/{}", world.node, of.network)));
        for _ in 0..LISTED {
            let Ok(slot) = table.claim(&world.node, &of.usable, start) else {
                return Ok(false);
            };
            if self.claim_slot(of, slot.slice).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    pub async fn all_claims(&self, of: &Sliced) -> Result<Vec<SliceObject>, LedgerError> {
        let range = Some((of.network.as_str(), of.range));
        self.world.cluster.slices(range, None).await
    }

    async fn claim_slot(&self, of: &Arc<Sliced>, slot: Prefix) -> Result<bool, SliceError> {
        let uid = self.world.node_uid().await?;
        let claim = self.world.claimed(slot, uid);
        let asked = Instant::now();
        let made = self
            .world
            .cluster
            .claim_slice(&of.network, of.range, &claim)
            .await;
        self.world.busy.felt(asked, Instant::now());
        // It may have been made all the same.
        self.set_unsure(self.is_unsure() || made.is_err());
        let Some(object) = made? else {
            return Ok(false);
        };
        self.take(of, &object).await?;
        self.publisher.lock().await.expect_none(slot);
        self.world
            .metrics
            .refills
            .get_or_create(&self.label())
            .inc();
        Ok(true)
    }

    /// Holds what was just claimed, after a look at what others hold in it.
    pub async fn take(&self, of: &Arc<Sliced>, object: &SliceObject) -> Result<(), SliceError> {
        let taken = self.confirm(of, object).await;
        // A claim that is not held is found again by the next comparison.
        self.set_unsure(self.is_unsure() || taken.is_err());
        taken
    }

    async fn confirm(&self, of: &Arc<Sliced>, object: &SliceObject) -> Result<(), SliceError> {
        // After the claim: whoever ends slicing has told so before it looks for claims.
        let size = self.mark(of).await?.size;
        let (now, plain) = if self.plain_is_empty() {
            (self.world.cluster.marks(&of.plain()).await?, None)
        } else {
            let (now, plain) = self.world.cluster.marked(&of.plain()).await?;
            (now, Some(plain))
        };
        let assigned = now.closed && !of.checked;
        if assigned || !now.sliced.is_some_and(|mark| mark.confirms(size)) {
            self.set_mark(None);
            self.world.cluster.end_slice(object).await?;
            if assigned {
                self.world.plain.open(of).await?;
            }
            return Err(SliceError::Leaving { range: of.range });
        }
        // Nothing is lent or passed on while it is not settled what is in use.
        let _donating = self.donating.lock().await;
        self.put_into_use(of, &object.claim).await?;
        if let Some(plain) = plain {
            self.adopt_entries(of, object.claim.range, &plain.pool)
                .await?;
        }
        self.surrender_offers(of, &object.claim).await?;
        self.hold(self.holding(&object.claim, &object.claim.node_uid))
            .await
    }

    /// One more slice before the last is full, and one less when one was empty for a while. Never asks other nodes.
    pub async fn balance(&self) -> Result<(), SliceError> {
        let of = self.of();
        let active = self.active();
        let local = self.world.local.load(&of.key()).await?;
        let space = of.usable.clipped_to(&active.slices);
        let used = |pool: &Pool, within: &[Prefix]| {
            let inside = |address| within.iter().any(|slice| slice.contains(address));
            pool.records()
                .filter(|(address, _)| inside(*address))
                .count() as u128
        };
        let (capacity, used_now) = (space.count(), used(&local.pool, &active.slices));
        let free = i64::try_from(capacity.saturating_sub(used_now)).unwrap_or(i64::MAX);
        self.world
            .metrics
            .free
            .get_or_create(&self.label())
            .set(free);
        let (Mode::Elastic { .. }, Some(mark), false) =
            (of.mode, self.known_mark(), active.slices.is_empty())
        else {
            return Ok(());
        };
        let batch = 1u128
            .checked_shl((of.range.family().bits() - mark.size).into())
            .unwrap_or(u128::MAX);
        let reserve = (batch / 100).max(batch.saturating_mul(self.world.settings.reserve) / 100);
        let target = match used_now {
            0 => 0,
            used => wanted(used, batch, reserve.max(1)),
        };
        if capacity < target {
            let _gate = self.gate.lock().await;
            if self.active() == active {
                self.claim_free(&of).await?;
            }
            return Ok(());
        }
        let now = Instant::now();
        let held = self.held();
        for slice in held
            .iter()
            .filter(|one| one.is_active())
            .map(|one| one.slice)
        {
            let part = of.usable.clipped(slice);
            let rests = local
                .pool
                .rests()
                .any(|(address, _)| slice.contains(address));
            let idle = used(&local.pool, &[slice]) == 0 && !rests;
            let since = self.idle_since(slice, idle.then_some(now));
            let spare = capacity.saturating_sub(part.count()) >= target;
            if since.is_some_and(|since| now - since >= self.world.settings.idle) && spare {
                let _gate = self.gate.lock().await;
                self.give_back(&of, slice).await?;
                return Ok(());
            }
        }
        Ok(())
    }

    /// Gives an empty slice back: it is not given from before that is told. The gate must be held.
    async fn give_back(&self, of: &Arc<Sliced>, slice: Prefix) -> Result<(), SliceError> {
        let world = &self.world;
        let Some(object) = world.cluster.slice(&of.network, slice).await? else {
            return Ok(());
        };
        if object.claim.node != world.node || !object.claim.may_go() {
            return Ok(());
        }
        if !self.shut(of, slice, &world.node).await? {
            return Ok(());
        }
        let ended = world.cluster.end_slice(&object).await;
        if !matches!(ended, Ok(true)) {
            // Somebody asked for a part of it meanwhile: the next comparison takes it on again.
            self.set_unsure(true);
        }
        if !ended? {
            return Ok(());
        }
        self.let_go(of, slice).await?;
        world.metrics.yields.get_or_create(&self.label()).inc();
        tracing::info!(%slice, node = %world.node, "an empty slice was given back");
        Ok(())
    }
}
