//! Whether a range has room for a pod that finds this node's slices full: what STATUS asks. Only reads.

use std::collections::BTreeSet;
use std::sync::Arc;

use berth_core::slice::elastic::{MarkState, Walk};
use berth_core::slice::{Cut, Epoch, Holding as Slot, NodeName, SliceTable};
use berth_whereabouts::SliceList;

use crate::error::SliceError;
use crate::mark::wished_size;
use crate::sliced::{Mode, Sliced};
use crate::slices::Slices;

/// Slots that are looked at one by one, by the API server's cache, before all claims are listed.
const LOOKS: usize = 8;

/// Which slots of the cut are claimed. One that can't be read is somebody's (I5): its name is taken, whatever else it says.
pub(crate) fn table_of(cut: Cut, claims: SliceList) -> SliceTable {
    let mut table = SliceTable::new(cut);
    for object in claims.claims {
        table.restore(Slot {
            slice: object.claim.range,
            node: object.claim.node,
            epoch: object.claim.epoch,
        });
    }
    for slice in claims.unreadable.iter().filter_map(|one| one.slice) {
        table.restore(Slot {
            slice,
            node: NodeName::new("(unreadable)"),
            epoch: Epoch(0),
        });
    }
    table
}

impl Slices {
    /// Whether this node has a slice of the range that may be allocated from, as far as this process knows.
    pub fn has_active(&self, of: &Sliced) -> bool {
        let known = self.known(of);
        known.is_some_and(|pool| !pool.active().slices.is_empty())
    }

    /// Whether a node whose own slices are full may get an address: a slot is free, or slices of others have free parts.
    pub async fn has_room(&self, of: &Arc<Sliced>) -> Result<bool, SliceError> {
        let Mode::Elastic { borrow, .. } = of.mode else {
            return Ok(false);
        };
        let world = self.world();
        let cluster = &world.cluster;
        let mark = cluster.mark(&of.plain()).await?;
        if mark.is_some_and(|mark| mark.state == MarkState::Leaving) {
            return Err(SliceError::Leaving { range: of.range });
        }
        let size = mark.map_or_else(|| wished_size(of), |mark| mark.size);
        let cut = Cut::new(of.range, size)?;
        let walk = Walk::of(cut, &world.node, &of.network, None).take(4 * LOOKS);
        let usable = walk.filter(|slot| !of.usable.clipped(*slot).is_empty());
        for slot in usable.take(LOOKS) {
            if !cluster.has_slice(&of.network, slot).await? {
                return Ok(true);
            }
        }
        let claims = cluster
            .list_slices(Some((of.network.as_str(), of.range)), None)
            .await?;
        let mut table = table_of(cut, claims);
        if table.claim(&world.node, &of.usable, 0).is_ok() {
            return Ok(true);
        }
        Ok(borrow && self.has_free_parts(of).await?)
    }

    /// Whether fewer addresses are held than there are, by what nodes publish, the plain pool and this node's file.
    async fn has_free_parts(&self, of: &Sliced) -> Result<bool, SliceError> {
        let (world, plain) = (self.world(), of.plain());
        let local = world.local.load(&of.key()).await?;
        let mut held: BTreeSet<_> = local.pool.records().map(|(address, _)| address).collect();
        let count = |visited: berth_ledger::Visited| {
            let published = || {
                let (node, slice) = (visited.publisher.as_deref()?, visited.key.network?);
                Some(of.published(&NodeName::new(node), slice).name)
            };
            let is_inside = visited
                .key
                .network
                .is_some_and(|slice| of.range.covers(slice));
            let is_ours = visited.key.name == plain.name
                || is_inside && published().is_some_and(|name| name == visited.key.name);
            if let Some(snapshot) = visited.snapshot.ok().filter(|_| is_ours) {
                held.extend(snapshot.pool.records().map(|(address, _)| address));
            }
        };
        world.cluster.visit_each(count).await?;
        let used = held.iter().filter(|address| of.usable.contains(**address));
        Ok((used.count() as u128) < of.usable.count())
    }
}
