//! A VM for an applicant: chosen, recorded as being checked, checked, and only then answered.
//!
//! Promises: the same ID gets the same VM (I3), also while its VM is being checked, by this process or another; the answer is
//! what the record says after the check (I2); for an ID that was deallocated meanwhile nobody is answered and nothing is
//! allocated; an answer comes within the limit. A process that dies in a check leaves a record that says so, and that is
//! undone at its next start or when the check's time is over (I9).

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use berth_core::{Address, Answer, Claim, Handle, Record, Refusal, Request, Want};
use berth_desk::DeskError;
use berth_ledger::{LedgerError, Rejection};
use jiff::Timestamp;
use tokio::time::{Instant, timeout_at};

use super::health::{Fault, Faults};
use super::stage::{Checking, Stage, same_check};
use super::{Allocation, Applicant, PoolError, VmPool};
use crate::settings::Readiness;
use crate::vm::VmError;

/// Between two looks at a record that another process checks.
const LOOK: Duration = Duration::from_millis(100);
const LONGEST_LOOK: Duration = Duration::from_secs(1);

/// When an allocation must have its answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    pub(crate) at: Instant,
    /// The time that the whole request has, for messages.
    limit: Duration,
}

impl Deadline {
    pub(crate) fn within(limit: Duration) -> Self {
        let at = Instant::now() + limit;
        Self { at, limit }
    }

    /// The first of so many equal parts of the time that is left.
    pub(crate) fn share(self, parts: usize) -> Self {
        let now = Instant::now();
        let left = self.at.saturating_duration_since(now);
        let parts = u32::try_from(parts).unwrap_or(u32::MAX).max(1);
        Self {
            at: now + left / parts,
            ..self
        }
    }

    /// The work, if it ends in time. Only for what may be cut off.
    pub(crate) async fn bound<T>(
        self,
        work: impl Future<Output = Result<T, PoolError>>,
    ) -> Result<T, PoolError> {
        let late = || Err(self.missed(Faults::new()));
        timeout_at(self.at, work).await.unwrap_or_else(|_| late())
    }

    pub(crate) fn missed(self, faults: Faults) -> PoolError {
        let limit = self.limit;
        PoolError::TooLate { limit, faults }
    }
}

/// What there is of an ID.
enum Found {
    /// In use: the answer to a repeat.
    InUse(Box<Allocation>),
    /// In the check of this very request: the commit's own answer was lost.
    Mine(Address),
    Cleaning(IpAddr),
    Nothing,
}

/// One request under way.
struct Attempt<'a> {
    applicant: &'a Applicant,
    /// As it is until the VM was found ready.
    record: Record,
    deadline: Instant,
    faults: Faults,
    /// A VM that failed its check and is still recorded for the ID.
    failed: Option<Address>,
    /// The state could not be read, and was set aside.
    repaired: bool,
}

impl VmPool {
    /// A VM for the applicant, whose names were checked, ready to be used. The same ID gets the same VM. Requests for one ID
    /// follow each other, until a deallocation ends them.
    pub(crate) async fn allocate(
        &self,
        applicant: &Applicant,
        deadline: Deadline,
    ) -> Result<Allocation, PoolError> {
        let id = &applicant.allocation_id;
        let seat = self.inner.flights.join(id);
        let mut attempt = self.attempt(applicant, deadline.at);
        let served = timeout_at(deadline.at, seat.run(self.serve(&mut attempt))).await;
        match served {
            Ok(Some(Ok(allocation))) => Ok(allocation),
            Ok(Some(Err(error))) => {
                self.give_up(&attempt);
                // The desk has as much time as the request has left, and may be the first to notice that it is over.
                let is_over = matches!(error, PoolError::Desk(DeskError::Deadline { .. }))
                    && Instant::now() >= deadline.at;
                Err(match is_over {
                    true => deadline.missed(attempt.faults),
                    false => error,
                })
            }
            // The deallocation has taken what was recorded.
            Ok(None) => Err(PoolError::Deallocated(id.clone())),
            Err(_) => {
                self.give_up(&attempt);
                Err(deadline.missed(attempt.faults))
            }
        }
    }

    fn attempt<'a>(&self, applicant: &'a Applicant, deadline: Instant) -> Attempt<'a> {
        let rules = &self.inner.rules;
        let now = Timestamp::now();
        let record = applicant.record(&rules.node, now);
        // Twice the time that it may take: clocks differ. One that is undone too early only loses its VM.
        let until = now.checked_add(rules.allocate_within * 2).unwrap_or(now);
        let record = match rules.readiness {
            Readiness::Off => record,
            Readiness::Tcp | Readiness::Ssh => Checking::begin(record, &rules.node, now, until),
        };
        Attempt {
            applicant,
            record,
            deadline,
            faults: Faults::new(),
            failed: None,
            repaired: false,
        }
    }

    async fn serve(&self, attempt: &mut Attempt<'_>) -> Result<Allocation, PoolError> {
        let id = &attempt.applicant.allocation_id;
        loop {
            let address = match self.choose(attempt).await? {
                Some(address) => address,
                None => match self.find(attempt).await? {
                    Found::InUse(allocation) => return Ok(*allocation),
                    Found::Mine(address) => address,
                    Found::Cleaning(ip) if attempt.failed.is_none() => {
                        let id = id.clone();
                        return Err(PoolError::BeingCleaned { id, ip });
                    }
                    Found::Nothing if attempt.failed.is_none() => continue,
                    // The VM under check was taken from this ID by a deallocation.
                    Found::Cleaning(_) | Found::Nothing => {
                        return Err(PoolError::Deallocated(id.clone()));
                    }
                },
            };
            if let Some(allocation) = self.check(attempt, address).await? {
                return Ok(allocation);
            }
        }
    }

    /// Records a VM for the ID, in place of one that failed its check. `None` if the ID has one that this request did not
    /// take, or lost the one that it took: the record tells.
    async fn choose(&self, attempt: &mut Attempt<'_>) -> Result<Option<Address>, PoolError> {
        let roll = self.inner.members.roll();
        let mut faults = attempt.faults.clone();
        faults.extend(self.inner.health.passed_over(Instant::now().into_std()));
        let avoid = faults.keys().copied().map(Address::from);
        let claim = Claim {
            record: attempt.record.clone(),
            wants: vec![Want {
                order: self.inner.rules.order,
                avoid: avoid.chain(roll.leaving.iter().copied()).collect(),
                ..Want::any(Arc::clone(&roll.space))
            }],
        };
        let request = match attempt.failed {
            None => Request::Claim(claim),
            Some(address) => Request::Exchange {
                address,
                expected: attempt.record.clone(),
                claim,
            },
        };
        match self.submit_until(request, attempt.deadline).await {
            Ok(Answer::Granted(granted)) => {
                let fresh = granted.iter().find(|granted| granted.fresh);
                Ok(fresh.map(|granted| granted.address))
            }
            Ok(Answer::Refused(Refusal::Exhausted { .. })) => {
                if let Some(address) = attempt.failed {
                    self.release(address, &attempt.record).await?;
                    attempt.failed = None;
                }
                let listed: BTreeSet<Address> = roll.listed.iter().copied().collect();
                faults.retain(|ip, _| listed.contains(&Address::from(*ip)));
                Err(PoolError::Exhausted { faults })
            }
            Ok(_) => Ok(None),
            // The ID has a VM that the settings dropped since we last looked.
            Err(DeskError::Ledger(error)) if has_another(&error) => Ok(None),
            Err(error) => {
                let is_unreadable = matches!(error.ledger(), Some(LedgerError::Unreadable { .. }));
                if is_unreadable && !attempt.repaired {
                    // Once: what is set aside and still can't be read will not get better.
                    attempt.repaired = true;
                    if self.set_aside().await?.is_some() {
                        return Ok(None);
                    }
                }
                Err(error.into())
            }
        }
    }

    /// The VM that was chosen, if it is ready and still the ID's.
    async fn check(
        &self,
        attempt: &mut Attempt<'_>,
        address: Address,
    ) -> Result<Option<Allocation>, PoolError> {
        attempt.failed = Some(address);
        let ip = IpAddr::from(address);
        let read = |record: &Record| Allocation::read(self.name(), address, record);
        if self.inner.rules.readiness == Readiness::Off {
            return Ok(Some(read(&attempt.record)));
        }
        match self.is_ready(ip, attempt.deadline).await {
            Ok(()) => {
                self.inner.health.answered(ip);
                let passed = Checking::passed(&attempt.record);
                // The record as it is now decides: a deallocation may have ended the check.
                let still = self.rewrite(address, &attempt.record, passed.clone());
                Ok(still.await?.then(|| read(&passed)))
            }
            Err(error) => {
                tracing::warn!(pool = self.name(), %ip, error = berth_ledger::chain(&error),
                    "a VM is not ready and is passed over");
                let fault = Fault::of(&error);
                self.inner
                    .health
                    .failed(ip, fault, std::time::Instant::now());
                attempt.faults.insert(ip, fault);
                self.inner.meters.passed_over();
                Ok(None)
            }
        }
    }

    /// A VM that hangs may take half of the time that is left: others must have theirs.
    async fn is_ready(&self, ip: IpAddr, deadline: Instant) -> Result<(), VmError> {
        let now = Instant::now();
        let limit = deadline.saturating_duration_since(now) / 2;
        let vms = &self.inner.vms;
        let check = async {
            match self.inner.rules.readiness {
                Readiness::Off => Ok(()),
                Readiness::Ssh => vms.ready(ip).await,
                Readiness::Tcp => vms.connects(ip).await,
            }
        };
        let what = "the readiness check";
        let late = Err(VmError::TimedOut { ip, what, limit });
        timeout_at(now + limit, check).await.unwrap_or(late)
    }

    /// What the record of the ID says, once nobody else checks its VM.
    async fn find(&self, attempt: &Attempt<'_>) -> Result<Found, PoolError> {
        let id = &attempt.applicant.allocation_id;
        let mut pause = LOOK;
        loop {
            let pool = self.load().await?;
            let Some((address, record)) = pool.held_under(&Handle::new(id)).next() else {
                return Ok(Found::Nothing);
            };
            let ip = IpAddr::from(address);
            match Stage::read(record) {
                Stage::InUse => {
                    let allocation = Allocation::read(self.name(), address, record);
                    return Ok(Found::InUse(Box::new(allocation)));
                }
                Stage::Quarantined(_) => return Ok(Found::Cleaning(ip)),
                Stage::Checking(_) if same_check(record, &attempt.record) => {
                    return Ok(Found::Mine(address));
                }
                Stage::Checking(check) if check.is_over(Timestamp::now()) => {
                    self.undo_check(address, record).await?;
                    continue;
                }
                Stage::Checking(_) => {}
            }
            if Instant::now() + pause >= attempt.deadline {
                let id = id.clone();
                return Err(PoolError::BeingChecked { id, ip });
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_LOOK);
        }
    }

    /// Releases a VM whose check nobody works on any more. It was never used, so it needs no cleanup.
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

    /// Releases, in the background, the VM that a request leaves behind.
    fn give_up(&self, attempt: &Attempt<'_>) {
        let Some(address) = attempt.failed else {
            return;
        };
        let (pool, record) = (self.clone(), attempt.record.clone());
        tokio::spawn(async move {
            // What is left after this is undone when the check's time is over.
            if let Err(error) = pool.release(address, &record).await {
                tracing::warn!(pool = pool.name(), %address, %error, "a VM that was not ready can't be released yet");
            }
        });
    }
}

/// The document's refusal of a second address for one ID.
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
