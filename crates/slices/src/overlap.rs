//! Ranges of one network that overlap each other: it was made wider or narrower. Each has a plain pool of its own, and so a
//! mark and a cut of its own: a slice of one may lie over slices of the other, by another name.
//!
//! Where every address has a reservation, that keeps them apart. Where not, a range is sliced only when nothing is claimed of
//! the others, and their marks go before its own is made: whoever claims of one of them again finds no mark, and looks in
//! turn. A mark keeps a plain pool shut, so it stays while anything is claimed of its range, overlapping or not. Of two that
//! are sliced at once, one sees the other: both claim before they look.

use std::collections::{BTreeMap, BTreeSet};

use berth_core::Prefix;
use berth_core::slice::elastic::{Mark, MarkState};

use crate::error::SliceError;
use crate::pool::SlicePool;
use crate::sliced::Sliced;

/// How many nodes, and ranges, a refusal names.
const NAMED: usize = 5;

impl SlicePool {
    /// Returns when nobody gives from slices of another range that overlaps this one, unless reservations keep them apart.
    pub async fn part_from_others(&self, of: &Sliced) -> Result<(), SliceError> {
        let cluster = &self.world.cluster;
        let marked = cluster.sliced_ranges(&of.network).await?;
        let mut others: BTreeMap<Prefix, Mark> = BTreeMap::new();
        for (range, mark) in marked {
            if range == of.range || !range.overlaps(of.range) {
                continue;
            }
            // One that overlaps and can't be read may say anything.
            let mark = mark?;
            if !of.checked || mark.unreserved {
                others.insert(range, mark);
            }
        }
        if of.checked && others.is_empty() {
            return Ok(());
        }
        self.see_none_claimed(of, &others).await?;
        for (range, mark) in &others {
            let plain = Sliced {
                range: *range,
                ..of.clone()
            }
            .plain();
            let leaving = Mark {
                state: MarkState::Leaving,
                ..*mark
            };
            if *mark != leaving && !cluster.set_mark(&plain, Some(*mark), Some(leaving)).await? {
                return Err(SliceError::Leaving { range: *range });
            }
            // After that: a claim which this does not show finds the range leaving.
            if let Err(claimed) = self.see_none_claimed(of, &others).await {
                cluster.set_mark(&plain, Some(leaving), Some(*mark)).await?;
                return Err(claimed);
            }
            if cluster.set_mark(&plain, Some(leaving), None).await? {
                tracing::info!(%range, by = %of.range, "the range is not sliced any more: another one of its network is, which overlaps it");
            } else if cluster.mark(&plain).await?.is_some() {
                // Not another node of this range that did the same: it is sliced again.
                return Err(SliceError::Leaving { range: *range });
            }
        }
        Ok(())
    }

    async fn see_none_claimed(
        &self,
        of: &Sliced,
        others: &BTreeMap<Prefix, Mark>,
    ) -> Result<(), SliceError> {
        let cluster = &self.world.cluster;
        let beside = cluster.slices_beside(&of.network, of.range).await?;
        // A claim that can't be read is in the way where it may be of one of these ranges (I5).
        let mut ranges = others.keys().chain([&of.range]);
        let claims = match ranges.any(|range| beside.may_hide(&of.network, *range)) {
            true => beside.complete()?,
            false => beside.claims,
        };
        // Of a range whose mark goes, all of them; else what overlaps, of a range that may have no mark yet.
        let in_the_way = claims.iter().filter(|object| {
            let marked = others.keys().any(|one| object.is_of(&of.network, *one));
            let overlaps = !of.checked && object.claim.range.overlaps(of.range);
            object.network == of.network
                && !object.is_of(&of.network, of.range)
                && (marked || overlaps)
        });
        let (mut ranges, mut nodes, mut count) = (BTreeSet::new(), BTreeSet::new(), 0);
        for object in in_the_way {
            let whole = object.whole().unwrap_or(object.claim.range);
            ranges.insert(whole.to_string());
            nodes.insert(object.claim.node.to_string());
            count += 1;
        }
        if count == 0 {
            return Ok(());
        }
        let some = |names: BTreeSet<String>| {
            let named: Vec<String> = names.into_iter().take(NAMED).collect();
            named.join(", ")
        };
        Err(SliceError::Overlapped {
            range: of.range,
            others: some(ranges),
            nodes: some(nodes),
            count,
        })
    }
}
