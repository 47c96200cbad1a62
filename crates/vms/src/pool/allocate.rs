//! Allocates a VM: chosen, recorded as being checked, checked, and only then answered.
//!
//! ```text
//!  allocate: record "checking" ──► verify: ready? ──► record "in use" ──► answer
//!     ▲                                │ not ready
//!     └── exchange it for another ◄────┘
//! ```
//! Guarantees: the same ID gets the same VM (I3), also while this process or another one checks it; the answer is the
//! record after the check (I2); an ID that was deallocated meanwhile gets no answer and no VM; an answer comes within
//! the limit. A process that dies during a check leaves a record of it, which is undone at its next start or when the
//! check has expired (I9).

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use berth_attachment::search::{Driver, Held, Search};
use berth_core::{Address, AddressRequest, Allocate, Answer, Handle, Record, Refusal, Request};
use berth_desk::DeskError;
use berth_ledger::{LedgerError, Rejection};
use jiff::Timestamp;
use tokio::time::{Instant, timeout_at};

use super::health::{Fault, Faults};
use super::stage::{Checking, Stage, same_check};
use super::{Allocation, Applicant, Deadline, PoolError, VmPool};
use crate::settings::Readiness;
use crate::vm::VmError;

/// Between two reads of a record that another process checks.
const POLL: Duration = Duration::from_millis(100);
const LONGEST_POLL: Duration = Duration::from_secs(1);

/// One request; drives the search for a VM that is ready.
struct Attempt<'a> {
    pool: &'a VmPool,
    applicant: &'a Applicant,
    /// The record until the VM was found ready.
    record: Record,
    deadline: Instant,
    faults: Faults,
    /// The state could not be read and was set aside.
    repaired: bool,
}

impl VmPool {
    /// Allocates a VM that is ready to the applicant, whose names were already validated. The same ID gets the same
    /// VM.
    pub(crate) async fn allocate(
        &self,
        applicant: &Applicant,
        deadline: Deadline,
    ) -> Result<Allocation, PoolError> {
        let mut attempt = self.attempt(applicant, deadline.at);
        // Faults of VMs are no mere hints: a VM that is not ready is not allocated, even if it is the last one.
        let mut search = Search::new(BTreeSet::new(), usize::MAX);
        let error = match timeout_at(deadline.at, attempt.serve(&mut search)).await {
            Ok(Ok(allocation)) => return Ok(allocation),
            Ok(Err(error)) => error,
            Err(_) => deadline.missed(attempt.faults.clone()),
        };
        // The VMs that an exhausted pool rejected are already released.
        if !matches!(error, PoolError::Exhausted { .. }) {
            self.release_later(search.left(), &attempt.record);
        }
        // The desk has as much time as the request has left, and may be the first to notice that it has expired.
        let is_over = matches!(error, PoolError::Desk(DeskError::Deadline { .. }))
            && Instant::now() >= deadline.at;
        Err(match is_over {
            true => deadline.missed(attempt.faults),
            false => error,
        })
    }

    fn attempt<'a>(&'a self, applicant: &'a Applicant, deadline: Instant) -> Attempt<'a> {
        let rules = &self.inner.rules;
        let now = Timestamp::now();
        let record = applicant.record(&rules.node, now);
        // Twice the allowed time, because clocks differ. A check that is undone too early only loses its VM.
        let until = now.checked_add(rules.allocate_within * 2).unwrap_or(now);
        let record = match rules.readiness {
            Readiness::Off => record,
            Readiness::Tcp | Readiness::Ssh => Checking::begin(record, &rules.node, now, until),
        };
        Attempt {
            pool: self,
            applicant,
            record,
            deadline,
            faults: Faults::new(),
            repaired: false,
        }
    }

    /// Releases a VM whose check was abandoned. It was never used, so it needs no cleanup.
    pub(super) async fn undo_check(
        &self,
        address: Address,
        record: &Record,
    ) -> Result<bool, PoolError> {
        let undone = self.release(address, record).await?;
        if undone {
            tracing::warn!(pool = self.name(), %address, id = %record.handle,
                "a readiness check was cut off; its VM is released");
        }
        Ok(undone)
    }

    /// Releases, in the background, the VM that a failed request still holds.
    fn release_later(&self, left: &[Allocation], record: &Record) {
        for allocation in left {
            let (pool, ip, record) = (self.clone(), allocation.ip, record.clone());
            tokio::spawn(async move {
                // What is left after this is undone when the check has expired.
                if let Err(error) = pool.release(ip.into(), &record).await {
                    tracing::warn!(pool = pool.name(), %ip, %error, "a VM that was not ready can't be released yet");
                }
            });
        }
    }
}

impl Attempt<'_> {
    async fn serve(
        &mut self,
        search: &mut Search<Allocation, Address>,
    ) -> Result<Allocation, PoolError> {
        let found = search.run(self).await;
        if let Err(PoolError::Exhausted { .. }) = found {
            // Before the answer: another shard may allocate for the ID next.
            for failed in search.left() {
                self.pool.release(failed.ip.into(), &self.record).await?;
            }
        }
        let unknown = || PoolError::UnknownAllocation(self.applicant.allocation_id.clone());
        let held = found?.into_iter().next().ok_or_else(unknown)?;
        Ok(Allocation {
            checking: None,
            ..held.item
        })
    }

    /// Records a VM for the ID, in place of one that failed its check. `None` if the ID has one that this request did
    /// not choose, or lost the one that it chose: see the record.
    async fn choose(&mut self, failed: Option<Address>) -> Result<Option<Address>, PoolError> {
        let inner = &self.pool.inner;
        let membership = inner.members.now();
        let mut faults = self.faults.clone();
        faults.extend(inner.health.passed_over(Instant::now().into_std()));
        let avoid = faults.keys().copied().map(Address::from);
        let claim = Allocate {
            record: self.record.clone(),
            wants: vec![AddressRequest {
                order: inner.rules.order,
                avoid: avoid.chain(membership.leaving.iter().copied()).collect(),
                ..AddressRequest::any(Arc::clone(&membership.space))
            }],
        };
        let request = match failed {
            None => Request::Allocate(claim),
            Some(address) => Request::Exchange {
                address,
                expected: self.record.clone(),
                claim,
            },
        };
        match self.pool.submit_until(request, self.deadline).await {
            Ok(Answer::Granted(granted)) => {
                let fresh = granted.iter().find(|granted| granted.fresh);
                Ok(fresh.map(|granted| granted.address))
            }
            Ok(Answer::Refused(Refusal::Exhausted { .. })) => {
                let listed: BTreeSet<Address> = membership.listed.iter().copied().collect();
                faults.retain(|ip, _| listed.contains(&Address::from(*ip)));
                Err(PoolError::Exhausted { faults })
            }
            Ok(_) => Ok(None),
            // The ID has a VM that was removed from the settings since they were last read.
            Err(DeskError::Ledger(error)) if has_another(&error) => Ok(None),
            Err(error) => {
                let is_unreadable = matches!(error.ledger(), Some(LedgerError::Unreadable { .. }));
                if is_unreadable && !self.repaired {
                    // Only once: a state that was set aside and still can't be read will not improve.
                    self.repaired = true;
                    if self.pool.set_aside().await?.is_some() {
                        return Ok(None);
                    }
                }
                Err(error.into())
            }
        }
    }

    /// The VM in the ID's record, once no other process checks it. `None` if the ID has no record.
    async fn find(&self, failed: Option<Address>) -> Result<Option<Held<Allocation>>, PoolError> {
        let (pool, id) = (self.pool, &self.applicant.allocation_id);
        let mut pause = POLL;
        loop {
            let now = pool.load().await?;
            let record = now.held_under(&Handle::new(id)).next();
            let Some((address, record)) = record else {
                // A deallocation took the VM from this ID during the check.
                let deallocated = failed.map(|_| PoolError::Deallocated(id.clone()));
                return deallocated.map_or(Ok(None), Err);
            };
            let (id, ip) = (id.clone(), IpAddr::from(address));
            match Stage::read(record) {
                Stage::InUse => {
                    let item = Allocation::read(pool.name(), address, record);
                    return Ok(Some(Held { item, fresh: false }));
                }
                Stage::Quarantined(_) if failed.is_some() => {
                    return Err(PoolError::Deallocated(id));
                }
                Stage::Quarantined(_) => return Err(PoolError::BeingCleaned { id, ip }),
                // The answer to this request's commit was lost.
                Stage::Checking(_) if same_check(record, &self.record) => {
                    return Ok(Some(self.chosen(address)));
                }
                Stage::Checking(check) if check.is_over(Timestamp::now()) => {
                    pool.undo_check(address, record).await?;
                    continue;
                }
                Stage::Checking(_) => {}
            }
            if Instant::now() + pause >= self.deadline {
                return Err(PoolError::BeingChecked { id, ip });
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_POLL);
        }
    }

    fn chosen(&self, address: Address) -> Held<Allocation> {
        Held {
            item: Allocation::read(self.pool.name(), address, &self.record),
            fresh: true,
        }
    }

    /// A VM that hangs may use half of the remaining time: the rest is for others.
    async fn is_ready(&self, ip: IpAddr) -> Result<(), VmError> {
        let now = Instant::now();
        let limit = self.deadline.saturating_duration_since(now) / 2;
        let inner = &self.pool.inner;
        let check = async {
            match inner.rules.readiness {
                Readiness::Off => Ok(()),
                Readiness::Ssh => inner.vms.ready(ip).await,
                Readiness::Tcp => inner.vms.connects(ip).await,
            }
        };
        let what = "the readiness check";
        let late = Err(VmError::TimedOut { ip, what, limit });
        timeout_at(now + limit, check).await.unwrap_or(late)
    }

    /// Whether the VM is ready and recorded as in use. The current record decides: a deallocation may have ended the
    /// check.
    async fn confirm(&mut self, ip: IpAddr) -> Result<bool, PoolError> {
        let inner = &self.pool.inner;
        match self.is_ready(ip).await {
            Ok(()) => {
                inner.health.answered(ip);
                let passed = Checking::passed(&self.record);
                self.pool.rewrite(ip.into(), &self.record, passed).await
            }
            Err(error) => {
                tracing::warn!(pool = self.pool.name(), %ip, error = berth_ledger::chain(&error),
                    "a VM is not ready; trying another");
                let fault = Fault::of(&error);
                inner.health.failed(ip, fault, std::time::Instant::now());
                self.faults.insert(ip, fault);
                inner.meters.passed_over();
                Ok(false)
            }
        }
    }
}

impl Driver for Attempt<'_> {
    type Item = Allocation;
    type Key = Address;
    type Error = PoolError;

    fn key(&self, allocation: &Allocation) -> Address {
        allocation.ip.into()
    }

    /// The VM that the ID has now: an earlier one, or a newly chosen one. Avoided VMs are in `faults`, with the
    /// reason.
    async fn allocate(
        &mut self,
        _avoid: &BTreeSet<Address>,
        instead_of: &[Allocation],
        held: &mut Vec<Held<Allocation>>,
    ) -> Result<(), PoolError> {
        let failed = instead_of.first().map(|failed| failed.ip.into());
        loop {
            let found = match self.choose(failed).await? {
                Some(address) => Some(self.chosen(address)),
                None => self.find(failed).await?,
            };
            if let Some(found) = found {
                held.push(found);
                return Ok(());
            }
        }
    }

    fn is_exhausted(&self, error: &PoolError) -> bool {
        matches!(error, PoolError::Exhausted { .. })
    }

    async fn verify(&mut self, held: &[Held<Allocation>]) -> Result<Vec<Allocation>, PoolError> {
        let mut rejected = Vec::new();
        if self.pool.inner.rules.readiness != Readiness::Off {
            for held in held.iter().filter(|held| held.fresh) {
                if !self.confirm(held.item.ip).await? {
                    rejected.push(held.item.clone());
                }
            }
        }
        Ok(rejected)
    }
}

/// Whether the document refused a second address for one ID.
fn has_another(error: &LedgerError) -> bool {
    matches!(
        error,
        LedgerError::Rejected {
            operation: "claim",
            rejection: Rejection::Storage(_),
            ..
        }
    )
}
