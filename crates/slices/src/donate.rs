//! The donor's side of borrowing: a part of a slice is surrendered in the node's own pool first, offered on its claim
//! second, and taken back only while its name is this node's own.

use std::sync::Arc;

use berth_core::slice::elastic::{Claimed, Offer, spare};
use berth_core::slice::{Epoch, NodeName};
use berth_core::{Prefix, Record};
use berth_ledger::LedgerError;
use berth_whereabouts::SliceObject;
use tokio::time::Instant;

use crate::error::SliceError;
use crate::pool::SlicePool;
use crate::retire::LEAVING;
use crate::sliced::Sliced;
use crate::surrender::Rows;
use crate::world::now;

/// Pods that took an address of the part that was about to be spared, before the asker is told no; writes of others that
/// came in between when a part was taken back, before that is left for later.
const TRIES: usize = 5;

impl SlicePool {
    /// Answers everybody who asks for a part of a slice of this node.
    pub async fn answer_wants(&self, asked: &SliceObject) -> Result<(), SliceError> {
        let of = self.of();
        let _donating = self.donating.lock().await;
        loop {
            let range = asked.claim.range;
            let Some(object) = self.world.cluster.slice(&of.network, range).await? else {
                return Ok(());
            };
            let asks = |want: &&NodeName| want.as_str() != LEAVING;
            let Some(taker) = object.claim.wants.iter().find(asks).cloned() else {
                return Ok(());
            };
            if object.claim.node != self.world.node {
                return Ok(());
            }
            self.answer(&of, &object, &taker).await?;
        }
    }

    async fn answer(
        &self,
        of: &Arc<Sliced>,
        object: &SliceObject,
        taker: &NodeName,
    ) -> Result<(), SliceError> {
        let spared = self.spare_part(of, object, taker).await?;
        if spared.is_none() && self.pass_on(of, object, taker).await? {
            return Ok(());
        }
        let mut claim = Claimed {
            wants: object.claim.wants.clone(),
            ..object.claim.clone()
        };
        claim.wants.retain(|want| want != taker);
        claim.offers.extend(spared.iter().map(|(range, _)| Offer {
            range: *range,
            node: taker.clone(),
        }));
        let written = self.world.cluster.amend_slice(object, &claim).await;
        match (&written, spared) {
            (Ok(Some(_)), Some((part, _))) => {
                self.world
                    .metrics
                    .donations
                    .get_or_create(&self.label())
                    .inc();
                tracing::info!(%part, %taker, slice = %claim.range, "a part of a slice was offered");
            }
            // It was not written: the addresses are this node's still.
            (Ok(None), Some((_, rows))) => self.free_rows(of, &rows).await?,
            // Nobody knows: the rows stay until a look at the claim settles it.
            _ => {}
        }
        written?;
        Ok(())
    }

    /// Passes a slice on that is of no use here and can't be split: the whole claim becomes the asker's. Whether it was.
    async fn pass_on(
        &self,
        of: &Arc<Sliced>,
        object: &SliceObject,
        taker: &NodeName,
    ) -> Result<bool, SliceError> {
        let slice = object.claim.range;
        let held = self.held();
        let holding = held
            .iter()
            .find(|one| one.slice == slice && one.is_active());
        if holding.is_none() || !object.claim.may_go() {
            return Ok(false);
        }
        // Whose it is will be seen from the claim, should this be cut short.
        self.set_unsure(true);
        if !self.shut(of, slice, taker).await? {
            return Ok(false);
        }
        let claim = Claimed {
            node: taker.clone(),
            node_uid: String::new(),
            epoch: Epoch(object.claim.epoch.0 + 1),
            offers: Vec::new(),
            wants: Vec::new(),
            recalled: false,
            ..object.claim.clone()
        };
        if self
            .world
            .cluster
            .amend_slice(object, &claim)
            .await?
            .is_none()
        {
            // It was not written, and whose it is by now nobody knows: it is taken on again like a claim of before, with a
            // write.
            self.suspect();
            return Ok(false);
        }
        // Who asked may wait no more: it was slow, or has begun anew.
        self.world.call(taker, object).await;
        self.let_go(of, slice).await?;
        tracing::info!(%slice, %taker, "a slice was passed on");
        Ok(true)
    }

    /// Forgets a slice that is another's. Its addresses stay out of use where another slice of this node lies around
    /// it: it was cut from that one.
    pub async fn let_go(&self, of: &Arc<Sliced>, slice: Prefix) -> Result<(), SliceError> {
        self.unpublish(slice).await;
        let held = self.held();
        if !held.iter().any(|holding| holding.slice.covers(slice)) {
            let rows = self.rows_of(of, |row| row == slice).await?;
            self.free_rows(of, &rows).await?;
        }
        Ok(())
    }

    /// A part that is out of use from now on.
    async fn spare_part(
        &self,
        of: &Arc<Sliced>,
        object: &SliceObject,
        taker: &NodeName,
    ) -> Result<Option<(Prefix, Rows)>, SliceError> {
        let slice = object.claim.range;
        // What is not held here yet, or not any more, is nothing to give.
        let held = self.held();
        if !held.iter().any(|one| one.slice == slice && one.is_active()) || !self.is_confirmed() {
            return Ok(None);
        }
        let mut nested = self.active_inside(slice);
        // What is offered is not offered again, also where it is out of use no more: a part that came back, before it is held.
        nested.extend(object.claim.offers.iter().map(|offer| offer.range));
        for _ in 0..TRIES {
            let mut local = self.world.local.load(&of.key()).await?;
            // What lies in a slice of its own inside this one is that one's to give.
            for address in nested.iter().flat_map(|inner| {
                let space = of.usable.clipped(*inner);
                (0..space.count()).filter_map(move |n| space.nth(n))
            }) {
                if !local.pool.is_held(address) {
                    local.pool.restore(address, Record::default());
                }
            }
            let Some(part) = spare(slice, &of.usable, &local.pool, now()) else {
                return Ok(None);
            };
            if let Some(rows) = self.surrender(of, part, taker).await? {
                return Ok(Some((part, rows)));
            }
        }
        Ok(None)
    }

    /// Takes back offers that nobody took, or that their taker is done with. The gate must be held. Whether addresses
    /// are in use again that were not.
    pub async fn withdraw_offers(&self, of: &Arc<Sliced>) -> Result<bool, SliceError> {
        let world = &self.world;
        let _donating = self.donating.lock().await;
        let mut withdrawn = false;
        let listed = self.list_claims(of).await?;
        let unreadable: Vec<Prefix> = listed
            .unreadable
            .iter()
            .filter_map(|one| one.slice)
            .collect();
        let all = listed.claims;
        let mine = all.iter().filter(|object| object.claim.node == world.node);
        let now = Instant::now();
        for object in mine {
            for offer in &object.claim.offers {
                let taken = all.iter().any(|other| other.claim.range == offer.range)
                    || unreadable.contains(&offer.range);
                let since = self.idle_since(offer.range, (!taken).then_some(now));
                if since.is_none_or(|since| now - since < world.settings.offer_wait) {
                    continue;
                }
                let claim = world.claimed(offer.range, object.claim.node_uid.clone());
                // A name that this does not get to end is found by the next comparison.
                self.set_unsure(true);
                let made = world
                    .cluster
                    .claim_slice(&of.network, of.range, &claim)
                    .await?;
                if made.is_some() {
                    let slice = object.claim.range;
                    withdrawn |= self.finish_withdrawal(of, slice, offer.range).await?;
                    // The claim was changed: the others wait for the next look.
                    break;
                }
            }
        }
        Ok(withdrawn)
    }

    /// The name of the part is ours: the offer goes, then the name, and then the addresses are given again. Whether
    /// it came to that: whoever asks writes on these claims too, so it is tried some times.
    pub async fn finish_withdrawal(
        &self,
        of: &Arc<Sliced>,
        slice: Prefix,
        part: Prefix,
    ) -> Result<bool, SliceError> {
        for _ in 0..TRIES {
            let rows = self.rows_of(of, |row| part.covers(row)).await?;
            if self.withdraw(of, slice, part).await? {
                self.free_rows(of, &rows).await?;
                self.note_more();
                tracing::info!(%part, %slice, "a part of a slice was taken back");
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Takes an offer off the claim of `slice`, by the name of the part, and ends that. False: not both are this node's, or
    /// somebody else wrote on one of them.
    async fn withdraw(&self, of: &Sliced, slice: Prefix, part: Prefix) -> Result<bool, SliceError> {
        let cluster = &self.world.cluster;
        let ours = async |range| {
            let found = cluster.slice(&of.network, range).await?;
            Ok::<_, LedgerError>(found.filter(|found| found.claim.node == self.world.node))
        };
        // Each of these is a write, whatever it changes: an older one of ours may still be on its way.
        let Some(child) = ours(part).await? else {
            return Ok(false);
        };
        let Some(child) = cluster.amend_slice(&child, &child.claim).await? else {
            return Ok(false);
        };
        let Some(parent) = ours(slice).await? else {
            return Ok(false);
        };
        let mut claim = parent.claim.clone();
        claim.offers.retain(|offer| offer.range != part);
        let gone = cluster.amend_slice(&parent, &claim).await?.is_some();
        Ok(gone && cluster.end_slice(&child).await?)
    }
}
