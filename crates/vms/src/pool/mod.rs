//! One pool of VMs: which allocation has which VM, and how a VM is cleaned before another gets it.
//!
//! ```text
//!         allocate            ready            deallocate              rebooted, ready
//!   free ──────────► checking ──────► in use ──────────────► quarantined ────────────────► free
//!    ▲                  │ │ deallocate                         ▲ │ ▲ failed: shown, tried again
//!    └── not ready: ────┘ └────────────────────────────────────┘ └─┘
//!        the next one
//! ```
//!
//! Guarantees: the same ID gets the same VM (I3); an answer is durable (I2); a VM that does not answer is passed
//! over; a used VM is allocated again only after proof of its reboot (I4); every action is recorded before it starts
//! and resumed after a restart (I9).

mod allocate;
mod allocation;
mod cleaner;
mod deadline;
mod deallocate;
mod error;
mod health;
mod members;
mod recovery;
mod stage;
mod status;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use berth_core::plan::Selector;
use berth_core::{Address, Answer, Handle, Order, Pool, Record, Release, Request};
use berth_desk::{Desk, DeskError};
use berth_ledger::configmap::ConfigMapLedger;
use berth_ledger::{LedgerError, PoolKey, SharedLedger};
use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

pub(crate) use allocation::shown;
pub use allocation::{Allocation, Applicant};
pub(crate) use deadline::Deadline;
pub use deallocate::Returned;
pub(crate) use deallocate::Taken;
pub use error::PoolError;
pub use health::Fault;
pub(crate) use health::Faults;
pub use recovery::{Recovered, Recovery};
pub use stage::{Checking, Quarantine};
pub use status::Status;

use crate::metrics::PoolMeters;
use crate::settings::{Cleanup, PoolSettings, Readiness};
use crate::vm::Vms;
use cleaner::Cleaner;
use health::Health;
use members::Members;

/// Where a pool's state is kept. The ConfigMap has a free list of its own that needs repair.
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

/// What all pools of a process share.
#[derive(Clone, Debug)]
pub struct Rules {
    pub node: String,
    pub order: Order,
    pub readiness: Readiness,
    pub dead_for: Duration,
    /// The longest that an allocation takes.
    pub allocate_within: Duration,
    /// The longest that one operation on the state takes.
    pub operation: Duration,
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
    /// Allocations of this node that were made in an unknown boot.
    unknown_boot: Mutex<BTreeSet<String>>,
    meters: PoolMeters,
}

impl Inner {
    fn unknown_boot(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.unknown_boot.lock()
    }
}

impl std::fmt::Debug for VmPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VmPool")
            .field("name", &self.inner.name)
            .finish()
    }
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
            unknown_boot: Mutex::default(),
            meters,
        };
        Self {
            inner: Arc::new(inner),
        }
    }

    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Where its state is.
    pub(crate) fn place(&self) -> (&Store, &PoolKey) {
        (&self.inner.store, &self.inner.key)
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

    /// Every VM that is allocated, whether the settings still list it or not. A state that can't be read is set
    /// aside; `ips` are the VMs that it may contain.
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

    /// Sets the pool's VMs. A VM in use stays with its owner.
    pub(crate) async fn resize(&self, ips: &[IpAddr]) -> Result<(), PoolError> {
        let pool = self.load().await?;
        // Before the ledger counts them: a VM that is shown as available can be allocated.
        self.inner.members.set(ips, &pool);
        self.set_members(ips);
        self.repair().await?;
        Ok(())
    }

    /// Whether the state exists and can be read now.
    pub(crate) async fn check_state(&self) -> Result<(), PoolError> {
        match &self.inner.store {
            Store::ConfigMap(ledger) => Ok(ledger.check(&self.inner.key).await?),
            Store::Local(_) => self.load().await.map(drop),
        }
    }

    /// The allocation of an ID whose VM is in use.
    async fn in_use(&self, id: &str) -> Result<Allocation, PoolError> {
        let allocation = self.by_id(id).await?;
        let (id, ip) = (id.into(), allocation.ip);
        match (&allocation.checking, &allocation.quarantine) {
            (Some(_), _) => Err(PoolError::BeingChecked { id, ip }),
            (_, Some(_)) => Err(PoolError::BeingCleaned { id, ip }),
            (None, None) => Ok(allocation),
        }
    }

    /// Writes the user data of the allocation's VM.
    pub async fn put_user_data(&self, id: &str, data: &[u8]) -> Result<Allocation, PoolError> {
        let allocation = self.in_use(id).await?;
        self.inner.vms.put_user_data(allocation.ip, data).await?;
        Ok(allocation)
    }

    /// Every allocation, by address.
    pub async fn list(&self) -> Result<Vec<Allocation>, PoolError> {
        let pool = self.load().await?;
        let all = pool.records().chain(pool.duplicate_holders());
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
        let address = Address::from(ip.to_canonical());
        let pool = self.load().await?;
        let record = pool.get(address).ok_or(PoolError::UnknownIp(ip))?;
        Ok(Allocation::read(self.name(), address, record))
    }

    async fn submit_until(&self, request: Request, end: Instant) -> Result<Answer, DeskError> {
        let left = end.saturating_duration_since(Instant::now());
        let limit = left.min(self.inner.rules.operation);
        self.inner.desk.submit_within(request, limit).await
    }

    async fn release(&self, address: Address, holder: &Record) -> Result<bool, PoolError> {
        let release = Request::Release(Release {
            selector: Selector::Address {
                address,
                holder: holder.clone(),
            },
            cooldown: Duration::ZERO,
        });
        match self.inner.desk.submit(release).await? {
            Answer::Released(freed) => Ok(!freed.is_empty()),
            // Another owner has it by now: the expected record is already gone (I6).
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
        let transfer = Request::Transfer {
            address,
            expected: from.clone(),
            record: to,
        };
        Ok(matches!(
            self.inner.desk.submit(transfer).await?,
            Answer::Transferred
        ))
    }
}
