//! Claims of this node that somebody has deleted, by hand or with their namespace, while pods have addresses of their slices.
//!
//! Promises: nothing is allocated from such a slice until its claim stands again; it is claimed again at once, by the steps
//! of any claim, so that nobody else gets the name (I1, I8). A slice that another node has claimed meanwhile is lost.

use std::sync::Arc;
use std::time::Duration;

use berth_core::Prefix;
use berth_core::slice::elastic::{Claimed, Offer};
use berth_ledger::LedgerError;
use tokio::time::Instant;

use crate::error::SliceError;
use crate::forget::used;
use crate::holdings::Holding;
use crate::pool::SlicePool;
use crate::sliced::{Mode, Sliced};
use crate::surrender::{lent, parent_of};
use crate::world::locked;

/// How long claims are looked at with care after some were deleted.
const WARY: Duration = Duration::from_secs(600);

impl SlicePool {
    /// Whether a claim of this node seems to be gone: a cheap look, which a comparison confirms.
    pub async fn has_vanished(&self) -> Result<bool, LedgerError> {
        let of = self.of();
        if of.mode == Mode::Assigned {
            return Ok(false);
        }
        for holding in self.held().iter().filter(|one| one.is_active()) {
            let found = self.world.cluster.has_slice(&of.network, holding.slice);
            if !found.await? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Claims again what is in use of these slices, whose claims are gone; tells of what is lost. The gate must be held.
    pub async fn claim_vanished(
        &self,
        of: &Arc<Sliced>,
        vanished: &[Holding],
    ) -> Result<(), SliceError> {
        // Whole before part: a part is held only beside the offer of what it was cut from.
        let mut by_size: Vec<&Holding> = vanished.iter().collect();
        by_size.sort_by_key(|holding| holding.slice.length());
        for holding in by_size {
            if holding.is_active() {
                // Claims of others may be gone too: nothing is claimed ahead of need until they had time to come back.
                let now = Instant::now();
                self.vain.note(now);
                *locked(&self.vanished) = Some(now);
            }
            let again = self.claim_again(of, holding).await;
            if !matches!(again, Ok(true)) && holding.is_active() {
                let found = self.world.cluster.slice(&of.network, holding.slice).await;
                let to = match found {
                    Ok(Some(object)) => format!("{}'s", object.claim.node),
                    _ => "nobody's".to_owned(),
                };
                self.tell_of_loss(holding, &to).await?;
            }
            again?;
        }
        Ok(())
    }

    /// Whether a slot that was just claimed is in use on another node, whose claim somebody has deleted: its pool is
    /// published still. One list by the slot's label; while claims of this node were deleted a short while ago, all pools,
    /// for those of older versions have no label.
    pub async fn is_anothers(&self, of: &Sliced, slot: Prefix) -> Result<bool, SliceError> {
        let noticed = *locked(&self.vanished);
        let wary = noticed.is_some_and(|noticed| noticed.elapsed() <= WARY);
        let (cluster, node) = (&self.world.cluster, self.world.node.as_str());
        let used = match wary {
            true => cluster.is_used_elsewhere(&of.network, slot, node).await?,
            false => {
                let used = cluster.is_slot_used_elsewhere(&of.network, slot, node);
                used.await?
            }
        };
        if used {
            tracing::warn!(%slot, node, "pods of another node have addresses of this slot, and its Lease was gone; it is not taken");
        }
        Ok(used)
    }

    /// The slot that a slice of this node lies in.
    pub fn slot_of(&self, slice: Prefix) -> Prefix {
        let size = self.known_mark().map_or(slice.length(), |mark| mark.size);
        let length = size.min(slice.length());
        Prefix::containing(slice.network(), length).unwrap_or(slice)
    }

    /// Whether the slice is held again.
    async fn claim_again(&self, of: &Arc<Sliced>, holding: &Holding) -> Result<bool, SliceError> {
        let (world, slice) = (&self.world, holding.slice);
        let local = world.local.load(&of.key()).await?;
        let offers = lent(&local.pool, slice);
        if used(&local.pool, slice).next().is_none() && offers.is_empty() {
            return Ok(false);
        }
        if world.cluster.slice(&of.network, slice).await?.is_some() {
            return Ok(false);
        }
        let uid = world.node_uid().await?;
        let claim = Claimed {
            epoch: holding.epoch,
            offers,
            ..world.claimed(slice, uid)
        };
        // A claim without an answer, or one that can't be held yet, is found by the next comparison.
        self.set_unsure(true);
        let made = world
            .cluster
            .claim_new_slice(&of.network, of.range, &claim)
            .await?;
        let Some(object) = made else {
            return Ok(false);
        };
        let is_part = slice.length() > self.mark(of).await?.size;
        if is_part {
            let all = self.all_claims(of).await?;
            let parent = parent_of(slice, &all);
            if !parent.is_some_and(|parent| parent.claim.lets(slice, &world.node)) {
                self.drop_claim(&object).await?;
                return Ok(false);
            }
        }
        self.take(of, &object).await?;
        tracing::warn!(
            claim = object.name, %slice, node = %world.node,
            "the Lease of a slice in use was deleted; it is created again"
        );
        Ok(true)
    }

    /// Takes out of use what is lent of a slice by its claim: the file may be older than the loan.
    pub async fn surrender_again(&self, of: &Arc<Sliced>, slice: Prefix) -> Result<(), SliceError> {
        let _donating = self.donating.lock().await;
        // Read under the lock: a loan may have ended since the claims were read.
        let found = self.world.cluster.slice(&of.network, slice).await?;
        let ours = found.filter(|object| object.claim.node == self.world.node);
        for Offer { range, node } in ours.iter().flat_map(|object| &object.claim.offers) {
            self.surrender_stale(of, *range, node).await?;
        }
        Ok(())
    }
}
