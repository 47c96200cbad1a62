//! Reservations of addresses that were given while the API server was away: noted in the node's ledger, made when it is back.

use std::sync::atomic::Ordering;
use std::time::Duration;

use berth_core::Record;
use berth_ledger::{ClaimKey, ClaimKind, LedgerError, Records};
use tokio::time::Instant;

use crate::world::{World, locked};

/// What the names of the notes begin with, among the claims of the node's ledger.
const NOTES: &str = "pending/";

/// Between tries of a reservation that another owner has.
const CONTESTED: Duration = Duration::from_secs(10);

impl World {
    pub async fn reserve_later(&self, name: &str, holder: &Record) -> Result<(), LedgerError> {
        let note = ClaimKey::new(ClaimKind::Slice, format!("{NOTES}{name}"));
        match self.local.create(&note, holder).await {
            // An older pod's: the address is this one's now.
            Err(LedgerError::Taken { .. }) => {
                if let Some(old) = self.local.get(&note).await? {
                    self.local.delete(&note, &old).await?;
                }
                self.local.create(&note, holder).await?;
            }
            made => made?,
        }
        self.pending.store(true, Ordering::Release);
        Ok(())
    }

    /// Makes what was noted. One that another owner has by now is reported: two pods may have one address, or an ADD that
    /// was refused has left it, and its DEL is still to come. So it is tried again after a while.
    pub async fn reserve_pending(&self) -> Result<(), LedgerError> {
        let now = Instant::now();
        let is_due = locked(&self.contested).is_none_or(|since| now - since >= CONTESTED);
        if !self.pending.load(Ordering::Acquire) || !is_due {
            return Ok(());
        }
        *locked(&self.contested) = None;
        for (note, holder) in self.local.list(ClaimKind::Slice).await? {
            let Some(name) = note.name.strip_prefix(NOTES) else {
                continue;
            };
            let key = ClaimKey::new(ClaimKind::Reservation, name);
            match self.make(&key, &holder).await {
                Ok(()) => {}
                Err(LedgerError::Taken { by, .. }) => {
                    tracing::error!(reservation = name, ours = %holder.owner, theirs = by, "an address that was given unchecked is another's; one of them has to go");
                    *locked(&self.contested) = Some(now);
                    continue;
                }
                Err(error) => return Err(error),
            }
            self.local.delete(&note, &holder).await?;
        }
        let contested = locked(&self.contested).is_some();
        self.pending.store(contested, Ordering::Release);
        Ok(())
    }

    /// Makes the reservation, or takes over the one that an older container of the same pod has.
    async fn make(&self, key: &ClaimKey, holder: &Record) -> Result<(), LedgerError> {
        match self.cluster.create(key, holder).await {
            Err(taken @ LedgerError::Taken { .. }) => match self.cluster.get(key).await? {
                Some(held) if held.owner == holder.owner => {
                    self.cluster.transfer(key, &held, holder).await
                }
                _ => Err(taken),
            },
            made => made,
        }
    }
}
