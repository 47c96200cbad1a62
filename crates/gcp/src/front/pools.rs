//! The IPPool of a network, and its desk.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use berth_cni::{CniError, Code};
use berth_core::{Address, Answer, Prefix, Record, Refusal, Request, Space};
use berth_desk::DeskError;
use berth_ledger::{LedgerError, PoolKey, Snapshot};
use ipnet::Ipv4Net;

use super::cluster::ReadError;
use super::config::{IpamConf, Method, invalid, later};
use super::engine::Engine;
use super::site::{Site, partial};
use crate::pool;

/// How long a pool's settings are good: cidr, subnet and range hardly ever change, and a commit is refused under another cidr.
const FRESH: Duration = Duration::from_secs(300);

/// What an IPPool's spec says besides its allocations.
#[derive(Clone, Debug)]
pub struct PoolInfo {
    pub name: String,
    pub key: PoolKey,
    pub cidr: Ipv4Net,
    pub subnet: String,
    /// None: the subnet's primary range, with reserved addresses.
    pub range: Option<String>,
    pub space: Arc<Space>,
}

impl PoolInfo {
    pub fn gateway(&self) -> Ipv4Addr {
        pool::gateway(self.cidr)
    }

    /// The region in the subnet's path.
    pub fn region(&self) -> &str {
        let mut parts = self.subnet.split('/');
        parts.find(|part| *part == "regions");
        parts.next().unwrap_or_default()
    }
}

pub fn at(address: Ipv4Addr) -> Address {
    Address::from(IpAddr::from(address))
}

pub fn v4(address: Address) -> Option<Ipv4Addr> {
    match IpAddr::from(address) {
        IpAddr::V4(address) => Some(address),
        IpAddr::V6(_) => None,
    }
}

impl Engine {
    /// The pool of a network on this VM.
    pub(super) async fn pool(
        &self,
        conf: &IpamConf,
        site: &Site,
    ) -> Result<Arc<PoolInfo>, CniError> {
        let name = match &conf.pool {
            Some(name) => name.clone(),
            None => pool::default_name(&site.subnet),
        };
        let info = self.pool_named(&name, conf.method).await?;
        if partial(&info.subnet) != site.subnet {
            let message = format!(
                "IPPool {name}: spec.subnet is '{}', and {} of this node is in '{}'",
                info.subnet,
                super::site::NIC,
                site.subnet
            );
            return Err(invalid(
                message,
                "name the pool of this node's subnet in ipam.ipPoolName, or run `berth gcp provision` for it",
            ));
        }
        Ok(info)
    }

    /// A pool by its name; its settings are read now and then.
    pub(super) async fn pool_named(
        &self,
        name: &str,
        method: Method,
    ) -> Result<Arc<PoolInfo>, CniError> {
        let kept = self.infos.lock().get(name).cloned();
        if let Some((info, read)) = kept
            && read.elapsed() < FRESH
        {
            return Ok(info);
        }
        let object = self.cluster.pool(name).await.map_err(unread)?;
        let Some(object) = object else {
            return Err(invalid(
                format!("IPPool {name} does not exist"),
                "run `berth gcp provision`, or name an IPPool that exists in ipam.ipPoolName",
            ));
        };
        let info = Arc::new(info(name, &object, method)?);
        for finding in pool::decode(&object)
            .map(|read| read.findings)
            .unwrap_or_default()
        {
            tracing::warn!(pool = name, "{finding}");
        }
        let entry = (Arc::clone(&info), Instant::now());
        self.infos.lock().insert(name.to_owned(), entry);
        Ok(info)
    }

    /// Reads the pool's settings again with the next call.
    pub(super) fn forget_pool(&self, name: &str) {
        self.infos.lock().remove(name);
    }

    /// The allocations, by a quorum read.
    pub(super) async fn load(&self, info: &PoolInfo) -> Result<Snapshot, CniError> {
        self.desks.ledger().load(&info.key).await.map_err(unloaded)
    }

    pub(super) async fn ask(&self, info: &PoolInfo, request: Request) -> Result<Answer, CniError> {
        let answer = self.desks.of(&info.key).submit(request).await;
        answer.map_err(undone)
    }

    /// Replaces the record of an address; false if the holder is another one by now.
    pub(super) async fn transfer(
        &self,
        info: &PoolInfo,
        address: Ipv4Addr,
        (expected, record): (&Record, &Record),
    ) -> Result<bool, CniError> {
        let request = Request::Reown {
            address: at(address),
            expected: expected.clone(),
            record: record.clone(),
        };
        let answer = self.direct.of(&info.key).submit(request).await;
        match answer.map_err(undone)? {
            Answer::Reowned => Ok(true),
            _ => Ok(false),
        }
    }
}

fn info(name: &str, object: &serde_json::Value, method: Method) -> Result<PoolInfo, CniError> {
    let read = pool::decode(object).map_err(|error| {
        invalid(
            format!("IPPool {name}: {error}"),
            "correct the field; `berth gcp provision` writes it as the subnet's range is",
        )
    })?;
    let space = pool::space(read.cidr);
    if space.count() == 0 {
        return Err(invalid(
            format!(
                "IPPool {name}: spec.cidr {} has no address for a pod",
                read.cidr
            ),
            "a pool needs at least a /30; `berth gcp provision` makes a /16",
        ));
    }
    let network = at(read.cidr.network());
    let network = Prefix::containing(network, read.cidr.prefix_len());
    Ok(PoolInfo {
        name: name.to_owned(),
        key: pool::key(name, network),
        cidr: read.cidr,
        subnet: read.subnet,
        range: (method == Method::SecondaryRange).then_some(read.range),
        space: Arc::new(space),
    })
}

/// What the runtime is told of a read that failed.
pub(super) fn unread(error: ReadError) -> CniError {
    let remedy = match error.forbidden {
        true => "grant the agent what deploy/gcp/agent-rbac.yaml does",
        false => "it passes by itself when the API server answers",
    };
    later(error.to_string(), remedy)
}

pub(super) fn unloaded(error: LedgerError) -> CniError {
    let text = berth_ledger::chain(&error);
    match &error {
        LedgerError::Unreadable { .. } => invalid(text, "correct the IPPool; it is left as it is"),
        LedgerError::Full { .. } => later(text, "addresses of pods that end make room"),
        _ => later(text, "it passes by itself when the API server answers"),
    }
}

pub(super) fn undone(error: DeskError) -> CniError {
    let text = error.to_string();
    match error.ledger() {
        Some(LedgerError::Unreadable { .. }) => {
            invalid(text, "correct the IPPool; it is left as it is")
        }
        _ => later(text, "the runtime tries again"),
    }
}

/// Why an address was not allocated.
pub(super) fn unallocated(info: &PoolInfo, refusal: &Refusal) -> CniError {
    let name = &info.name;
    match refusal {
        Refusal::Exhausted { .. } => later(
            format!(
                "IPPool {name} ({}) is exhausted: every address but the gateway {} is allocated or cooling down",
                info.cidr,
                info.gateway()
            ),
            "addresses of pods that end become free; `berth gcp check` lists leaked ones",
        ),
        Refusal::Resting { .. } | Refusal::Held { .. } | Refusal::Avoided { .. } => {
            later(format!("IPPool {name}: {refusal}"), "it passes by itself")
        }
        other => CniError::new(Code::Internal, format!("IPPool {name}: {other}")),
    }
}
