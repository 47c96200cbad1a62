//! Cleaning VMs in the background, one task per VM.
//!
//! ```text
//!   asked to reboot ─► rebooted ─► ready ─► released
//!          └── failed: written into the record, wait, again ──┘
//! ```
//!
//! Guarantees: a VM is cleaned by one task at a time; a failure is shown in the state and tried again until it
//! succeeds or another node or an operator frees the VM; a VM whose cleanup failed is never released (I4).

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use berth_core::{Address, Record, STAGE};
use berth_ledger::{LedgerError, chain};
use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::stage::{Quarantine, Stage};
use super::{Allocation, PoolError, VmPool};
use crate::audit::{Act, Audit};
use crate::settings::Cleanup;
use crate::vm::{Proof, VmError, wait_for_reboot};

/// Cleanups under way at once: a node that starts with a hundred VMs to clean must not open a hundred SSH sessions in
/// the same second.
const AT_ONCE: usize = 32;

#[derive(Debug)]
pub(super) struct Cleaner {
    under_way: Mutex<BTreeSet<Address>>,
    permits: Arc<Semaphore>,
    end: CancellationToken,
}

impl Default for Cleaner {
    fn default() -> Self {
        Self {
            under_way: Mutex::default(),
            permits: Arc::new(Semaphore::new(AT_ONCE)),
            end: CancellationToken::new(),
        }
    }
}

impl VmPool {
    /// Starts to clean a VM whose record is quarantined, unless that is under way.
    pub(super) fn clean(&self, address: Address) {
        let Some(cleanup) = self.inner.rules.cleanup.clone() else {
            return;
        };
        let cleaner = &self.inner.cleaner;
        let fresh = cleaner.under_way.lock().insert(address);
        if !fresh || cleaner.end.is_cancelled() {
            return;
        }
        let pool = self.clone();
        tokio::spawn(async move {
            let end = pool.inner.cleaner.end.clone();
            // A cleanup that is cut off here is recorded, and resumed at the next start (I9).
            let _ = end
                .run_until_cancelled(pool.clean_while_needed(address, &cleanup))
                .await;
        });
    }

    /// Between the release and the end of this task the VM may have been allocated and deallocated again while it
    /// still counted as under way: so the record is read once more at the end.
    async fn clean_while_needed(&self, address: Address, cleanup: &Cleanup) {
        loop {
            self.clean_until_done(address, cleanup).await;
            let under_way = &self.inner.cleaner.under_way;
            under_way.lock().remove(&address);
            let again = matches!(self.to_be_cleaned(address).await, Ok(Some(_)));
            if !again || !under_way.lock().insert(address) {
                return;
            }
        }
    }

    /// Ends the background work; the record shows what is left to do.
    pub(crate) fn stop_cleaning(&self) {
        self.inner.cleaner.end.cancel();
    }

    async fn clean_until_done(&self, address: Address, cleanup: &Cleanup) {
        loop {
            match self.clean_once(address, cleanup).await {
                Ok(()) => return,
                Err(error) => {
                    // Operators search for this text: it is in the pool's design document.
                    tracing::warn!(pool = self.name(), ip = %address, error = chain(&error),
                        again_in = ?cleanup.retry, "NOT releasing IP due to failed cleanup");
                }
            }
            tokio::time::sleep(cleanup.retry).await;
        }
    }

    /// `Ok` when the VM is free, or this node no longer has to clean it.
    async fn clean_once(&self, address: Address, cleanup: &Cleanup) -> Result<(), PoolError> {
        // Acquired first, so that the record is read immediately before the reboot. The semaphore is closed only with
        // the process.
        let _permit = self.inner.cleaner.permits.acquire().await;
        let Some((record, alone)) = self.to_be_cleaned(address).await? else {
            return Ok(());
        };
        if !alone {
            // Another allocation has the same VM: a reboot would interrupt it.
            self.release(address, &record).await?;
            return Ok(());
        }
        let ip = IpAddr::from(address);
        let audit = Audit::begin(Act::Clean, self.name(), &self.inner.rules.node)
            .of(&Allocation::read(self.name(), address, &record));
        let rebooted = self.reboot(ip, &marker(&record), cleanup).await;
        self.inner.meters.cleaned(rebooted.is_ok());
        match rebooted {
            Ok(()) => {
                self.inner.health.answered(ip);
                self.release(address, &record).await?;
                audit.done("cleaned");
                Ok(())
            }
            Err(error) => {
                let shown = self.show_failure(address, &record, &chain(&error)).await;
                audit.failed(&error);
                shown?;
                Err(error.into())
            }
        }
    }

    async fn reboot(&self, ip: IpAddr, marker: &str, cleanup: &Cleanup) -> Result<(), VmError> {
        let vms = self.inner.vms.as_ref();
        vms.request_reboot(ip, marker).await?;
        match wait_for_reboot(vms, ip, marker, &cleanup.timing).await? {
            Proof::MarkerGone => Ok(()),
            // What survived the reboot would count as another pod's user data.
            Proof::DownForLong | Proof::None => vms.wipe(ip, marker).await,
        }
    }

    /// Writes the failure into the record; in a state without room for the text, only that it failed.
    async fn show_failure(
        &self,
        address: Address,
        record: &Record,
        error: &str,
    ) -> Result<(), PoolError> {
        for error in [error, ""] {
            let failed = Quarantine::failed(record, error, Timestamp::now());
            match self.rewrite(address, record, failed).await {
                Err(full) if matches!(full.ledger(), Some(LedgerError::Full { .. })) => {}
                shown => return shown.map(drop),
            }
        }
        Ok(())
    }

    /// The record, if this node still has to clean the VM, and whether it is the only one: an operator may have freed
    /// the VM since, or another node may have taken the cleanup over.
    async fn to_be_cleaned(&self, address: Address) -> Result<Option<(Record, bool)>, PoolError> {
        let pool = self.load().await?;
        let alone = pool.holders(address).count() == 1;
        let node = self.inner.rules.node.as_str();
        let quarantined = |record: &&Record| {
            let quarantine = Stage::read(record).quarantine();
            quarantine.is_some_and(|quarantine| quarantine.by == node)
        };
        let record = pool.holders(address).find(quarantined);
        Ok(record.map(|record| (record.clone(), alone)))
    }
}

/// The same for every attempt of one quarantine, so that a VM that keeps its files has only one marker.
fn marker(record: &Record) -> String {
    let stage = record.attribute(STAGE).unwrap_or("quarantined");
    let safe = |c: &char| c.is_ascii_alphanumeric() || *c == '-';
    stage.chars().filter(safe).collect()
}
