//! Reservations of addresses that were given while the API server was away: noted in the node's ledger, made when it is back.

use std::sync::atomic::Ordering;

use berth_core::Record;
use berth_ledger::{ClaimKey, ClaimKind, Ledger, LedgerError};

use crate::pool::World;

/// What the names of the notes begin with, among the claims of the node's ledger.
const NOTES: &str = "pending/";

impl World {
    pub async fn reserve_later(&self, name: &str, holder: &Record) -> Result<(), LedgerError> {
        let note = ClaimKey::new(ClaimKind::Slice, format!("{NOTES}{name}"));
        match self.local.create(&note, holder).await {
            // An older pod's: the address is this one's now.
            Err(LedgerError::Taken { .. }) => {
                if let Some(old) = self.local.claim(&note).await? {
                    self.local.remove(&note, &old).await?;
                }
                self.local.create(&note, holder).await?;
            }
            made => made?,
        }
        self.pending.store(true, Ordering::Release);
        Ok(())
    }

    /// Makes what was noted. One that another owner has by now is reported: two pods may have one address.
    pub async fn reserve_pending(&self) -> Result<(), LedgerError> {
        if !self.pending.load(Ordering::Acquire) {
            return Ok(());
        }
        for (note, holder) in self.local.claims(ClaimKind::Slice).await? {
            let Some(name) = note.name.strip_prefix(NOTES) else {
                continue;
            };
            let key = ClaimKey::new(ClaimKind::Reservation, name);
            match self.cluster.create(&key, &holder).await {
                Ok(()) => {}
                Err(LedgerError::Taken { by, .. }) => {
                    tracing::error!(reservation = name, ours = %holder.owner, theirs = by, "an address that was given unchecked is another's; one of them has to go");
                }
                Err(error) => return Err(error),
            }
            self.local.remove(&note, &holder).await?;
        }
        self.pending.store(false, Ordering::Release);
        Ok(())
    }
}
