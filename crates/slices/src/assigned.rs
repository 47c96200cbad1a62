//! Slices that a controller has assigned: ours, or whereabouts' own.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use berth_core::Prefix;
use berth_core::slice::Epoch;
use tokio::time::{Instant, sleep};

use crate::error::SliceError;
use crate::holdings::{Holding, State};
use crate::pool::{Active, SlicePool};
use crate::sliced::Sliced;

/// Between two looks for an assignment that is about to come.
const PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_millis(800);

impl SlicePool {
    /// Takes on what is assigned, loses what is not any more. The gate must be held.
    pub async fn compare_assigned(&self, of: &Arc<Sliced>) -> Result<(), SliceError> {
        let assigned = self.world.assigned.load(&of.slice_pool).await?;
        let found = assigned.as_ref().map(|one| one.pool.table.cut().range());
        if let Some(found) = found.filter(|found| *found != of.range) {
            return Err(SliceError::OtherRange {
                slice_pool: of.slice_pool.clone(),
                found,
                range: of.range,
            });
        }
        self.set_disjoint(assigned.as_ref().is_some_and(|one| one.pool.marks.disjoint));
        let lines = assigned.iter().flat_map(|one| one.pool.table.holdings());
        let holders: BTreeMap<Prefix, (String, Epoch)> = lines
            .map(|line| (line.slice, (line.node.to_string(), line.epoch)))
            .collect();
        let me = self.world.node.as_str();
        for holding in self.held().iter().filter(|holding| holding.is_active()) {
            match holders.get(&holding.slice) {
                Some((node, epoch)) if node == me && *epoch == holding.epoch => {}
                Some((node, _)) if node == me => self.lose(holding, "ours anew").await?,
                Some((node, _)) => self.lose(holding, &format!("{node}'s")).await?,
                None => self.lose(holding, "nobody's").await?,
            }
        }
        for (slice, (node, epoch)) in holders {
            if node != me {
                continue;
            }
            let held = self.held();
            let known = held
                .iter()
                .find(|holding| holding.slice == slice && holding.is_active());
            let same = |known: &Holding| {
                known.boot == self.world.boot && known.disjoint == self.is_disjoint()
            };
            if known.is_some_and(same) {
                continue;
            }
            if known.is_none() {
                self.adopt(of, slice).await?;
            }
            self.hold(Holding {
                slice,
                epoch,
                node: self.world.node.clone(),
                node_uid: String::new(),
                boot: self.world.boot.clone(),
                state: State::Active,
                disjoint: self.is_disjoint(),
            })
            .await?;
        }
        Ok(())
    }

    /// Waits a while for a slice beyond `had`; says whether one came.
    pub async fn await_assigned(
        &self,
        of: &Arc<Sliced>,
        had: &Active,
        limit: Duration,
    ) -> Result<bool, SliceError> {
        let end = Instant::now() + limit;
        let mut pause = PAUSE;
        loop {
            {
                let _gate = self.gate.lock().await;
                self.compare_assigned(of).await?;
            }
            if self.active() != *had && !self.active().slices.is_empty() {
                return Ok(true);
            }
            if Instant::now() >= end {
                return Ok(false);
            }
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}
