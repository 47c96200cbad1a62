//! One pool of VMs: who has which, and what must happen before another gets it.
//!
//! ```text
//!            allocate                     deallocate              seen down, up, ready
//!   free ───────────────► in use ───────────────────► quarantined ─────────────────► free
//!    ▲                      │ not ready: back,             │ ▲ failed: shown, tried again
//!    └──────────────────────┘ and the next one             └─┘
//! ```
//!
//! Promises: the same ID gets the same VM (I3); an answer is durable (I2); a VM that does not
//! answer is passed over; one that was used is given on only after it was seen to reboot (I4); what
//! is begun is recorded first and resumed after a restart (I9).

mod allocation;
mod cleaner;
mod error;
mod health;
mod members;
mod recovery;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use berth_core::plan::Selector;
use berth_core::{
    Address, Answer, Claim, Handle, Order, Pool, Record, Refusal, Release, Request, Want,
};
use berth_desk::{Desk, DeskError};
use berth_ledger::configmap::ConfigMapLedger;
use berth_ledger::{LedgerError, PoolKey, Rejection, SharedLedger};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

pub use allocation::{Allocation, Applicant, Quarantine};
pub use error::PoolError;
pub use recovery::Recovered;

use crate::audit::{Act, Audit};
use crate::metrics::PoolMeters;
use crate::settings::{Cleanup, PoolSettings, Readiness};
use crate::vm::Vms;
use cleaner::Cleaner;
use health::Health;
use members::Members;

/// Where a pool's state is kept. The ConfigMap has a free list of its own that wants repair.
#[derive(Clone, Debug)]
pub enum Store {
    ConfigMap(Arc<ConfigMapLedger>),
    Local(SharedLedger),
}

impl Store {
    pub fn ledger(&self) -> SharedLedger {
        match self {
            Self::ConfigMap(ledger) => Arc::clone(ledger) as SharedLedger,
            Self::Local(ledger) => Arc::clone(ledger),
        }
    }

    /// A ConfigMap is named by the settings; a file holds pools under their own names.
    pub fn key(&self, pool: &PoolSettings) -> PoolKey {
        match self {
            Self::ConfigMap(_) => PoolKey::named(&pool.configmap),
            Self::Local(_) => PoolKey::named(format!("vms/{}", pool.name)),
        }
    }
}

/// What all pools of a process have in common.
#[derive(Clone, Debug)]
pub struct Rules {
    pub node: String,
    pub order: Order,
    pub readiness: Readiness,
    pub dead_for: Duration,
    pub cleanup: Option<Cleanup>,
}

/// One pool. Cheap to clone.
#[derive(Clone)]
pub struct VmPool {
    inner: Arc<Inner>,
}

struct Inner {
    name: String,
    key: PoolKey,
    store: Store,
    ledger: SharedLedger,
    desk: Desk,
    vms: Arc<dyn Vms>,
    rules: Arc<Rules>,
    members: Members,
    health: Health,
    cleaner: Cleaner,
    meters: PoolMeters,
}

impl std::fmt::Debug for VmPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VmPool")
            .field("name", &self.inner.name)
            .finish()
    }
}

/// The numbers of a pool. `total` is the sum of the others.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    pub pool: String,
    pub total: usize,
    pub available: usize,
    pub in_use: usize,
    pub quarantined: usize,
    /// Free VMs that are passed over because they did not answer.
    pub silent: Vec<IpAddr>,
    /// Quarantined VMs whose last cleanup failed; it is tried again.
    pub uncleaned: Vec<IpAddr>,
    /// VMs that two allocations claim to have: another program broke the state.
    pub doubled: Vec<IpAddr>,
    /// Entries of the state that are no allocation.
    pub strays: Vec<String>,
}

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

impl VmPool {
    pub(crate) fn open(
        name: &str,
        key: PoolKey,
        store: Store,
        desk: Desk,
        vms: Arc<dyn Vms>,
        rules: Arc<Rules>,
        meters: PoolMeters,
    ) -> Self {
        let inner = Inner {
            name: name.into(),
            key,
            ledger: store.ledger(),
            store,
            desk,
            vms,
            health: Health::new(rules.dead_for),
            rules,
            members: Members::default(),
            cleaner: Cleaner::default(),
            meters,
        };
        Self {
            inner: Arc::new(inner),
        }
    }

    pub fn name(&self) -> &str {
        &self.inner.name
    }

    async fn load(&self) -> Result<Pool, PoolError> {
        let snapshot = self.inner.ledger.load(&self.inner.key).await?;
        Ok(snapshot.pool)
    }

    fn set_members(&self, ips: &[IpAddr]) {
        if let Store::ConfigMap(ledger) = &self.inner.store {
            let addresses: Vec<Address> = ips.iter().copied().map(Address::from).collect();
            ledger.set_members(&self.inner.key, &addresses);
        }
    }

    /// Every VM that somebody has, whether the settings still list it or not. A state that can't
    /// be read is set aside for that; `ips` are then those that it may speak of.
    pub(crate) async fn held(&self, ips: &[IpAddr]) -> Result<Vec<IpAddr>, PoolError> {
        let pool = match self.load().await {
            Err(error) if matches!(error.ledger(), Some(LedgerError::Unreadable { .. })) => {
                self.set_members(ips);
                self.set_aside().await?.ok_or(error)?;
                self.load().await?
            }
            pool => pool?,
        };
        Ok(pool.records().map(|(address, _)| address.into()).collect())
    }

    /// From now on these VMs are the pool's. What is in use stays with who has it.
    pub(crate) async fn resize(&self, ips: &[IpAddr]) -> Result<(), PoolError> {
        let pool = self.load().await?;
        // Before the ledger counts them: what is shown as available can be given.
        self.inner.members.set(ips, &pool);
        self.set_members(ips);
        self.repair().await?;
        Ok(())
    }

    /// A VM for the applicant, ready to be used. The same ID gets the same VM.
    pub async fn allocate(&self, applicant: &Applicant) -> Result<Allocation, PoolError> {
        let audit = Audit::begin(Act::Allocate, self.name(), &self.inner.rules.node)
            .allocation(&applicant.allocation_id)
            .pod(&applicant.pod_namespace, &applicant.pod_name);
        let begun = Instant::now();
        let outcome = self.allocate_ready(applicant).await;
        self.inner
            .meters
            .allocated(outcome.as_ref().err(), begun.elapsed());
        match &outcome {
            Ok(allocation) => audit.ip(allocation.ip).done("allocated"),
            Err(error) => audit.failed(error),
        }
        outcome
    }

    async fn allocate_ready(&self, applicant: &Applicant) -> Result<Allocation, PoolError> {
        applicant.check()?;
        let inner = &self.inner;
        let record = applicant.record(&inner.rules.node, Timestamp::now());
        // However short the silence is set: one request tries no VM twice, so it ends.
        let mut tried: BTreeSet<IpAddr> = BTreeSet::new();
        loop {
            let roll = inner.members.roll();
            let mut silent = tried.clone();
            silent.extend(inner.health.passed_over(Instant::now()));
            let avoid = silent.iter().copied().map(Address::from);
            let want = Want {
                order: inner.rules.order,
                avoid: avoid.chain(roll.leaving.iter().copied()).collect(),
                ..Want::any(Arc::clone(&roll.space))
            };
            let claim = Claim {
                record: record.clone(),
                wants: vec![want],
            };
            let granted = match inner.desk.submit(Request::Claim(claim)).await {
                Ok(Answer::Granted(granted)) => granted.into_iter().next(),
                Ok(Answer::Refused(Refusal::Exhausted { .. })) => {
                    let listed = |ip: &IpAddr| roll.listed.contains(&Address::from(*ip));
                    let silent = silent.into_iter().filter(listed).collect();
                    return Err(PoolError::Exhausted { silent });
                }
                // The ID has a VM that the settings dropped since we last looked.
                Err(DeskError::Ledger(error)) if has_another(&error) => None,
                Ok(_) => None,
                Err(error) => return Err(error.into()),
            };
            let Some(granted) = granted.filter(|granted| granted.fresh) else {
                return self.existing(&applicant.allocation_id).await;
            };
            let ip = IpAddr::from(granted.address);
            let Err(error) = self.is_ready(ip).await else {
                inner.health.answered(ip);
                return Ok(Allocation::read(self.name(), granted.address, &record));
            };
            tracing::warn!(pool = self.name(), %ip, %error, "a VM does not answer and is passed over");
            inner.health.failed(ip, Instant::now());
            tried.insert(ip);
            inner.meters.passed_over();
            // It was never used, so it needs no cleanup.
            self.release(granted.address, &record).await?;
        }
    }

    async fn is_ready(&self, ip: IpAddr) -> Result<(), PoolError> {
        match self.inner.rules.readiness {
            Readiness::Off => Ok(()),
            Readiness::Ssh => Ok(self.inner.vms.ready(ip).await?),
            Readiness::Tcp => Ok(self.inner.vms.connects(ip).await?),
        }
    }

    /// The answer to a repeat.
    async fn existing(&self, id: &str) -> Result<Allocation, PoolError> {
        let allocation = self.by_id(id).await?;
        if allocation.quarantine.is_some() {
            return Err(PoolError::BeingCleaned {
                id: id.into(),
                ip: allocation.ip,
            });
        }
        Ok(allocation)
    }

    async fn release(&self, address: Address, holder: &Record) -> Result<bool, PoolError> {
        let release = Request::Release(Release {
            selector: Selector::Address {
                address,
                holder: holder.clone(),
            },
            rest: Duration::ZERO,
        });
        match self.inner.desk.submit(release).await? {
            Answer::Released(freed) => Ok(!freed.is_empty()),
            // Somebody else has it by now: what was ours is gone already (I6).
            _ => Ok(false),
        }
    }

    /// Changes a holder's record. False if the holder is gone.
    async fn rewrite(
        &self,
        address: Address,
        from: &Record,
        to: Record,
    ) -> Result<bool, PoolError> {
        let reown = Request::Reown {
            address,
            expected: from.clone(),
            record: to,
        };
        Ok(matches!(
            self.inner.desk.submit(reown).await?,
            Answer::Reowned
        ))
    }

    /// Takes a VM back. It is free after it was cleaned; `force` frees it as it is.
    pub async fn deallocate(&self, id: &str, force: bool) -> Result<Returned, PoolError> {
        let audit =
            Audit::begin(Act::Deallocate, self.name(), &self.inner.rules.node).allocation(id);
        let outcome = self.take_back(id, force).await;
        self.inner.meters.deallocated(outcome.as_ref().err());
        match outcome {
            Ok((returned, was)) => {
                let outcome = match returned {
                    Returned::Nothing => "nothing held",
                    Returned::Released => "released",
                    Returned::Quarantined => "quarantined",
                };
                match was {
                    Some(was) => audit.of(&was).done(outcome),
                    None => audit.done(outcome),
                }
                Ok(returned)
            }
            Err(error) => {
                audit.failed(&error);
                Err(error)
            }
        }
    }

    /// How it ended, and what was given back.
    async fn take_back(
        &self,
        id: &str,
        force: bool,
    ) -> Result<(Returned, Option<Allocation>), PoolError> {
        let handle = Handle::new(id);
        let read = |address, record: &Record| Some(Allocation::read(self.name(), address, record));
        if self.inner.rules.cleanup.is_none() || force {
            let selector = Selector::Handle { handle, part: None };
            let rest = Duration::ZERO;
            let release = Request::Release(Release { selector, rest });
            return match self.inner.desk.submit(release).await? {
                Answer::Released(freed) => Ok(match freed.first() {
                    Some((address, record)) => (Returned::Released, read(*address, record)),
                    None => (Returned::Nothing, None),
                }),
                _ => Ok((Returned::Nothing, None)),
            };
        }
        let pool = self.load().await?;
        let Some((address, record)) = pool.held_under(&handle).next() else {
            return Ok((Returned::Nothing, None));
        };
        let was = read(address, record);
        if Quarantine::read(record).is_some() {
            return Ok((Returned::Quarantined, was));
        }
        if pool.holders(address).count() > 1 {
            // Another allocation has the same VM: a reboot would take it from under it.
            tracing::warn!(pool = self.name(), %address, id, "a VM with two owners is given back by one, without a reboot");
            self.release(address, record).await?;
            return Ok((Returned::Released, was));
        }
        let held = Quarantine::begin(record, &self.inner.rules.node, Timestamp::now());
        // Recorded before it is begun (I9): a crash from here on resumes at the next start.
        if self.rewrite(address, record, held).await? {
            self.clean(address);
            Ok((Returned::Quarantined, was))
        } else {
            Ok((Returned::Nothing, None))
        }
    }

    /// Gives the allocation's VM its user data.
    pub async fn put_user_data(&self, id: &str, data: &[u8]) -> Result<Allocation, PoolError> {
        let audit = Audit::begin(Act::UserData, self.name(), &self.inner.rules.node).allocation(id);
        let outcome = async {
            let allocation = self.existing(id).await?;
            self.inner.vms.put_user_data(allocation.ip, data).await?;
            Ok(allocation)
        }
        .await;
        match &outcome {
            Ok(allocation) => audit.of(allocation).done("written"),
            Err(error) => audit.failed(error),
        }
        outcome
    }

    /// Every allocation, by address.
    pub async fn list(&self) -> Result<Vec<Allocation>, PoolError> {
        let pool = self.load().await?;
        let all = pool.records().chain(pool.rivals());
        Ok(all
            .map(|(address, record)| Allocation::read(self.name(), address, record))
            .collect())
    }

    pub async fn by_id(&self, id: &str) -> Result<Allocation, PoolError> {
        let pool = self.load().await?;
        let found = pool.held_under(&Handle::new(id)).next();
        let (address, record) = found.ok_or_else(|| PoolError::UnknownAllocation(id.into()))?;
        Ok(Allocation::read(self.name(), address, record))
    }

    pub async fn by_ip(&self, ip: IpAddr) -> Result<Allocation, PoolError> {
        let address = Address::from(ip);
        let pool = self.load().await?;
        let record = pool.get(address).ok_or(PoolError::UnknownIp(ip))?;
        Ok(Allocation::read(self.name(), address, record))
    }

    pub async fn status(&self) -> Result<Status, PoolError> {
        let pool = self.load().await?;
        let status = self.count(&pool);
        self.inner.meters.counted(&status);
        let conflicts = match &self.inner.store {
            Store::ConfigMap(ledger) => ledger.conflicts(&self.inner.key),
            Store::Local(_) => self.inner.desk.metrics().conflicts.get(),
        };
        self.inner.meters.conflicts(conflicts);
        Ok(status)
    }

    fn count(&self, pool: &Pool) -> Status {
        let roll = self.inner.members.roll();
        let held = pool.records().chain(pool.rivals());
        let (quarantined, in_use): (Vec<_>, Vec<_>) =
            held.partition(|(_, record)| Quarantine::read(record).is_some());
        let free: Vec<Address> = match pool.listing() {
            Some(listing) => listing.to_vec(),
            None => roll
                .listed
                .iter()
                .copied()
                .filter(|a| !pool.is_held(*a))
                .collect(),
        };
        let failed = |record: &Record| Quarantine::read(record)?.error;
        let uncleaned = quarantined
            .iter()
            .filter(|(_, record)| failed(record).is_some());
        let silent = self.inner.health.passed_over(Instant::now()).into_iter();
        Status {
            pool: self.name().into(),
            total: free.len() + in_use.len() + quarantined.len(),
            available: free.len(),
            in_use: in_use.len(),
            quarantined: quarantined.len(),
            silent: silent
                .filter(|ip| free.contains(&Address::from(*ip)))
                .collect(),
            uncleaned: uncleaned.map(|(address, _)| (*address).into()).collect(),
            doubled: pool.rivals().map(|(address, _)| address.into()).collect(),
            strays: pool
                .strays()
                .iter()
                .map(|s| format!("{}: {}", s.key, s.why))
                .collect(),
        }
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
