//! Requests to the fleet, from an allocation to user data.
//!
//! Guarantees one audit line and one count per request, whatever its outcome and however many ConfigMaps it touches.

use std::net::IpAddr;
use std::time::Instant;

use berth_desk::DeskError;

use super::Fleet;
use crate::audit::{Act, Audit};
use crate::metrics::PoolMeters;
use crate::pool::{
    Allocation, Applicant, Deadline, PoolError, Returned, Status, Taken, VmPool, shown,
};
use crate::settings::DEFAULT_POOL;
use crate::shards::{self, pool_of};

impl Fleet {
    /// Runs to its end even if the caller disconnects: a VM that was recorded but not yet found ready is either
    /// returned to the caller or released.
    pub async fn allocate(
        &self,
        name: Option<&str>,
        applicant: Applicant,
    ) -> Result<Allocation, PoolError> {
        let name = self.name_of(name);
        let (fleet, pool) = (self.clone(), name.clone());
        let task = tokio::spawn(async move { fleet.allocate_from(&pool, &applicant).await });
        match task.await {
            Ok(outcome) => outcome,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // The runtime is shutting down.
                Err(_) => Err(DeskError::Closed { pool: name }.into()),
            },
        }
    }

    async fn allocate_from(
        &self,
        name: &str,
        applicant: &Applicant,
    ) -> Result<Allocation, PoolError> {
        let rules = &self.inner.rules;
        let started = Instant::now();
        let deadline = Deadline::within(rules.allocate_within);
        let audit = Audit::begin(Act::Allocate, &shown(name), &rules.node)
            .allocation(&shown(&applicant.allocation_id));
        let outcome = async {
            let shards = self.pool(Some(name))?;
            applicant.check()?;
            let shared = &self.inner.shards;
            shared.allocate(&shards, applicant, deadline).await
        }
        .await;
        self.meters(name)
            .allocated(outcome.as_ref().err(), started.elapsed());
        match &outcome {
            Ok(allocation) => audit.of(allocation).done("allocated"),
            // A refused request may have any text in its names.
            Err(error @ PoolError::Invalid { .. }) => audit.failed(error),
            Err(error) => {
                let pod = (&applicant.pod_namespace, &applicant.pod_name);
                audit.pod(pod.0, pod.1).failed(error);
            }
        }
        outcome
    }

    /// Deallocates a VM. Without a pool's name every pool is asked for the ID.
    pub async fn deallocate(
        &self,
        name: Option<&str>,
        id: &str,
        force: bool,
    ) -> Result<Returned, PoolError> {
        let asked = self.name_of(name);
        let audit = Audit::begin(Act::Deallocate, &shown(&asked), &self.inner.rules.node)
            .allocation(&shown(id));
        let outcome = self.take_back(name, id, force).await;
        let was = outcome.as_ref().ok().and_then(|(_, was)| was.as_ref());
        let pool = was.map_or(asked.as_str(), |was| pool_of(&was.pool));
        self.meters(pool).deallocated(outcome.as_ref().err());
        let audit = match was {
            Some(was) => audit.of(was).pool(pool),
            None => audit,
        };
        match outcome {
            Ok((returned, _)) => {
                audit.done(match returned {
                    Returned::Nothing => "nothing held",
                    Returned::Released => "released",
                    Returned::Quarantined => "quarantined",
                });
                Ok(returned)
            }
            Err(error) => {
                audit.failed(&error);
                Err(error)
            }
        }
    }

    async fn take_back(
        &self,
        name: Option<&str>,
        id: &str,
        force: bool,
    ) -> Result<Taken, PoolError> {
        let shards = match name {
            Some(_) => self.pool(name)?,
            None if self.names().len() == 1 => self.pool(None)?,
            None => {
                // An allocation under way has no record yet by which its pool could be found.
                self.inner.shards.cancel(&self.asked(None)?, id).await?;
                let found = self.find(None, |pool| async move { pool.by_id(id).await });
                match found.await? {
                    Some((pool, _)) => self.pool(Some(pool_of(pool.name())))?,
                    None => return Ok((Returned::Nothing, None)),
                }
            }
        };
        self.inner.shards.deallocate(&shards, id, force).await
    }

    /// The pool of a request: the named one, the only one, or the default one.
    pub(super) fn name_of(&self, name: Option<&str>) -> String {
        match (name, self.names().as_slice()) {
            (Some(name), _) => name.into(),
            (None, [only]) => only.clone(),
            (None, _) => DEFAULT_POOL.into(),
        }
    }

    /// An unknown pool has no metrics of its own: clients could invent names.
    fn meters(&self, pool: &str) -> PoolMeters {
        let is_known = self.names().iter().any(|name| name == pool);
        self.inner.metrics.of(if is_known { pool } else { "" })
    }

    pub async fn by_id(&self, name: Option<&str>, id: &str) -> Result<Allocation, PoolError> {
        let found = self
            .find(name, |pool| async move { pool.by_id(id).await })
            .await?;
        let (_, allocation) = found.ok_or_else(|| PoolError::UnknownAllocation(id.into()))?;
        Ok(shards::named(allocation))
    }

    pub async fn by_ip(&self, ip: IpAddr) -> Result<Allocation, PoolError> {
        let found = self
            .find(None, |pool| async move { pool.by_ip(ip).await })
            .await?;
        let (_, allocation) = found.ok_or(PoolError::UnknownIp(ip))?;
        Ok(shards::named(allocation))
    }

    /// The result of the first pool that has one. A pool that can't be read is an error: it might have the result.
    async fn find<F>(
        &self,
        name: Option<&str>,
        ask: impl Fn(VmPool) -> F,
    ) -> Result<Option<(VmPool, Allocation)>, PoolError>
    where
        F: Future<Output = Result<Allocation, PoolError>>,
    {
        for pool in self.asked(name)? {
            match ask(pool.clone()).await {
                Ok(allocation) => return Ok(Some((pool, allocation))),
                Err(PoolError::UnknownAllocation(_) | PoolError::UnknownIp(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    pub async fn list(&self, name: Option<&str>) -> Result<Vec<Allocation>, PoolError> {
        let mut all = Vec::new();
        for pool in self.asked(name)? {
            all.extend(pool.list().await?.into_iter().map(shards::named));
        }
        Ok(all)
    }

    pub async fn status(&self, name: Option<&str>) -> Result<Vec<Status>, PoolError> {
        let mut all = Vec::new();
        for pool in self.asked(name)? {
            all.push(pool.status().await?);
        }
        Ok(shards::merged(all))
    }

    /// Writes the user data of the allocation's VM.
    pub async fn put_user_data(
        &self,
        name: Option<&str>,
        id: &str,
        data: &[u8],
    ) -> Result<Allocation, PoolError> {
        let audit = Audit::begin(
            Act::UserData,
            &shown(&self.name_of(name)),
            &self.inner.rules.node,
        )
        .allocation(&shown(id));
        let outcome = async {
            let found = self.find(name, |pool| async move { pool.by_id(id).await });
            let (pool, _) = found
                .await?
                .ok_or_else(|| PoolError::UnknownAllocation(id.into()))?;
            pool.put_user_data(id, data).await.map(shards::named)
        }
        .await;
        match &outcome {
            Ok(allocation) => audit.of(allocation).pool(&allocation.pool).done("written"),
            Err(error) => audit.failed(error),
        }
        outcome
    }
}
