//! Slices that were lost: what pods hold of one stays until they go, and then nothing of it is left here. Until then it is
//! published like any other, and its name may be claimed again where nothing else is free.

use std::sync::Arc;

use berth_core::{Address, Pool, Prefix, Record};

use crate::adopt::{ORIGIN, PLAIN};
use crate::error::SliceError;
use crate::holdings::{Holding, State};
use crate::pool::SlicePool;
use crate::publish::SURRENDERED;
use crate::sliced::Sliced;

/// The addresses of a slice that pods have by this node's word.
pub(crate) fn used(pool: &Pool, slice: Prefix) -> impl Iterator<Item = Address> {
    let given = |record: &Record| {
        record.owner.subject != SURRENDERED && record.attribute(ORIGIN) != Some(PLAIN)
    };
    let records = pool.records();
    records
        .filter(move |(address, record)| slice.contains(*address) && given(record))
        .map(|(address, _)| address)
}

impl SlicePool {
    /// Forgets lost slices whose last pod is gone: a name that nobody has is claimed again as if it had never been held.
    pub async fn forget_lost(&self, of: &Arc<Sliced>) -> Result<(), SliceError> {
        if self.held().iter().all(Holding::is_active) {
            return Ok(());
        }
        // Whoever takes one on again has it when this looks, or finds nothing of it.
        let _gate = self.gate.lock().await;
        let local = self.world.local.load(&of.key()).await?;
        for holding in self.held().iter().filter(|one| !one.is_active()) {
            let slice = holding.slice;
            if used(&local.pool, slice).next().is_some() {
                continue;
            }
            {
                let _closed = self.giving.write().await;
                self.set_held(self.holdings.forget(holding).await?);
            }
            if self.held().iter().any(|one| one.slice == slice) {
                // Another process of this node has taken it on again.
                continue;
            }
            tracing::info!(%slice, node = %self.world.node, "a slice that is not given from any more has no pod, and is forgotten");
            // The pool of one that has moved is published still.
            if holding.state == State::Lost {
                self.let_go(of, slice).await?;
            }
        }
        Ok(())
    }
}
