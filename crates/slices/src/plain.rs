//! The plain pool beside slices that a controller assigns: closed before the first of them is given from, opened when
//! their tables are gone (I1). How the two keep out of each other's way: [`berth_core::slice::closed`].
//!
//! Only claims that no reservation guards are kept out: with overlap checks on, an address that a slice gave is met at its
//! reservation. Slices that whereabouts' own controller assigns close nothing: nobody would take their tables away.

use std::sync::Arc;

use berth_core::slice::closed::Closed;
use berth_ledger::kube::Connection;
use berth_ledger::kube::slicepools::SlicePools;
use berth_ledger::{KubeLedger, LedgerError};
use rand::RngExt;

use crate::error::SliceError;
use crate::sliced::Sliced;

/// Marks that somebody else wrote at the same time.
const TRIES: usize = 20;

/// The plain pools of a cluster, and the tables of assignments beside them.
#[derive(Clone, Debug)]
pub struct PlainPools {
    cluster: Arc<KubeLedger>,
    tables: SlicePools,
}

impl PlainPools {
    pub fn new(connection: &Connection) -> PlainPools {
        PlainPools {
            cluster: Arc::new(KubeLedger::new(connection.clone())),
            tables: SlicePools::new(connection),
        }
    }

    /// Closes the range's plain pool, after the table was read that a slice is taken on from, and before the pool's
    /// entries are.
    pub async fn close(&self, of: &Sliced) -> Result<(), SliceError> {
        let plain = of.plain();
        for _ in 0..TRIES {
            let now = match self.cluster.closed(&plain).await {
                // Whatever it says, it closes the pool.
                Err(error @ LedgerError::Unreadable { .. }) => {
                    tracing::warn!(range = %of.range, %error, "the plain pool stays closed");
                    return Ok(());
                }
                now => now?,
            };
            let Some(next) = Closed::by(now.as_ref(), &of.slice_pool) else {
                return Ok(());
            };
            let written = self.cluster.set_closed(&plain, now.as_ref(), Some(&next));
            if written.await? {
                tracing::info!(range = %of.range, table = of.slice_pool, "the plain pool is closed to claims without reservations");
                return Ok(());
            }
        }
        Err(SliceError::Store(LedgerError::Conflict {
            pool: plain.name,
            held: Vec::new(),
        }))
    }

    /// Opens the range's plain pool; refused while one of the tables is there that it was closed by.
    pub async fn open(&self, of: &Sliced) -> Result<(), SliceError> {
        let plain = of.plain();
        let Some(closed) = self.cluster.closed(&plain).await? else {
            return Ok(());
        };
        // Spares the write where it would be in vain.
        self.see_no_table(of, &closed).await?;
        let opening = closed.opening(format!("{:016x}", rand::rng().random::<u64>()));
        let told = self
            .cluster
            .set_closed(&plain, Some(&closed), Some(&opening));
        if !told.await? {
            // Somebody else opens it, or closes it anew: the claim that is repeated finds out which.
            return Ok(());
        }
        self.see_no_table(of, &closed).await?;
        let opened = self.cluster.set_closed(&plain, Some(&opening), None);
        if opened.await? {
            tracing::info!(range = %of.range, "the plain pool is open: slices of it are not assigned any more");
        }
        Ok(())
    }

    async fn see_no_table(&self, of: &Sliced, closed: &Closed) -> Result<(), SliceError> {
        for name in &closed.by {
            let found = self.tables.range(name).await?;
            if found.is_some_and(|range| range.overlaps(of.range)) {
                return Err(SliceError::StillAssigned {
                    range: of.range,
                    slice_pool: name.clone(),
                });
            }
        }
        Ok(())
    }
}
