//! DEL and GC: an address whose container is gone is detached, then released.
//!
//! Guarantees: DEL answers when the detach is recorded; it needs neither the Pod nor a network namespace; an address that is
//! marked to move away is kept with its alias; only the container's own address goes (I6).

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use berth_cni::CniError;
use berth_cni::call::Target;
use berth_cni::conf::Attachment;
use berth_core::{Handle, NODE, Record};
use serde_json::Value;
use tokio::time::{Instant, sleep};

use super::config::{IpamConf, later};
use super::engine::{Engine, Nic, method_of, now, unrecorded};
use super::journal::{FoundRow, POOL, State, holder, is_of_nic};
use super::moves::is_moving;
use super::pools::{PoolInfo, unloaded, unread, v4};
use crate::migrate::MOVE_OUT_IP;
use crate::pool::attributes::{KEPT_AT, MOVE_OUT};
use crate::pool::default_name;
use crate::pool::pages::page_of;

/// What a DEL did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Deleted {
    Done,
    /// The container has no address of a pool: it is from before the switch, or the predecessor's.
    Unknown,
}

/// An address of a container.
#[derive(Clone, Debug)]
struct Found {
    info: Arc<PoolInfo>,
    address: Ipv4Addr,
    holder: Record,
}

impl Engine {
    pub(super) async fn del(
        self: &Arc<Self>,
        target: &Target,
        conf: &IpamConf,
        deadline: Instant,
    ) -> Result<Deleted, CniError> {
        let container = Handle::new(target.container_id.as_str());
        let found = self.addresses_of(&container, conf).await?;
        if found.is_empty() {
            return Ok(Deleted::Unknown);
        }
        for one in &found {
            let marker = self.marker(one).await?;
            let nic = self.nic(&one.info).await?;
            match marker {
                Some(marker) => self.keep(&nic, one, &marker).await?,
                None => self.detach(&nic, one).await?,
            }
            self.finish_detach(&nic, one.address, deadline).await?;
        }
        Ok(Deleted::Done)
    }

    /// Detaches what none of the valid attachments has.
    pub(super) async fn gc(
        self: &Arc<Self>,
        valid: &[Attachment],
        deadline: Instant,
    ) -> Result<usize, CniError> {
        let mut gone = 0;
        for FoundRow { item, row, .. } in self.all_rows().await? {
            let container = row.holder.handle.as_str();
            let lives = valid.iter().any(|valid| valid.container_id == container);
            if lives || row.state == State::Absent {
                continue;
            }
            let Some(found) = self.found(item, row.holder).await? else {
                continue;
            };
            if self.marker(&found).await?.is_some() {
                continue;
            }
            let nic = self.nic(&found.info).await?;
            self.detach(&nic, &found).await?;
            self.finish_detach(&nic, found.address, deadline).await?;
            gone += 1;
        }
        Ok(gone)
    }

    /// The node's own file says it; else the pool, for what was attached without it.
    async fn addresses_of(
        &self,
        container: &Handle,
        conf: &IpamConf,
    ) -> Result<Vec<Found>, CniError> {
        let mut all = Vec::new();
        let held = self.attachments()?.held_under(container).await;
        let held = held.map_err(unrecorded)?.into_iter().filter(is_of_nic);
        for FoundRow { item, row, .. } in held {
            all.extend(self.found(item, row.holder).await?);
        }
        if !all.is_empty() {
            return Ok(all);
        }
        let here = |record: &Record| record.attribute(NODE) == Some(&self.node);
        let is_named = self.names_pool(conf);
        for info in self.pools_of_del(conf).await? {
            let pool = match self.load(&info).await {
                Ok(pool) => pool,
                Err(error) if is_named => return Err(error),
                Err(error) => {
                    unsearched(&info.name, &error);
                    continue;
                }
            };
            for (address, record) in pool.held_under(container) {
                if let Some(address) = v4(address).filter(|_| here(record)) {
                    all.push(Found {
                        info: Arc::clone(&info),
                        address,
                        holder: holder(record, &info.name),
                    });
                }
            }
        }
        Ok(all)
    }

    /// Whether the network, or this VM's subnet, names the pool. Any other pool is searched only in case: where it can't be
    /// read, the DEL of another network's pod goes on, and the collector frees what the pod may have had there.
    fn names_pool(&self, conf: &IpamConf) -> bool {
        conf.pool.is_some() || self.known_site().is_some()
    }

    /// The pools that a container of this network could have an address of; none where no pool was ever made.
    async fn pools_of_del(&self, conf: &IpamConf) -> Result<Vec<Arc<PoolInfo>>, CniError> {
        let names = match (&conf.pool, self.known_site()) {
            (Some(name), _) => vec![name.clone()],
            (None, Some(site)) => vec![default_name(&site.subnet)],
            // Which subnet this VM is in would be a call of the cloud, for a node that may have no such pods.
            (None, None) => {
                let keys = self.desks.ledger().pools().await.map_err(unloaded)?;
                keys.into_iter().map(|key| key.name).collect()
            }
        };
        let mut infos = Vec::new();
        for name in names {
            let object = self.cluster.pool(&name).await.map_err(unread)?;
            let is_pool = |object: &Value| !matches!(page_of(object), Ok(Some(_)));
            if object.as_ref().is_some_and(is_pool) {
                match self.pool_named(&name, conf.method).await {
                    Ok(info) => infos.push(info),
                    Err(error) if self.names_pool(conf) => return Err(error),
                    Err(error) => unsearched(&name, &error),
                }
            }
        }
        Ok(infos)
    }

    async fn found(&self, address: Ipv4Addr, holder: Record) -> Result<Option<Found>, CniError> {
        let Some(name) = holder.attribute(POOL) else {
            return Ok(None);
        };
        let info = self.pool_named(name, method_of(&holder)).await?;
        Ok(Some(Found {
            info,
            address,
            holder,
        }))
    }

    /// Every address that the node's file has on a NIC.
    pub(super) async fn all_rows(&self) -> Result<Vec<FoundRow<Ipv4Addr>>, CniError> {
        let mut rows = self.attachments()?.all().await.map_err(unrecorded)?;
        rows.retain(is_of_nic);
        Ok(rows)
    }

    /// The marker of the container's pod: as its object says, else as the node or the allocation has recorded it.
    async fn marker(&self, found: &Found) -> Result<Option<String>, CniError> {
        let owner = &found.holder.owner;
        let (namespace, name) = owner.subject.split_once('/').unwrap_or_default();
        let seen = self.cluster.pod(namespace, name).await.map_err(unread)?;
        if let Some(pod) = seen.filter(|pod| pod.uid == owner.part) {
            return Ok(pod.annotation(MOVE_OUT_IP).map(str::to_owned));
        }
        if let Some(recorded) = found.holder.attribute(MOVE_OUT) {
            return Ok(Some(recorded.to_owned()));
        }
        let record = self.holder(&found.info, found.address).await?;
        let record = record.filter(|record| record.owner == *owner);
        Ok(record.and_then(|record| record.attribute(MOVE_OUT).map(str::to_owned)))
    }

    /// Records the detach. The address is released when its alias is gone.
    async fn detach(&self, nic: &Nic, found: &Found) -> Result<(), CniError> {
        let (address, holder) = (found.address, &found.holder);
        let row = nic.journal.row(&address).await.map_err(unrecorded)?;
        if row.is_none_or(|row| row.holder.handle != holder.handle) {
            nic.journal
                .hold(&address, holder)
                .await
                .map_err(unrecorded)?;
        }
        let recorded = nic.reconciler.detach(address).await;
        recorded.map_err(|error| later(error.to_string(), "the runtime tries again"))?;
        tracing::info!(%address, owner = %holder.owner, pool = found.info.name, "DEL: the detach is recorded");
        Ok(())
    }

    /// Keeps address and alias for the pod that they move to, and records since when.
    async fn keep(&self, nic: &Nic, found: &Found, marker: &str) -> Result<(), CniError> {
        let address = found.address;
        loop {
            let Some(record) = self.holder(&found.info, address).await? else {
                return self.detach(nic, found).await;
            };
            if record.owner != found.holder.owner {
                // The move was committed: the alias is elsewhere, and nothing is left to do here but to forget it.
                return self.detach(nic, found).await;
            }
            if is_moving(&record) || record.attribute(KEPT_AT).is_some() {
                return Ok(());
            }
            let next = record
                .clone()
                .with(MOVE_OUT, marker)
                .with(KEPT_AT, now().to_string());
            if self
                .transfer(&found.info, address, (&record, &next))
                .await?
            {
                tracing::info!(%address, owner = %record.owner, "DEL: kept, the address moves to another pod");
                return Ok(());
            }
        }
    }

    /// Without an agent this process carries the detach out before it answers.
    pub(super) async fn finish_detach(
        &self,
        nic: &Nic,
        address: Ipv4Addr,
        deadline: Instant,
    ) -> Result<(), CniError> {
        while self.daemon.is_none() {
            let status = nic.reconciler.status().await;
            let Some(status) = status.filter(|status| status.absent.contains(&address)) else {
                return Ok(());
            };
            if Instant::now() >= deadline {
                let why = status.last_failure.unwrap_or_default();
                return Err(later(
                    format!("{address} is not detached yet: {why}"),
                    "the detach is recorded; the next call or the agent resumes it",
                ));
            }
            sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }
}

fn unsearched(pool: &str, error: &CniError) {
    tracing::warn!(
        pool,
        error = error.msg,
        "not searched for the address of a pod that ends"
    );
}
