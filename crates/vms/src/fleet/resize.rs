//! Pools that appear, grow, shrink and close while requests run.
//!
//! Guarantees: a pool serves only after its recovery at the start, whenever it is first opened; a change that failed
//! is tried again until it succeeds, and the fleet is not ready until then.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use super::Fleet;
use crate::audit::{Act, Audit};
use crate::pool::{PoolError, VmPool};
use crate::settings::PoolSettings;
use crate::shards::{self, pool_of};

/// The settings' pools, and what could not be applied yet.
#[derive(Debug, Default)]
pub(super) struct Wanted {
    pub(super) pools: Vec<PoolSettings>,
    /// The pools of the last change that succeeded.
    done: Vec<PoolSettings>,
    /// VMs that another pool's owner still has.
    waiting: BTreeSet<IpAddr>,
    /// Whether the last change of sizes is incomplete.
    unfinished: bool,
    /// Why the last attempt failed.
    failed: Option<String>,
    /// The last edit of the settings that could not be used.
    problem: Option<String>,
}

impl Wanted {
    /// The pools, if some change is still to be applied.
    pub(super) fn to_do(&self) -> Option<Vec<PoolSettings>> {
        (self.unfinished || !self.waiting.is_empty()).then(|| self.pools.clone())
    }

    /// Why the pools differ from the settings.
    pub(super) fn failed(&self) -> Option<&str> {
        self.failed.as_deref()
    }

    pub(super) const fn is_done(&self) -> bool {
        !self.unfinished
    }
}

impl Fleet {
    /// Sets the pools. Addresses that another pool's owner still has wait. A failure is remembered: [`Fleet::run`]
    /// tries again, and until then the fleet is not ready.
    pub async fn resize(&self, wanted: &[PoolSettings]) -> Result<(), PoolError> {
        let _one_at_a_time = self.inner.resizing.lock().await;
        let before = {
            let mut now = self.inner.wanted.lock();
            now.unfinished = true;
            if now.pools != wanted {
                now.pools = wanted.to_vec();
                now.problem = None;
            }
            now.done.clone()
        };
        let outcome = self.change_sizes(&before, wanted).await;
        let mut now = self.inner.wanted.lock();
        match outcome {
            Ok(waiting) => {
                now.waiting = waiting;
                now.done = wanted.to_vec();
                now.failed = None;
                now.unfinished = false;
                Ok(())
            }
            Err(error) => {
                now.failed = Some(error.to_string());
                Err(error)
            }
        }
    }

    /// Applies the sizes and returns the VMs that must wait.
    async fn change_sizes(
        &self,
        before: &[PoolSettings],
        wanted: &[PoolSettings],
    ) -> Result<BTreeSet<IpAddr>, PoolError> {
        for pool in wanted {
            self.open(pool);
        }
        self.agree(wanted).await?;
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
            self.begin(&pool).await?;
            let size = |pools: &[PoolSettings]| {
                let of = pools.iter().find(|settings| settings.name == pool.name());
                of.map_or(0, |settings| settings.ips.len())
            };
            if size(before) != size(wanted) {
                Audit::begin(Act::Resize, pool.name(), &self.inner.rules.node).done(&format!(
                    "{} VMs, {} before",
                    size(wanted),
                    size(before)
                ));
            }
        }
        Ok(waiting)
    }

    /// All agents must spread a pool over the same number of ConfigMaps.
    async fn agree(&self, wanted: &[PoolSettings]) -> Result<(), PoolError> {
        let shards = self.pools();
        for pool in wanted.iter().filter(|pool| !pool.name.contains('/')) {
            let of_pool = |shard: &&VmPool| pool_of(shard.name()) == pool.name;
            let shards: Vec<&VmPool> = shards.iter().filter(of_pool).collect();
            shards::agree(&shards, self.inner.configmap_count).await?;
        }
        Ok(())
    }

    /// The recovery of a start, once for each pool and before it serves: this process has allocated nothing from it
    /// yet.
    async fn begin(&self, pool: &VmPool) -> Result<(), PoolError> {
        if self.inner.started.lock().contains(pool.name()) {
            return Ok(());
        }
        let at_start = *self.inner.at_start.lock();
        if let Some(recovery) = at_start {
            pool.recover(recovery).await?;
        }
        self.inner.started.lock().insert(pool.name().into());
        Ok(())
    }

    fn open(&self, settings: &PoolSettings) {
        let mut pools = self.inner.pools.write();
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

    /// Refuses requests to a pool that does not serve yet.
    pub(super) fn check_started(&self, pools: &[VmPool]) -> Result<(), PoolError> {
        let started = self.inner.started.lock();
        let Some(waits) = pools.iter().find(|pool| !started.contains(pool.name())) else {
            return Ok(());
        };
        let why = match self.inner.wanted.lock().failed() {
            Some(why) => format!("pool {:?}: {why}", pool_of(waits.name())),
            None => format!("pool {:?} was not read yet", pool_of(waits.name())),
        };
        Err(PoolError::Starting { why })
    }

    /// An edit of the settings that can't be used: the old settings stay, and the problem is shown.
    pub fn refuse_edit(&self, problem: String) {
        tracing::error!(problem, "the edited settings are not used");
        self.inner.wanted.lock().problem = Some(problem);
    }

    /// Why the last edit of the settings is not used, or not yet.
    pub fn problem(&self) -> Option<String> {
        let now = self.inner.wanted.lock();
        now.problem.clone().or_else(|| now.failed.clone())
    }

    /// VMs that join a pool once another pool has released them.
    pub fn waiting(&self) -> Vec<IpAddr> {
        self.inner.wanted.lock().waiting.iter().copied().collect()
    }
}
