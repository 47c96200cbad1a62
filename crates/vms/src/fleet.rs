//! All pools of VMs of one process, by name.
//!
//! Promises: a pool can grow, shrink, appear and be closed while requests run; a VM that moves
//! from one pool to another is not given by the new one before the old one's owner gave it back
//! (I1). A pool that left the settings takes back what it gave and gives nothing more.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use berth_desk::{DeskError, DeskMetrics, DeskSettings, Desks};
use tokio_util::sync::CancellationToken;

use crate::audit::{Act, Audit};
use crate::metrics::VmMetrics;
use crate::pool::{
    Allocation, Applicant, PoolError, Recovered, Returned, Rules, Status, Store, VmPool,
};
use crate::settings::{DEFAULT_POOL, PoolSettings, Settings};
use crate::vm::Vms;

/// Between two looks at the pools for the gauges and for VMs that wait to join.
const LOOK: Duration = Duration::from_secs(10);

/// The pools. Cheap to clone.
#[derive(Clone)]
pub struct Fleet {
    inner: Arc<Inner>,
}

struct Inner {
    store: Store,
    desks: Desks,
    vms: Arc<dyn Vms>,
    rules: Arc<Rules>,
    metrics: VmMetrics,
    pools: RwLock<BTreeMap<String, VmPool>>,
    /// What the settings ask for, and what could not be done yet.
    wanted: Mutex<Wanted>,
    /// Why nobody is served yet, before the state was read for the first time.
    closed: Mutex<Option<String>>,
    /// Sizes change one at a time.
    resizing: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct Wanted {
    pools: Vec<PoolSettings>,
    /// VMs that another pool's owner still has.
    waiting: BTreeSet<IpAddr>,
    /// The last change of sizes did not get through.
    unfinished: bool,
    /// The last edit of the settings that could not be used.
    problem: Option<String>,
}

impl std::fmt::Debug for Fleet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fleet")
            .field("pools", &self.names())
            .finish()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Fleet {
    /// No pool yet: [`Fleet::resize`] opens them.
    pub fn new(
        settings: &Settings,
        store: Store,
        vms: Arc<dyn Vms>,
        metrics: VmMetrics,
        desk_metrics: DeskMetrics,
    ) -> Self {
        let desk = DeskSettings {
            retry: settings.retry,
            // Every write would be sent to every process, whole: dearer than a read now and then.
            watch: false,
            ..DeskSettings::default()
        };
        let rules = Rules {
            node: settings.node.clone(),
            order: settings.order,
            readiness: settings.readiness,
            dead_for: settings.dead_for,
            cleanup: settings.cleanup.clone(),
        };
        let inner = Inner {
            desks: Desks::new(store.ledger(), desk, desk_metrics),
            store,
            vms,
            rules: Arc::new(rules),
            metrics,
            pools: RwLock::default(),
            wanted: Mutex::default(),
            closed: Mutex::default(),
            resizing: tokio::sync::Mutex::default(),
        };
        Self {
            inner: Arc::new(inner),
        }
    }

    fn pools(&self) -> Vec<VmPool> {
        let pools = self
            .inner
            .pools
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        pools.values().cloned().collect()
    }

    pub fn names(&self) -> Vec<String> {
        let pools = self
            .inner
            .pools
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        pools.keys().cloned().collect()
    }

    /// From now on every request is refused with this reason, until [`Fleet::reopen`].
    pub(crate) fn close(&self, why: String) {
        *lock(&self.inner.closed) = Some(why);
    }

    pub(crate) fn reopen(&self) {
        *lock(&self.inner.closed) = None;
    }

    fn check_open(&self) -> Result<(), PoolError> {
        match &*lock(&self.inner.closed) {
            Some(why) => Err(PoolError::Starting { why: why.clone() }),
            None => Ok(()),
        }
    }

    /// The pool of this name; without one, the default pool, or the only one there is.
    fn pool(&self, name: Option<&str>) -> Result<VmPool, PoolError> {
        self.check_open()?;
        let pools = self
            .inner
            .pools
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        let found = match name {
            Some(name) => pools.get(name),
            None if pools.len() == 1 => pools.values().next(),
            None => pools.get(DEFAULT_POOL),
        };
        found.cloned().ok_or_else(|| PoolError::UnknownPool {
            name: name.unwrap_or(DEFAULT_POOL).into(),
            known: pools.keys().cloned().collect(),
        })
    }

    /// The pools that a question without a pool's name is about: all of them.
    fn asked(&self, name: Option<&str>) -> Result<Vec<VmPool>, PoolError> {
        self.check_open()?;
        match name {
            Some(_) => Ok(vec![self.pool(name)?]),
            None => Ok(self.pools()),
        }
    }

    /// From now on these are the pools. Addresses that another pool's owner still has wait.
    pub async fn resize(&self, wanted: &[PoolSettings]) -> Result<(), PoolError> {
        let _one_at_a_time = self.inner.resizing.lock().await;
        for pool in wanted {
            self.open(pool);
        }
        let before = {
            let mut now = lock(&self.inner.wanted);
            now.unfinished = true;
            std::mem::replace(&mut now.pools, wanted.to_vec())
        };
        let ips_of = |name: &str| {
            let settings = wanted.iter().find(|settings| settings.name == name);
            settings.map_or(&[][..], |settings| &settings.ips)
        };
        let mut held: BTreeMap<IpAddr, String> = BTreeMap::new();
        for pool in self.pools() {
            for ip in pool.held(ips_of(pool.name())).await? {
                held.insert(ip, pool.name().into());
            }
        }
        let mut waiting = BTreeSet::new();
        for pool in self.pools() {
            let elsewhere = |ip: &IpAddr| held.get(ip).is_some_and(|by| by != pool.name());
            let ips = ips_of(pool.name()).iter().copied();
            let (late, now): (Vec<IpAddr>, Vec<IpAddr>) = ips.partition(elsewhere);
            waiting.extend(late);
            pool.resize(&now).await?;
            let size = |pools: &[PoolSettings]| {
                let of = pools.iter().find(|settings| settings.name == pool.name());
                of.map_or(0, |settings| settings.ips.len())
            };
            if size(&before) != size(wanted) {
                Audit::begin(Act::Resize, pool.name(), &self.inner.rules.node).done(&format!(
                    "{} VMs, {} before",
                    size(wanted),
                    size(&before)
                ));
            }
        }
        let mut now = lock(&self.inner.wanted);
        now.waiting = waiting;
        now.problem = None;
        now.unfinished = false;
        Ok(())
    }

    fn open(&self, settings: &PoolSettings) {
        let mut pools = self
            .inner
            .pools
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        pools.entry(settings.name.clone()).or_insert_with(|| {
            let key = self.inner.store.key(settings);
            VmPool::open(
                &settings.name,
                key.clone(),
                self.inner.store.clone(),
                self.inner.desks.of(&key),
                Arc::clone(&self.inner.vms),
                Arc::clone(&self.inner.rules),
                self.inner.metrics.of(&settings.name),
            )
        });
    }

    /// An edit of the settings that can't be used. What was before goes on, and this is shown.
    pub fn refuse_edit(&self, problem: String) {
        tracing::error!(problem, "the edited settings are not used");
        lock(&self.inner.wanted).problem = Some(problem);
    }

    /// Why the last edit of the settings is not used, if so.
    pub fn problem(&self) -> Option<String> {
        lock(&self.inner.wanted).problem.clone()
    }

    /// VMs that join a pool once another pool's owner gave them back.
    pub fn waiting(&self) -> Vec<IpAddr> {
        lock(&self.inner.wanted).waiting.iter().copied().collect()
    }

    pub async fn recover(
        &self,
        name: Option<&str>,
        take_back: bool,
    ) -> Result<Vec<Recovered>, PoolError> {
        recover(self.asked(name)?, take_back).await
    }

    /// Before anybody is served.
    pub(crate) async fn recover_all(&self, take_back: bool) -> Result<Vec<Recovered>, PoolError> {
        recover(self.pools(), take_back).await
    }

    /// Runs to its end even if the caller goes away: a VM that was taken and not yet found ready is
    /// either answered for or given back.
    pub async fn allocate(
        &self,
        name: Option<&str>,
        applicant: Applicant,
    ) -> Result<Allocation, PoolError> {
        let pool = self.pool(name)?;
        let name = pool.name().to_string();
        let task = tokio::spawn(async move { pool.allocate(&applicant).await });
        match task.await {
            Ok(outcome) => outcome,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // The runtime ends.
                Err(_) => Err(DeskError::Closed { pool: name }.into()),
            },
        }
    }

    /// Without a pool's name every pool is asked whether the ID is its own.
    pub async fn deallocate(
        &self,
        name: Option<&str>,
        id: &str,
        force: bool,
    ) -> Result<Returned, PoolError> {
        let pool = match name {
            Some(_) => self.pool(name)?,
            None if self.names().len() == 1 => self.pool(None)?,
            None => match self
                .find(|pool| async move { pool.by_id(id).await })
                .await?
            {
                Some(allocation) => self.pool(Some(&allocation.pool))?,
                None => return Ok(Returned::Nothing),
            },
        };
        pool.deallocate(id, force).await
    }

    pub async fn by_id(&self, name: Option<&str>, id: &str) -> Result<Allocation, PoolError> {
        if name.is_some() {
            return self.pool(name)?.by_id(id).await;
        }
        let found = self
            .find(|pool| async move { pool.by_id(id).await })
            .await?;
        found.ok_or_else(|| PoolError::UnknownAllocation(id.into()))
    }

    pub async fn by_ip(&self, ip: IpAddr) -> Result<Allocation, PoolError> {
        let found = self
            .find(|pool| async move { pool.by_ip(ip).await })
            .await?;
        found.ok_or(PoolError::UnknownIp(ip))
    }

    /// The first pool that knows. A pool that can't be read is an error: the answer might be there.
    async fn find<F>(&self, ask: impl Fn(VmPool) -> F) -> Result<Option<Allocation>, PoolError>
    where
        F: Future<Output = Result<Allocation, PoolError>>,
    {
        for pool in self.asked(None)? {
            match ask(pool).await {
                Ok(allocation) => return Ok(Some(allocation)),
                Err(PoolError::UnknownAllocation(_) | PoolError::UnknownIp(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    pub async fn list(&self, name: Option<&str>) -> Result<Vec<Allocation>, PoolError> {
        let mut all = Vec::new();
        for pool in self.asked(name)? {
            all.extend(pool.list().await?);
        }
        Ok(all)
    }

    pub async fn status(&self, name: Option<&str>) -> Result<Vec<Status>, PoolError> {
        let mut all = Vec::new();
        for pool in self.asked(name)? {
            all.push(pool.status().await?);
        }
        Ok(all)
    }

    pub async fn put_user_data(
        &self,
        name: Option<&str>,
        id: &str,
        data: &[u8],
    ) -> Result<Allocation, PoolError> {
        let allocation = self.by_id(name, id).await?;
        self.pool(Some(&allocation.pool))?
            .put_user_data(id, data)
            .await
    }

    /// Keeps the gauges fresh and lets waiting VMs join, until `end`; then stops the cleanups,
    /// which the next start resumes.
    pub async fn run(self, end: CancellationToken) {
        while end
            .run_until_cancelled(tokio::time::sleep(LOOK))
            .await
            .is_some()
        {
            let wanted = {
                let now = lock(&self.inner.wanted);
                (now.unfinished || !now.waiting.is_empty()).then(|| now.pools.clone())
            };
            if let Some(wanted) = wanted
                && let Err(error) = self.resize(&wanted).await
            {
                tracing::warn!(%error, "the pools could not be resized yet");
            }
            if let Err(error) = self.status(None).await {
                tracing::warn!(%error, "the pools can't be counted");
            }
        }
        for pool in self.pools() {
            pool.stop_cleaning();
        }
    }
}

async fn recover(pools: Vec<VmPool>, take_back: bool) -> Result<Vec<Recovered>, PoolError> {
    let mut all = Vec::new();
    for pool in pools {
        all.push(pool.recover(take_back).await?);
    }
    Ok(all)
}
