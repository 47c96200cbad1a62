//! The plain pool beside slices that a controller assigns: closed before the first of them is given from, opened when
//! their tables are gone (I1). How the two keep out of each other's way: [`berth_core::slice::range_mode`].
//!
//! Where all have overlap checks on, an address that a slice gave is met at its reservation, and only claims without one are
//! kept out; where slices give without, all claims are ([`berth_core::slice::range_mode`]). Slices that whereabouts' own
//! controller assigns close nothing, until Berth's tends their tables: nobody would take these away.

use std::sync::Arc;

use berth_core::slice::range_mode::{Closed, Exclusion};
use berth_kube::Connection;
use berth_ledger::LedgerError;
use berth_whereabouts::KubeLedger;
use berth_whereabouts::slicepools::SlicePools;
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
        PlainPools::of(Arc::new(KubeLedger::new(connection.clone())), connection)
    }

    /// Through that ledger: what it knows of the pools' objects is known here.
    pub fn of(cluster: Arc<KubeLedger>, connection: &Connection) -> PlainPools {
        PlainPools {
            cluster,
            tables: SlicePools::new(connection),
        }
    }

    /// Closes the range's plain pool, after the table was read that a slice is taken on from, and before the pool's
    /// entries are.
    pub async fn close(&self, of: &Sliced) -> Result<(), SliceError> {
        for bar in Exclusion::closed_by(of.checked) {
            self.close_to(of, *bar).await?;
        }
        Ok(())
    }

    async fn close_to(&self, of: &Sliced, bar: Exclusion) -> Result<(), SliceError> {
        let plain = of.plain();
        for _ in 0..TRIES {
            let now = match self.cluster.closed(&plain, bar).await {
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
            let written = self
                .cluster
                .set_closed(&plain, bar, now.as_ref(), Some(&next));
            if written.await? {
                let to = match bar {
                    Exclusion::Assigned => "claims without reservations",
                    Exclusion::Unreserved => "all claims: slices give without reservations",
                };
                tracing::info!(range = %of.range, table = of.slice_pool, "the plain pool is closed to {to}");
                return Ok(());
            }
        }
        Err(SliceError::Store(LedgerError::Conflict {
            pool: plain.name,
            held: Vec::new(),
        }))
    }

    /// Opens the range's plain pool to that network; refused while one of the tables is there that it was closed by.
    pub async fn open(&self, of: &Sliced) -> Result<(), SliceError> {
        for bar in Exclusion::before(of.checked) {
            self.open_from(of, *bar).await?;
        }
        Ok(())
    }

    async fn open_from(&self, of: &Sliced, bar: Exclusion) -> Result<(), SliceError> {
        let plain = of.plain();
        let Some(closed) = self.cluster.closed(&plain, bar).await? else {
            return Ok(());
        };
        // Spares the write where it would be in vain.
        self.see_no_table(of, &closed).await?;
        let opening = closed.opening(format!("{:016x}", rand::rng().random::<u64>()));
        let told = self
            .cluster
            .set_closed(&plain, bar, Some(&closed), Some(&opening));
        if !told.await? {
            // Somebody else opens it, or closes it anew: the claim that is repeated finds out which.
            return Ok(());
        }
        self.see_no_table(of, &closed).await?;
        let opened = self.cluster.set_closed(&plain, bar, Some(&opening), None);
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
