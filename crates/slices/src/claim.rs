//! A slice is claimed by the name of a slot: first the claim, then one look at the range's plain pool, then it is held.
//!
//! The look tells what the claim was made without: whether the range is sliced, and how it is cut, whether it is on its way
//! back, and what the plain pool holds of the slot. A claim that does not bear it goes.

use std::sync::Arc;

use berth_core::Prefix;
use berth_core::slice::elastic::{Mark, Walk};
use berth_core::slice::{Cut, Holding as Slot, NodeName};
use berth_whereabouts::SliceObject;
use tokio::time::Instant;

use crate::error::SliceError;
use crate::holdings::Holding;
use crate::mark::wished_size;
use crate::pool::SlicePool;
use crate::room::table_of;
use crate::sliced::Sliced;

/// Slots that turned out to be taken before all claims are read at once.
const WALKED: usize = 8;
/// Free slots of that list that turned out to be taken, before it is left to the next try.
const LISTED: usize = 64;
/// How often a range may turn out to be cut otherwise during one claim.
const CUTS: usize = 3;

/// What became of a slot that was tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attempt {
    Held,
    /// It is another's.
    Taken,
    /// The range is cut otherwise than was thought.
    OtherCut,
}

impl SlicePool {
    /// Claims one more slice, if one is free. The gate must be held.
    pub async fn claim_free(&self, of: &Arc<Sliced>) -> Result<bool, SliceError> {
        self.world.may_claim(of.range).await?;
        // One on its way back is not claimed from to find that out again: whoever brings it back waits for claims to go.
        if self.is_leaving() {
            self.look_for_mark(of).await?;
        }
        for _ in 0..CUTS {
            // Before the mark was ever seen: as this network would cut it, which is how it is cut as a rule. Whoever claims
            // looks at the mark after its claim, and one look is enough.
            let size = self
                .known_mark()
                .map_or_else(|| wished_size(of), |mark| mark.size);
            match self.walk(of, Cut::new(of.range, size)?).await? {
                Attempt::Held => return Ok(true),
                Attempt::Taken => break,
                Attempt::OtherCut => {}
            }
        }
        self.claim_listed(of).await
    }

    /// Tries the slots at this node's own places, but for those that it has lost while pods hold addresses there.
    async fn walk(&self, of: &Arc<Sliced>, cut: Cut) -> Result<Attempt, SliceError> {
        let fits = |slot: &Prefix| {
            let held = self.held();
            !of.usable.clipped(*slot).is_empty()
                && !held.iter().any(|one| one.slice.overlaps(*slot))
        };
        let number = self.world.registration().await?.number;
        let walk = Walk::of(cut, &self.world.node, &of.network, number).take(4 * WALKED);
        for slot in walk.filter(fits).take(WALKED) {
            match self.claim_slot(of, slot).await? {
                Attempt::Taken => {}
                attempt => return Ok(attempt),
            }
        }
        Ok(Attempt::Taken)
    }

    /// Tries what is free by the list of all claims.
    async fn claim_listed(&self, of: &Arc<Sliced>) -> Result<bool, SliceError> {
        let world = &self.world;
        let mark = self.look_for_mark(of).await?;
        let size = mark.map_or_else(|| wished_size(of), |mark| mark.size);
        let cut = Cut::new(of.range, size)?;
        let mut table = table_of(cut, self.list_claims(of).await?);
        // One that was lost is as free as any, if nobody has claimed it: what pods of this node hold in it is in its pool.
        for holding in self.held().iter().filter(|one| one.is_active()) {
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
            if self.claim_slot(of, slot.slice).await? == Attempt::Held {
                return Ok(true);
            }
        }
        Ok(false)
    }

    async fn claim_slot(&self, of: &Arc<Sliced>, slot: Prefix) -> Result<Attempt, SliceError> {
        let uid = self.world.node_uid().await?;
        let claim = self.world.claimed(slot, uid);
        let (asked, cluster) = (Instant::now(), &self.world.cluster);
        let made = if self.is_unsure() {
            cluster.claim_slice(&of.network, of.range, &claim).await
        } else {
            let made = cluster.claim_new_slice(&of.network, of.range, &claim);
            made.await
        };
        self.world.busy.felt(asked, Instant::now());
        // It may have been made all the same.
        self.set_unsure(self.is_unsure() || made.is_err());
        let Some(object) = made? else {
            return Ok(Attempt::Taken);
        };
        let anothers = self.is_anothers(of, slot).await;
        self.set_unsure(self.is_unsure() || anothers.is_err());
        if anothers? {
            self.drop_claim(&object).await?;
            return Ok(Attempt::Taken);
        }
        if !self.confirmed(of, &object, slot.length()).await? {
            return Ok(Attempt::OtherCut);
        }
        self.publisher.lock().await.expect_none(slot);
        self.world
            .metrics
            .refills
            .get_or_create(&self.label())
            .inc();
        Ok(Attempt::Held)
    }

    /// Holds what was just claimed, after a look at what others hold in it.
    pub async fn take(&self, of: &Arc<Sliced>, object: &SliceObject) -> Result<(), SliceError> {
        let size = self.mark(of).await?.size;
        match self.confirmed(of, object, size).await? {
            true => Ok(()),
            false => Err(SliceError::Leaving { range: of.range }),
        }
    }

    /// The same of a claim that was made by a cut of that size. False: the range is cut otherwise, and the claim is gone.
    async fn confirmed(
        &self,
        of: &Arc<Sliced>,
        object: &SliceObject,
        size: u8,
    ) -> Result<bool, SliceError> {
        let confirmed = self.confirm(of, object, size).await;
        // A claim that is not held is found again by the next comparison.
        self.set_unsure(self.is_unsure() || confirmed.is_err());
        confirmed
    }

    async fn confirm(
        &self,
        of: &Arc<Sliced>,
        object: &SliceObject,
        size: u8,
    ) -> Result<bool, SliceError> {
        // After the claim: whoever ends slicing has told so before it looks for claims.
        let (cluster, pool) = (&self.world.cluster, of.plain());
        let (mut now, mut plain) = cluster.marked(&pool).await?;
        let untold = match now.sliced {
            None => self.known_mark().is_none(),
            Some(mark) => mark.for_network(of.checked) != mark,
        };
        if untold {
            // Nobody has sliced the range yet, or given from it as this network does. A claim says nothing to those who give
            // in other ways; the mark does, so the pool is read again after that.
            self.set_mark(None);
            if let Err(error) = self.marked(of, now.sliced).await {
                self.drop_claim(object).await?;
                return Err(error);
            }
            (now, plain) = cluster.marked(&pool).await?;
        }
        let assigned = now.bars(of.checked);
        let fits = |mark: &Mark| mark.confirms(size) && mark.for_network(of.checked) == *mark;
        let Some(mark) = now.sliced.filter(|mark| !assigned && fits(mark)) else {
            self.set_mark(None);
            self.drop_claim(object).await?;
            if assigned {
                self.world.plain.open(of).await?;
                return Err(SliceError::Leaving { range: of.range });
            }
            self.look_for_mark(of).await?;
            return Ok(false);
        };
        self.set_mark(Some(mark));
        // Nothing is lent or passed on while it is not settled what is in use.
        let _donating = self.donating.lock().await;
        self.put_into_use(of, &object.claim).await?;
        self.adopt_entries(of, object.claim.range, &plain.pool)
            .await?;
        self.surrender_offers(of, &object.claim).await?;
        let holding = self.holding(&object.claim, &object.claim.node_uid);
        self.hold(Holding {
            unreserved: mark.unreserved && !now.bars(false),
            ..holding
        })
        .await?;
        Ok(true)
    }
}
