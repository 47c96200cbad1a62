//! Recovery, after a restart or on request: repairs the state, and deallocates what this node's former process left
//! behind.
//!
//! Guarantees: a state is repaired only if it could be read; one that can't be read is set aside and never destroyed
//! (I5); an API server that does not answer is an error and changes nothing. Another node's VMs are not touched (I6).

use std::collections::BTreeSet;

use berth_core::{Address, Handle, Pool, Record};
use berth_ledger::LedgerError;
use berth_ledger::configmap::attribute::NODE;
use berth_ledger::configmap::{Repairs, Salvage};
use futures::future::join_all;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::stage::Stage;
use super::{PoolError, Store, VmPool};
use crate::audit::{Act, Audit};

/// What a recovery did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Recovered {
    pub pool: String,
    /// This node's VMs that went into cleaning, or were freed where VMs are not cleaned.
    pub taken_back: usize,
    /// Cleanups that a former process started, and that continue.
    pub resumed: usize,
    /// Readiness checks that were cut off, whose VMs are free again.
    #[serde(default)]
    pub undone: usize,
    /// Free entries that do not belong to the pool.
    pub dropped: Vec<String>,
    /// VMs that the settings list and the state did not.
    pub added: usize,
    /// Whether the state could not be read and was set aside under another key.
    pub set_aside: bool,
    /// VMs that are held because the old state does not show whether they are free.
    pub unknown: usize,
}

/// What a recovery does beyond repairing the state and resuming cleanups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Recovery {
    /// No more than that.
    #[default]
    Resume,
    /// Deallocates every VM of this node, which is right only if the node's pods are gone.
    TakeBack,
    /// The process has just started, in the same boot as before: no check of this node is under way.
    AtStart,
    /// The same after a reboot of the node, which its pods did not survive.
    AfterReboot,
    /// The same where it is unknown whether the node was rebooted.
    UnknownBoot,
}

impl Recovery {
    const fn takes_back(self) -> bool {
        matches!(self, Self::TakeBack | Self::AfterReboot)
    }

    const fn at_start(self) -> bool {
        matches!(self, Self::AtStart | Self::AfterReboot | Self::UnknownBoot)
    }
}

/// What recovery does with an entry.
enum Verdict {
    /// Continue its cleanup on this node.
    Resume,
    /// Undo its check, which was cut off.
    Undo,
    TakeBack,
    /// It is unknown whether its pod lives.
    Unknown,
    Leave,
}

impl VmPool {
    pub async fn recover(&self, recovery: Recovery) -> Result<Recovered, PoolError> {
        let audit = Audit::begin(Act::Recover, self.name(), &self.inner.rules.node);
        let outcome = self.recover_state(recovery).await;
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

    async fn recover_state(&self, recovery: Recovery) -> Result<Recovered, PoolError> {
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
        for (address, record) in pool.duplicate_holders() {
            tracing::error!(pool = self.name(), %address, second = %record.handle,
                "two allocations have one VM; it is free when both are deallocated");
        }
        let mut mine = Vec::new();
        let mut unknown = BTreeSet::new();
        let addresses: Vec<Address> = pool.records().map(|(address, _)| address).collect();
        for address in addresses {
            let mut left = pool.holders(address).count();
            for record in pool.holders(address) {
                match self.verdict(record, recovery) {
                    Verdict::Resume => {
                        self.clean(address);
                        recovered.resumed += 1;
                    }
                    Verdict::Undo => {
                        recovered.undone += usize::from(self.undo_check(address, record).await?);
                    }
                    Verdict::TakeBack => {
                        // Of several holders only the last one's return is followed by a reboot.
                        mine.push((address, record.clone(), left == 1));
                        left -= 1;
                    }
                    Verdict::Unknown => {
                        unknown.insert(record.handle.to_string());
                    }
                    Verdict::Leave => {}
                }
            }
        }
        if !unknown.is_empty() {
            tracing::warn!(
                pool = self.name(),
                vms = unknown.len(),
                "the boot in which this node's VMs were allocated is unknown; if their pods are gone: berth vm recover --take-back"
            );
            *self.inner.unknown_boot() = unknown;
        }
        // Submitted together, so that the desk writes them in one commit.
        let done = join_all(
            mine.iter()
                .map(|(address, record, last)| self.take(*address, record, *last)),
        )
        .await;
        for taken in done {
            recovered.taken_back += usize::from(taken?);
        }
        if recovery.takes_back() {
            self.inner.unknown_boot().clear();
        }
        Ok(recovered)
    }

    fn verdict(&self, record: &Record, recovery: Recovery) -> Verdict {
        let node = self.inner.rules.node.as_str();
        let is_mine = record.attribute(NODE) == Some(node);
        match Stage::read(record) {
            Stage::Quarantined(quarantine) if quarantine.by == node => Verdict::Resume,
            Stage::Checking(check) if check.by == node && recovery.at_start() => Verdict::Undo,
            Stage::Checking(check) if check.is_over(Timestamp::now()) => Verdict::Undo,
            Stage::InUse if is_mine && recovery.takes_back() => Verdict::TakeBack,
            Stage::InUse if is_mine && recovery == Recovery::UnknownBoot => Verdict::Unknown,
            _ => Verdict::Leave,
        }
    }

    async fn take(&self, address: Address, record: &Record, last: bool) -> Result<bool, PoolError> {
        if self.inner.rules.cleanup.is_none() || !last {
            return self.release(address, record).await;
        }
        self.quarantine(address, record).await
    }

    /// Whether VMs of an unknown boot are still in use.
    pub(crate) fn has_unknown_boot(&self) -> bool {
        !self.inner.unknown_boot().is_empty()
    }

    /// Drops VMs of an unknown boot that were deallocated.
    pub(super) fn forget_taken_back(&self, pool: &Pool) {
        let in_use = |id: &String| {
            let held = pool.held_under(&Handle::new(id)).next();
            held.is_some_and(|(_, record)| Stage::read(record) == Stage::InUse)
        };
        self.inner.unknown_boot().retain(in_use);
    }

    /// Repairs the ConfigMap's free list. Other stores derive theirs from the settings and from what is in use.
    pub(super) async fn repair(&self) -> Result<Repairs, PoolError> {
        match &self.inner.store {
            Store::ConfigMap(ledger) => Ok(ledger.repair(&self.inner.key).await?),
            Store::Local(_) => Ok(Repairs::default()),
        }
    }

    /// `None` if there is nothing unreadable to set aside.
    pub(crate) async fn set_aside(&self) -> Result<Option<Salvage>, PoolError> {
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
                "the state could not be read; it was set aside and rebuilt from what could be parsed"
            );
        }
        Ok(salvage)
    }
}
