//! Slices that are given from without reservations: the range says so first, where other ways to give look (I1,
//! [`berth_core::slice::range_mode`]).
//!
//! A holding remembers that it was said, so neither an ADD nor a restarted agent has to ask the API server again. One that
//! was taken on while overlap checks were on is told of when a network without them gives from it for the first time.

use std::sync::Arc;

use berth_core::slice::elastic::MarkState;

use crate::error::SliceError;
use crate::holdings::Holding;
use crate::pool::SlicePool;
use crate::sliced::{Mode, Sliced};

impl SlicePool {
    /// Whether the network gives without reservations from what is known to be given from with them.
    pub fn is_untold(&self, of: &Sliced) -> bool {
        let held = self.held();
        let mut active = held.iter().filter(|one| one.is_active());
        !of.checked && active.any(|one| !one.unreserved)
    }

    /// Returns when the range says what this network does.
    pub async fn tell_unreserved(&self, of: &Arc<Sliced>) -> Result<(), SliceError> {
        if !self.is_untold(of) {
            return Ok(());
        }
        let _gate = self.gate.lock().await;
        if !self.is_untold(of) {
            return Ok(());
        }
        match of.mode {
            Mode::Assigned => self.compare_assigned(of).await,
            Mode::Elastic { .. } => self.tell_claims(of).await,
        }
    }

    /// The same of slices that nodes claim. The gate must be held.
    async fn tell_claims(&self, of: &Arc<Sliced>) -> Result<(), SliceError> {
        self.mark(of).await?;
        // After the mark: whoever assigns slices closes the pool before it looks for that.
        let now = self.world.cluster.marks(&of.plain()).await?;
        let mut mark = now.sliced.filter(|mark| mark.unreserved);
        mark = mark.filter(|mark| mark.state == MarkState::Sliced && !now.bars(of.checked));
        self.set_mark(mark);
        if mark.is_none() {
            self.world.plain.open(of).await?;
            return Err(SliceError::Leaving { range: of.range });
        }
        for holding in self.held().iter().filter(|one| one.is_active()) {
            let told = Holding {
                unreserved: true,
                ..holding.clone()
            };
            self.renew_holding(&told).await?;
        }
        Ok(())
    }
}
