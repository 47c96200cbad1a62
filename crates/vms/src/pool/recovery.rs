//! After a restart, and when asked: make the state sound, and take back what this node's former
//! life left behind.
//!
//! Promises: only a state that was read is repaired; one that can't be read is set aside and never
//! destroyed (I5); an API server that does not answer is an error and changes nothing. Another
//! node's VMs are not touched (I6).

use berth_core::{Address, Record};
use berth_ledger::LedgerError;
use berth_ledger::configmap::attribute::NODE;
use berth_ledger::configmap::{Repairs, Salvage};
use futures::future::join_all;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{PoolError, Quarantine, Store, VmPool};
use crate::audit::{Act, Audit};

/// What a recovery did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Recovered {
    pub pool: String,
    /// This node's VMs that went into cleaning, or were freed where VMs are not cleaned.
    pub taken_back: usize,
    /// Cleanups that a former life began, and that go on.
    pub resumed: usize,
    /// Free entries that did not belong there.
    pub dropped: Vec<String>,
    /// VMs that the settings list and the state did not.
    pub added: usize,
    /// Whether the state could not be read and was set aside under another key.
    pub set_aside: bool,
    /// VMs that are held because the old state does not say whether they are free.
    pub unknown: usize,
}

impl VmPool {
    /// Repairs the state and resumes cleanups; with `take_back` also takes back every VM that this
    /// node has, which is right when the node's pods are gone: after a restart.
    pub async fn recover(&self, take_back: bool) -> Result<Recovered, PoolError> {
        let audit = Audit::begin(Act::Recover, self.name(), &self.inner.rules.node);
        let outcome = self.recover_state(take_back).await;
        match &outcome {
            Ok(recovered) => audit.done(&format!(
                "{} taken back, {} resumed, {} dropped, {} added",
                recovered.taken_back,
                recovered.resumed,
                recovered.dropped.len(),
                recovered.added
            )),
            Err(error) => audit.failed(error),
        }
        outcome
    }

    async fn recover_state(&self, take_back: bool) -> Result<Recovered, PoolError> {
        let mut recovered = Recovered {
            pool: self.name().into(),
            ..Recovered::default()
        };
        match self.repair().await {
            Err(error) if matches!(error.ledger(), Some(LedgerError::Unreadable { .. })) => {
                let salvage = self.set_aside().await?.ok_or(error)?;
                recovered.set_aside = true;
                recovered.unknown = salvage.unknown.len();
            }
            repairs => {
                let repairs = repairs?;
                recovered.dropped = repairs.dropped;
                recovered.added = repairs.added.len();
            }
        }
        let pool = self.load().await?;
        for (address, record) in pool.rivals() {
            tracing::error!(pool = self.name(), %address, second = %record.handle,
                "two allocations have one VM; it is free when both gave it back");
        }
        let node = self.inner.rules.node.as_str();
        let mut mine = Vec::new();
        let addresses: Vec<Address> = pool.records().map(|(address, _)| address).collect();
        for address in addresses {
            let is_mine = |record: &&Record| record.attribute(NODE) == Some(node);
            let mut left = pool.holders(address).count();
            for record in pool.holders(address) {
                match Quarantine::read(record) {
                    Some(quarantine) if quarantine.by == node => {
                        self.clean(address);
                        recovered.resumed += 1;
                    }
                    None if take_back && is_mine(&record) => {
                        // Of several holders only the last one's return is followed by a reboot.
                        mine.push((address, record.clone(), left == 1));
                        left -= 1;
                    }
                    _ => {}
                }
            }
        }
        // Put together, so that the desk writes them in one commit.
        let done = join_all(
            mine.iter()
                .map(|(address, record, last)| self.take(*address, record, *last)),
        )
        .await;
        for taken in done {
            recovered.taken_back += usize::from(taken?);
        }
        Ok(recovered)
    }

    async fn take(&self, address: Address, record: &Record, last: bool) -> Result<bool, PoolError> {
        if self.inner.rules.cleanup.is_none() || !last {
            return self.release(address, record).await;
        }
        let held = Quarantine::begin(record, &self.inner.rules.node, Timestamp::now());
        let taken = self.rewrite(address, record, held).await?;
        if taken {
            self.clean(address);
        }
        Ok(taken)
    }

    /// Puts the ConfigMap's free list right. Other stores derive theirs from the settings and from
    /// what is in use.
    pub(super) async fn repair(&self) -> Result<Repairs, PoolError> {
        match &self.inner.store {
            Store::ConfigMap(ledger) => Ok(ledger.repair(&self.inner.key).await?),
            Store::Local(_) => Ok(Repairs::default()),
        }
    }

    /// `None` if there is nothing unreadable to set aside.
    pub(super) async fn set_aside(&self) -> Result<Option<Salvage>, PoolError> {
        let Store::ConfigMap(ledger) = &self.inner.store else {
            return Ok(None);
        };
        let salvage = ledger.set_aside(&self.inner.key).await?;
        if let Some(salvage) = &salvage {
            let (allocations, unknown) = (salvage.allocations, salvage.unknown.len());
            tracing::error!(
                pool = self.name(),
                allocations,
                unknown,
                "the state could not be read; it was set aside and rebuilt from what could be made out"
            );
        }
        Ok(salvage)
    }
}
