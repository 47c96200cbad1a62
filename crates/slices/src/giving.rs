//! When a slice is given from, and when that ends.
//!
//! Promises (I8): an address is given only beside the holding that it is of. The commit that gives it passes only while all
//! holdings are as they were when it was looked at, so what is written about a slice ends giving in every process of the
//! node: an agent that begins or ends has `berth cni` beside it, over one file. Who ends to give from a slice only if nothing of it
//! is held writes that only while the pool is as it was looked at. In one process neither meets the other: the lock `giving`.

use berth_core::Change;
use berth_ledger::{Guard, LedgerError};

use crate::error::SliceError;
use crate::holdings::{Holding, State};
use crate::pool::SlicePool;

impl SlicePool {
    /// Stops giving from a slice: written first, told second (I8).
    pub async fn lose(&self, holding: &Holding, to: &str) -> Result<(), SliceError> {
        let lost = Holding {
            state: State::Lost,
            ..holding.clone()
        };
        {
            // Whoever gives an address just now has given it when this is written, or finds that it may not.
            let _closed = self.giving.write().await;
            self.set_held(self.holdings.put(&lost).await?);
        }
        self.world.metrics.lost.get_or_create(&self.label()).inc();
        tracing::error!(
            slice = %holding.slice, epoch = holding.epoch.0, node = %self.world.node,
            "this slice is {to} now; nothing is given from it, and what pods hold stays until they go"
        );
        let Holding { slice, epoch, .. } = holding;
        self.world.tell_of_loss(format!(
            "slice {slice} (epoch {}) of {} is {to} now: nothing is given from it, and what pods hold stays until they go",
            epoch.0,
            self.of().range
        ));
        Ok(())
    }

    /// Whether every address that is about to be given is of a slice that is given from, and what that rests on. The lock
    /// must be held.
    pub fn check_given(&self, changes: &[Change]) -> Result<Guard, LedgerError> {
        let (of, (held, guard)) = (self.of(), self.held_and_guard());
        let slices = held
            .iter()
            .filter(|one| one.is_active())
            .map(|one| one.slice);
        let mut claimed = changes.iter().filter_map(|change| match change {
            // What no network of the range gives by choice may be asked for by name, slice or not.
            Change::Claim { address, .. } if of.usable.contains(*address) => Some(*address),
            _ => None,
        });
        let stray = claimed.find(|address| !slices.clone().any(|slice| slice.contains(*address)));
        match stray {
            None => Ok(guard),
            // Not a conflict: planned again on the same slices, it would meet the same end.
            Some(_) => Err(LedgerError::Moved {
                pool: of.key().name,
            }),
        }
    }

    /// Takes in what another process of this node has changed. The lock must be held.
    pub async fn reread_held(&self) -> Result<(), LedgerError> {
        self.set_held(self.holdings.load().await?);
        Ok(())
    }

    /// Writes a slice that was granted: from now on it is given from.
    pub async fn hold(&self, holding: Holding) -> Result<(), SliceError> {
        tracing::info!(slice = %holding.slice, epoch = holding.epoch.0, node = %holding.node, "a slice is held");
        // One change at a time: what was read before a slice was passed on must not be known after it.
        let _closed = self.giving.write().await;
        self.set_held(self.holdings.put(&holding).await?);
        Ok(())
    }

    /// Writes what is new of a holding. A slice can be passed on at any time, also by whoever does not hold the gate: one
    /// that is not held any more stays so.
    pub async fn renew_holding(&self, holding: &Holding) -> Result<(), SliceError> {
        let _closed = self.giving.write().await;
        self.set_held(self.holdings.renew(holding).await?);
        Ok(())
    }
}
