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
use tokio::time::{Instant, sleep};

use super::config::{IpamConf, later};
use super::engine::{Engine, Nic, method_of, now, unrecorded};
use super::journal::{NicJournal, POOL, PREFIX, State};
use super::moves::{KEPT_AT, MOVE_OUT, is_moving};
use super::pools::{PoolInfo, at, unread, v4};
use crate::migrate::MOVE_OUT_IP;

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
        for (journal, address, row) in self.rows().await? {
            let container = row.handle.as_str();
            if valid.iter().any(|valid| valid.container_id == container) {
                continue;
            }
            let Some(found) = self.found(address, row).await? else {
                continue;
            };
            if journal
                .row(address)
                .await
                .map_err(unrecorded)?
                .is_none_or(|row| row.state == State::Absent)
            {
                continue;
            }
            if self.marker(&found).await?.is_some() {
                continue;
            }
            let nic = self.nic(&found.info).await?;
            self.detach(&nic, &found).await?;
            self.finish_detach(&nic, address, deadline).await?;
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
        for (_, address, holder) in self.rows().await? {
            if holder.handle == *container
                && let Some(found) = self.found(address, holder).await?
            {
                all.push(found);
            }
        }
        if !all.is_empty() {
            return Ok(all);
        }
        let Some(info) = self.pool_of_del(conf).await? else {
            return Ok(Vec::new());
        };
        let pool = self.load(&info).await?.pool;
        let here = |record: &Record| record.attribute(NODE) == Some(&self.node);
        for (address, record) in pool.held_under(container) {
            if let Some(address) = v4(address).filter(|_| here(record)) {
                all.push(Found {
                    info: Arc::clone(&info),
                    address,
                    holder: record.clone().with(POOL, &info.name),
                });
            }
        }
        Ok(all)
    }

    /// The pool that a container of this network would have an address of; none where that can't be: no pool was ever made.
    async fn pool_of_del(&self, conf: &IpamConf) -> Result<Option<Arc<PoolInfo>>, CniError> {
        let name = match &conf.pool {
            Some(name) => name.clone(),
            None => crate::pool::default_name(&self.site().await?.subnet),
        };
        match self.cluster.pool(&name).await.map_err(unread)? {
            None => Ok(None),
            Some(_) => self.pool_named(&name, conf.method).await.map(Some),
        }
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

    /// Every address in the node's file, with its journal.
    pub(super) async fn rows(&self) -> Result<Vec<(Arc<NicJournal>, Ipv4Addr, Record)>, CniError> {
        let mut all = Vec::new();
        for key in self.local.pools().await.map_err(unrecorded)? {
            if !key.name.starts_with(PREFIX) {
                continue;
            }
            let local = Arc::clone(&self.local);
            let journal = Arc::new(NicJournal::of_key(local, key));
            for (address, row) in journal.rows().await.map_err(unrecorded)? {
                all.push((Arc::clone(&journal), address, row.holder));
            }
        }
        Ok(all)
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
        let pool = self.load(&found.info).await?.pool;
        let record = pool.get(at(found.address));
        let record = record.filter(|record| record.owner == *owner);
        Ok(record
            .and_then(|record| record.attribute(MOVE_OUT))
            .map(str::to_owned))
    }

    /// Records the detach. The address is released when its alias is gone.
    async fn detach(&self, nic: &Nic, found: &Found) -> Result<(), CniError> {
        let (address, holder) = (found.address, &found.holder);
        let row = nic.journal.row(address).await.map_err(unrecorded)?;
        if row.is_none_or(|row| row.holder.handle != holder.handle) {
            nic.journal
                .hold(address, holder)
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
            let pool = self.load(&found.info).await?.pool;
            let Some(record) = pool.get(at(address)) else {
                return self.detach(nic, found).await;
            };
            if record.owner != found.holder.owner {
                // The move was committed: the alias is elsewhere, and nothing is left to do here but to forget it.
                return self.detach(nic, found).await;
            }
            if is_moving(record) || record.attribute(KEPT_AT).is_some() {
                return Ok(());
            }
            let next = record
                .clone()
                .with(MOVE_OUT, marker)
                .with(KEPT_AT, now().to_string());
            if self.transfer(&found.info, address, (record, &next)).await? {
                tracing::info!(%address, owner = %record.owner, "DEL: kept, the address moves to another pod");
                return Ok(());
            }
        }
    }

    /// Without an agent nobody carries the detach out later: this process does.
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
