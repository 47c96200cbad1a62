//! Slices of the node's own: compared with their claims, claimed ahead of need, given back when they have been empty for a
//! while.

use std::sync::Arc;

use berth_core::Prefix;
use berth_core::slice::elastic::{Claimed, Known, Standing, standing, wanted};
use berth_core::slice::{Epoch, NodeName};
use berth_ledger::LedgerError;
use berth_whereabouts::{SliceList, SliceObject};
use tokio::time::Instant;

use crate::error::SliceError;
use crate::holdings::{Holding, Source, State};
use crate::pool::SlicePool;
use crate::sliced::{Mode, Sliced};
use crate::surrender::parent_of;
use crate::world::{self, Registration, World, locked};

/// The first epoch of a slice that is claimed by name: whoever has the name has it.
const FIRST: Epoch = Epoch(1);

impl World {
    /// What this node's object says: a node made again under the name has another UID. Without an object nothing is claimed or
    /// taken on (I8): a controller takes claims whose node does not exist, whoever gives from them. Known once it was
    /// found; until then, and after a slice was lost, every call looks: a node may be registered a moment later, or have
    /// been deleted.
    pub async fn registration(&self) -> Result<Registration, SliceError> {
        if let Some(known) = locked(&self.registration).clone() {
            return Ok(known);
        }
        let found = self.registered().await?;
        *locked(&self.registration) = Some(found.clone());
        Ok(found)
    }

    /// The next claim looks for this node's object again.
    pub fn forget_registration(&self) {
        *locked(&self.registration) = None;
    }

    pub async fn node_uid(&self) -> Result<String, SliceError> {
        Ok(self.registration().await?.uid)
    }

    /// What was claimed in this node's name when this process began, as far as it can be read: a claim that can't be is not
    /// taken on, and hides no other.
    pub async fn found(&self) -> Result<&Vec<SliceObject>, LedgerError> {
        let list = async || {
            let list = self.cluster.list_slices(None, Some(&self.node)).await?;
            for unreadable in &list.unreadable {
                tracing::warn!(claim = unreadable.name, error = %unreadable.why, "a claim of this node can't be read; its slice is withheld");
            }
            Ok(list.claims)
        };
        self.found.get_or_try_init(list).await
    }

    /// Tells a node that something was written on a claim of its. A hint: without it, it sees that later.
    pub async fn call(&self, node: &NodeName, claim: &SliceObject) {
        if node.as_str().is_empty() || *node == self.node {
            return;
        }
        if let Err(error) = self.cluster.call_node(node, claim).await {
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
            recalled: false,
        }
    }
}

impl SlicePool {
    /// Takes on what is claimed in this node's name, loses what is not any more. The gate must be held.
    pub async fn compare_claims(&self, of: &Arc<Sliced>) -> Result<(), SliceError> {
        let world = &self.world;
        let (mut mine, unreadable) = self.claims_of_ours(of).await?;
        let find = |slice: Prefix| mine.iter().find(|object| object.claim.range == slice);
        let mut vanished = Vec::new();
        let (held, moved) = (self.held(), State::Moved);
        for holding in held.iter().filter(|one| one.state != moved) {
            if find(holding.slice).is_none() && !unreadable.contains(&holding.slice) {
                vanished.push(holding.clone());
            }
        }
        for holding in held.iter().filter(|holding| holding.is_active()) {
            if unreadable.contains(&holding.slice) {
                // Whose it is can't be read: it is withheld, and the others are served (I5).
                self.stop_giving(holding).await?;
                continue;
            }
            if self.is_confirmed()
                && let Some(object) = find(holding.slice)
                && world.is_elsewhere(object)
            {
                self.lose(holding, "another agent's of this node").await?;
                continue;
            }
            let known = Known {
                range: holding.slice,
                node_uid: holding.node_uid.clone(),
                epoch: holding.epoch,
            };
            let claim = find(holding.slice).map(|object| &object.claim);
            if let Standing::Lost { to, .. } = standing(&world.node, &known, claim) {
                if claim.is_none() {
                    // Told when it is known whether it can be claimed again.
                    self.stop_giving(holding).await?;
                    continue;
                }
                let to = match to {
                    Some(_) if claim.is_some_and(|claim| claim.recalled) => "recalled".to_owned(),
                    Some(node) => format!("{node}'s"),
                    None => "nobody's".to_owned(),
                };
                self.lose(holding, &to).await?;
            }
        }
        // What is lost is lost, whether the node is registered or not.
        self.claim_vanished(of, &vanished).await?;
        let uid = world.node_uid().await?;
        if self.settle_surrenders(of).await? {
            (mine, _) = self.claims_of_ours(of).await?;
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
            if known.is_some() && !self.is_confirmed() {
                self.surrender_again(of, slice).await?;
            }
            let confirmed = known.is_some_and(|known| known.boot == world.boot);
            let elsewhere = world.is_elsewhere(object);
            if elsewhere && self.is_confirmed() {
                // Another agent of this node has taken it over.
                continue;
            }
            if confirmed && object.claim.node_uid == uid && !elsewhere {
                continue;
            }
            let known = known.cloned();
            // What is recalled is left alone while this node's Node is not there: no pod can be bound to it, and the controller
            // and this agent would write in turns.
            if object.claim.recalled {
                match world.registered().await {
                    Ok(_) => {}
                    Err(SliceError::Unregistered { .. }) => {
                        self.set_unsure(true);
                        continue;
                    }
                    Err(error) => return Err(error),
                }
            }
            // A write before anything is given: a DELETE of before may be on its way, ours or a controller's.
            let renewed = Claimed {
                node_uid: uid.clone(),
                recalled: false,
                ..object.claim.clone()
            };
            let Some(object) = world.cluster.amend_slice(object, &renewed).await? else {
                self.set_unsure(true);
                continue;
            };
            let holding = self.holding(&object.claim, &uid);
            if let Some(known) = known {
                let unreserved = known.unreserved;
                let holding = Holding {
                    unreserved,
                    ..holding
                };
                self.renew_holding(&holding).await?;
                continue;
            }
            if !self.is_granted(of, &object).await? {
                continue;
            }
            let _donating = self.donating.lock().await;
            self.put_into_use(of, &object.claim).await?;
            if let Err(error) = self.adopt(of, slice).await {
                self.withhold(slice, error)?;
                continue;
            }
            self.surrender_offers(of, &object.claim).await?;
            self.hold(holding).await?;
        }
        Ok(())
    }

    /// What can't be read of one slice is an error of that slice alone: nothing is allocated from it until it can be (I5), and
    /// the others are served.
    pub fn withhold(&self, slice: Prefix, error: SliceError) -> Result<(), SliceError> {
        let SliceError::Store(error @ LedgerError::Unreadable { .. }) = error else {
            return Err(error);
        };
        tracing::warn!(%slice, node = %self.world.node, %error, "nothing is allocated from this slice until this can be read");
        // The next look tries again.
        self.set_unsure(true);
        Ok(())
    }

    /// The claims in this node's name: those of what it holds, read by name, and those that it knows nothing of. A list
    /// of them would have the API server look at every claim of the cluster, for every node and range.
    /// Those of its slices whose claims can't be read come beside.
    async fn claims_of_ours(
        &self,
        of: &Arc<Sliced>,
    ) -> Result<(Vec<SliceObject>, Vec<Prefix>), SliceError> {
        let world = &self.world;
        let mut unreadable = Vec::new();
        if self.is_unsure() {
            // First: what becomes unsure while the list is read needs another.
            self.set_unsure(false);
            let range = Some((of.network.as_str(), of.range));
            let listed = world.cluster.list_slices(range, Some(&world.node)).await;
            self.set_unsure(listed.is_err() || self.is_unsure());
            let listed = listed?;
            for one in listed.unreadable {
                unreadable.extend(one.slice);
                let slice = one.slice.unwrap_or(of.range);
                self.withhold(slice, SliceError::Store(one.why))?;
            }
            return Ok((listed.claims, unreadable));
        }
        let mut mine = Vec::new();
        for holding in self.held().iter() {
            match world.cluster.slice(&of.network, holding.slice).await {
                Ok(found) => mine.extend(found.filter(|object| object.claim.node == world.node)),
                Err(error) => {
                    self.withhold(holding.slice, error.into())?;
                    unreadable.push(holding.slice);
                }
            }
        }
        if !self.is_confirmed() {
            let known: Vec<Prefix> = mine.iter().map(|object| object.claim.range).collect();
            let of_range = world.found().await?.iter().filter(|object| {
                object.is_of(&of.network, of.range) && !known.contains(&object.claim.range)
            });
            mine.extend(of_range.cloned());
        }
        Ok((mine, unreadable))
    }

    /// Whether a claim in this node's name that it holds nothing of may be held: a slot of the cut, or a part whose offer
    /// stands. What is neither is a leftover of a crash, and goes: also one that is larger than the cut, for others have
    /// slots in it.
    async fn is_granted(&self, of: &Arc<Sliced>, object: &SliceObject) -> Result<bool, SliceError> {
        let part = object.claim.range;
        let size = self.mark(of).await?.size;
        if part.length() < size {
            self.drop_claim(object).await?;
            return Ok(false);
        }
        // A later epoch than the first: whoever had it has passed it on.
        if part.length() == size || object.claim.epoch > FIRST {
            return Ok(true);
        }
        let all = self.list_claims(of).await?;
        if all.may_hide(&of.network, part) {
            // What it was cut from may be one of those: it is neither held nor ended before that is known.
            self.set_unsure(true);
            return Ok(false);
        }
        let Some(parent) = parent_of(part, &all.claims) else {
            // Made late, by a CREATE of before: what it was to be a part of is anybody's to claim, all of it.
            self.drop_claim(object).await?;
            return Ok(false);
        };
        if parent.claim.lets(part, &self.world.node) {
            return Ok(true);
        }
        let _donating = self.donating.lock().await;
        if parent.claim.node == self.world.node {
            self.finish_withdrawal(of, parent.claim.range, part).await?;
        } else {
            self.drop_claim(object).await?;
        }
        Ok(false)
    }

    /// Ends a claim that this node may not hold. One that somebody has written on meanwhile is found by the next comparison.
    pub async fn drop_claim(&self, object: &SliceObject) -> Result<(), LedgerError> {
        let ended = self.world.cluster.end_slice(object).await;
        self.set_unsure(self.is_unsure() || !matches!(ended, Ok(true)));
        ended.map(|_| ())
    }

    /// Whether a claim is as this node holds it.
    pub fn knows(&self, claim: &Claimed) -> bool {
        self.held().iter().any(|holding| {
            holding.is_active()
                && holding.slice == claim.range
                && claim.node == self.world.node
                && !claim.recalled
                && holding.epoch == claim.epoch
                && holding.node_uid == claim.node_uid
        })
    }

    /// A claimed slice that may be given from, with reservations.
    pub fn holding(&self, claim: &Claimed, uid: &str) -> Holding {
        Holding {
            slice: claim.range,
            epoch: claim.epoch,
            node: self.world.node.clone(),
            node_uid: uid.to_owned(),
            boot: self.world.boot.clone(),
            state: State::Active,
            disjoint: self.is_disjoint(),
            unreserved: false,
            source: Source::Claimed,
        }
    }

    /// Every claim of the range; one that can't be read is an error.
    pub async fn all_claims(&self, of: &Sliced) -> Result<Vec<SliceObject>, LedgerError> {
        self.list_claims(of).await?.complete()
    }

    /// The same, where one that can't be read hides no other.
    pub async fn list_claims(&self, of: &Sliced) -> Result<SliceList, LedgerError> {
        let range = Some((of.network.as_str(), of.range));
        self.world.cluster.list_slices(range, None).await
    }

    /// One more slice before the last is full, and one less when one was empty for a while. Never asks other nodes.
    pub async fn balance(&self) -> Result<(), SliceError> {
        let of = self.of();
        self.forget_lost(&of).await?;
        let active = self.active();
        let local = self.world.local.load(&of.key()).await?;
        let space = of.usable.clipped_to(&active.slices);
        let records = local.pool.records();
        let given = records.filter(|(address, _)| space.contains(*address));
        let (capacity, used_now) = (space.count(), given.count() as u128);
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
            if self.vain.is_recent(Instant::now()) {
                return Ok(());
            }
            let _gate = self.gate.lock().await;
            if self.active() == active && !self.claim_free(&of).await? {
                self.vain.note(Instant::now());
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
            let held = local.pool.records().map(|(address, _)| address);
            let cooling = local.pool.cooling(world::now());
            let idle = !held.chain(cooling).any(|address| slice.contains(address));
            let since = self.idle_since(slice, idle.then_some(now));
            let spare = capacity.saturating_sub(part.count()) >= target;
            if since.is_some_and(|since| now - since >= self.world.settings.idle) && spare {
                let _gate = self.gate.lock().await;
                // One at a time, for what is spare is less then. What can't go yet is passed over: a slice with a part that
                // came back goes after that part.
                if self.give_back(&of, slice).await? {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Gives an empty slice back: it is not given from before that is told. The gate must be held.
    /// False: it is still held.
    async fn give_back(&self, of: &Arc<Sliced>, slice: Prefix) -> Result<bool, SliceError> {
        let world = &self.world;
        let Some(object) = world.cluster.slice(&of.network, slice).await? else {
            return Ok(false);
        };
        if object.claim.node != world.node || !object.claim.may_go() {
            return Ok(false);
        }
        if !self.shut(of, slice, &world.node).await? {
            return Ok(false);
        }
        let ended = world.cluster.end_slice(&object).await;
        if !matches!(ended, Ok(true)) {
            // Somebody asked for a part of it meanwhile: the next comparison takes it on again.
            self.set_unsure(true);
        }
        if !ended? {
            return Ok(true);
        }
        self.let_go(of, slice).await?;
        world.metrics.yields.get_or_create(&self.label()).inc();
        tracing::info!(%slice, node = %world.node, "an empty slice was given back");
        Ok(true)
    }
}
