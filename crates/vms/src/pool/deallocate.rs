//! Deallocation: the VM is quarantined until it was cleaned.
//!
//! Guarantees: every action is recorded before it starts (I9); a record is changed only from the stage that was read.

use std::time::Duration;

use berth_core::plan::Selector;
use berth_core::{Address, Answer, Handle, Record, Release, Request};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::allocation::shown;
use super::stage::{Quarantine, Stage};
use super::{Allocation, PoolError, VmPool};

/// A cleanup counts as abandoned after this many times the interval in which its node would have written progress.
const ABANDONED_AFTER: u32 = 3;

/// How a deallocation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Returned {
    /// The ID had nothing: a repeat, or another pool's.
    Nothing,
    /// The VM is free.
    Released,
    /// The VM is being cleaned and free after that.
    Quarantined,
}

/// How it ended, and what was deallocated.
pub(crate) type Taken = (Returned, Option<Allocation>);

impl VmPool {
    /// Waits until no request of this process for the ID can change the pool any more.
    pub(crate) async fn settle(&self, id: &str) -> Result<(), PoolError> {
        self.inner.desk.find(&Handle::new(id)).await?;
        Ok(())
    }

    /// Deallocates a VM; no allocation of the ID is under way here. It is free after it was cleaned; `force` frees it
    /// as it is.
    pub(crate) async fn deallocate(&self, id: &str, force: bool) -> Result<Taken, PoolError> {
        if self.inner.rules.cleanup.is_none() || force {
            return self.free(id).await;
        }
        let handle = Handle::new(id);
        loop {
            let pool = self.load().await?;
            let Some((address, record)) = pool.held_under(&handle).next() else {
                return Ok((Returned::Nothing, None));
            };
            let was = Some(Allocation::read(self.name(), address, record));
            if let Stage::Quarantined(quarantine) = Stage::read(record) {
                let taken_over = !self.is_abandoned(&quarantine)
                    || pool.holders(address).count() > 1
                    || self.take_over(address, record, &quarantine).await?;
                if taken_over {
                    return Ok((Returned::Quarantined, was));
                }
                continue;
            }
            if pool.holders(address).count() > 1 {
                // Another allocation has the same VM: a reboot would interrupt it.
                tracing::warn!(pool = self.name(), %address, id = shown(id), "one of a VM's two owners deallocates it: it is not rebooted");
                if self.release(address, record).await? {
                    return Ok((Returned::Released, was));
                }
            } else if self.quarantine(address, record).await? {
                return Ok((Returned::Quarantined, was));
            }
            // The record changed since it was read: a check ended, or another deallocation came first.
        }
    }

    /// Whether another node has abandoned the cleanup. A node that works on it, or can't reach the VM, records each
    /// attempt: within the limit of a reboot and the pause between two attempts.
    fn is_abandoned(&self, quarantine: &Quarantine) -> bool {
        let rules = &self.inner.rules;
        let Some(cleanup) = rules
            .cleanup
            .as_ref()
            .filter(|_| quarantine.by != rules.node)
        else {
            return false;
        };
        let after = (cleanup.timing.limit + cleanup.retry) * ABANDONED_AFTER;
        quarantine.is_abandoned(after, Timestamp::now())
    }

    /// Takes over another node's cleanup. False if that node has written something meanwhile.
    async fn take_over(
        &self,
        address: Address,
        record: &Record,
        quarantine: &Quarantine,
    ) -> Result<bool, PoolError> {
        let started = self.quarantine(address, record).await?;
        if started {
            let (since, by) = (&quarantine.since, &quarantine.by);
            tracing::warn!(pool = self.name(), %address, since, by,
                "a cleanup that its node abandoned is taken over");
        }
        Ok(started)
    }

    /// Starts the cleanup of a VM whose record is `record`. False if that has changed.
    pub(super) async fn quarantine(
        &self,
        address: Address,
        record: &Record,
    ) -> Result<bool, PoolError> {
        let held = Quarantine::begin(record, &self.inner.rules.node, Timestamp::now());
        // Recorded before it starts (I9): after a crash it is resumed at the next start.
        let started = self.rewrite(address, record, held).await?;
        if started {
            self.clean(address);
        }
        Ok(started)
    }

    async fn free(&self, id: &str) -> Result<Taken, PoolError> {
        let selector = Selector::Handle {
            handle: Handle::new(id),
            part: None,
        };
        let cooldown = Duration::ZERO;
        let release = Request::Release(Release { selector, cooldown });
        let Answer::Released(freed) = self.inner.desk.submit(release).await? else {
            return Ok((Returned::Nothing, None));
        };
        Ok(match freed.first() {
            Some((address, record)) => {
                let was = Allocation::read(self.name(), *address, record);
                (Returned::Released, Some(was))
            }
            None => (Returned::Nothing, None),
        })
    }
}
