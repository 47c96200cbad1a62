//! A range that grew, or shrank: the same slice is of another range by now, and of another pool of this node.
//!
//! One of them gives from it (I1): whoever takes it on has the other stop first, and holds what that one gave. Pods of before
//! come with the old range for as long as they live: what they hold stays in the old pool too, for their CHECK and DEL.

use std::sync::Arc;

use berth_core::{Address, Prefix, Record};

use crate::adopt::entries;
use crate::error::SliceError;
use crate::holdings::{Holding, Source, State};
use crate::pool::SlicePool;
use crate::sliced::Sliced;
use crate::world::locked;

impl SlicePool {
    /// Takes a slice of a table from pools of other ranges that hold it by the same table. [`crate::world::World::assigning`]
    /// must be held until it is held here.
    pub async fn take_from_others(
        &self,
        of: &Arc<Sliced>,
        slice: Prefix,
    ) -> Result<(), SliceError> {
        let all = locked(&self.world.pools).clone();
        for other in all.iter().filter_map(std::sync::Weak::upgrade) {
            if other.of().key() != of.key() {
                let given = other.move_out(&of.slice_pool, slice).await?;
                self.take_in(of, given).await?;
            }
        }
        Ok(())
    }

    /// Gives nothing from a slice any more; what was given, if it was.
    async fn move_out(
        &self,
        slice_pool: &str,
        slice: Prefix,
    ) -> Result<Vec<(Address, Record)>, SliceError> {
        // Whoever gives an address just now has given it when this is written, or finds that it may not.
        let _closed = self.giving.write().await;
        let moves = |one: &&Holding| {
            let of_table =
                matches!(&one.source, Source::Assigned { slice_pool: by } if by == slice_pool);
            of_table && one.slice.overlaps(slice)
        };
        // As its ledger has it: this process may not have been asked for that range yet.
        let held = self.holdings.load().await?.all;
        let mut given = Vec::new();
        for holding in held.iter().filter(moves) {
            if holding.is_active() {
                tracing::info!(slice = %holding.slice, range = %self.of().range, "a slice is of another range now");
                let moved = Holding {
                    state: State::Moved,
                    ..holding.clone()
                };
                self.set_held(self.holdings.put(&moved).await?);
            }
            // After that: another process of this node may have given from it to the last.
            let local = self.world.local.load(&self.of().key()).await?;
            given.extend(entries(&local.pool, slice));
        }
        Ok(given)
    }
}
