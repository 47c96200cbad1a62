//! The IPPool of a network with its pages, and their desks.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use berth_cni::{CniError, Code};
use berth_core::{Address, Answer, Owner, Pool, Prefix, Record, Refusal, Request, Space};
use berth_desk::DeskError;
use berth_ledger::{LedgerError, PoolKey};
use ipnet::Ipv4Net;

use super::cluster::ReadError;
use super::config::{IpamConf, Method, invalid, later};
use super::engine::Engine;
use super::site::{Site, partial};
use crate::pool::{self, pages};

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
    /// What the pool's own object keeps: all that no page has.
    pub space: Arc<Space>,
    pub pages: Vec<Page>,
}

/// An object that keeps one block of a large pool.
#[derive(Clone, Debug)]
pub struct Page {
    pub block: Ipv4Net,
    pub key: PoolKey,
    pub space: Arc<Space>,
}

impl PoolInfo {
    pub fn gateway(&self) -> Ipv4Addr {
        pool::gateway(self.cidr)
    }

    /// The object that keeps an address, and which addresses it keeps.
    pub fn part_of(&self, address: Ipv4Addr) -> (&PoolKey, &Arc<Space>) {
        let page = self.pages.iter().find(|page| page.block.contains(&address));
        page.map_or((&self.key, &self.space), |page| (&page.key, &page.space))
    }

    pub fn method(&self) -> Method {
        match self.range {
            Some(_) => Method::SecondaryRange,
            None => Method::Static,
        }
    }

    pub fn keys(&self) -> impl Iterator<Item = &PoolKey> {
        [&self.key]
            .into_iter()
            .chain(self.pages.iter().map(|page| &page.key))
    }

    /// The objects in the order in which a pod's address is looked for: the same for every try of one pod, and another for other
    /// pods, so that pages fill alike. The pool's own object is full where there are pages.
    pub fn parts_for(&self, owner: &Owner) -> Vec<(&PoolKey, &Arc<Space>)> {
        let mut parts: Vec<_> = self
            .pages
            .iter()
            .map(|page| (&page.key, &page.space))
            .collect();
        if !parts.is_empty() {
            let first = owner.part.bytes().map(usize::from).sum::<usize>() % parts.len();
            parts.rotate_left(first);
        }
        parts.push((&self.key, &self.space));
        parts
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
        if let Some(info) = self.fresh_info(name, method) {
            return Ok(info);
        }
        let _reading = self.reading.lock().await;
        if let Some(info) = self.fresh_info(name, method) {
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
        self.infos.lock().insert((name.to_owned(), method), entry);
        Ok(info)
    }

    fn fresh_info(&self, name: &str, method: Method) -> Option<Arc<PoolInfo>> {
        let infos = self.infos.lock();
        let (info, read) = infos.get(&(name.to_owned(), method))?;
        (read.elapsed() < FRESH).then(|| Arc::clone(info))
    }

    /// Reads the pool's settings again with the next call.
    pub(super) fn forget_pool(&self, name: &str) {
        self.infos.lock().retain(|(known, _), _| known != name);
    }

    /// All allocations of the pool, by quorum reads.
    pub(super) async fn load(&self, info: &PoolInfo) -> Result<Pool, CniError> {
        let mut all = Pool::new();
        for key in info.keys() {
            let read = self.desks.ledger().load(key).await.map_err(unloaded)?.pool;
            if info.pages.is_empty() {
                return Ok(read);
            }
            for (address, record) in read.records() {
                all.restore(address, record.clone());
            }
        }
        Ok(all)
    }

    /// The allocation of one address, by a quorum read.
    pub(super) async fn holder(
        &self,
        info: &PoolInfo,
        address: Ipv4Addr,
    ) -> Result<Option<Record>, CniError> {
        let (key, _) = info.part_of(address);
        let read = self.desks.ledger().load(key).await.map_err(unloaded)?;
        Ok(read.pool.get(at(address)).cloned())
    }

    /// Asks the object that keeps the address.
    pub(super) async fn ask(
        &self,
        info: &PoolInfo,
        address: Ipv4Addr,
        request: Request,
    ) -> Result<Answer, CniError> {
        let (key, _) = info.part_of(address);
        let answer = self.desks.of(key).submit(request).await;
        answer.map_err(|error| self.unanswered(info, error))
    }

    /// Pages may have been made since the settings were read: they are read again with the next call.
    pub(super) fn unanswered(&self, info: &PoolInfo, error: DeskError) -> CniError {
        if matches!(error.ledger(), Some(LedgerError::Moved { .. })) {
            self.forget_pool(&info.name);
        }
        undone(error)
    }

    /// Replaces the record of an address; false if the holder is another one by now.
    pub(super) async fn transfer(
        &self,
        info: &PoolInfo,
        address: Ipv4Addr,
        (expected, record): (&Record, &Record),
    ) -> Result<bool, CniError> {
        let request = Request::Transfer {
            address: at(address),
            expected: expected.clone(),
            record: record.clone(),
        };
        match self.ask(info, address, request).await? {
            Answer::Transferred => Ok(true),
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
    if let Some(page_of) = &read.page_of {
        return Err(invalid(
            format!("IPPool {name} is a page of IPPool {}", page_of.pool),
            format!("name {} in ipam.ipPoolName", page_of.pool),
        ));
    }
    // Which object keeps an address must be known. Any other finding stops the writes of its own object; what ends in a page is
    // released all the same.
    let unlisted = pages::page_of(object).err();
    if let Some(why) = unlisted.or_else(|| pages::pages_of(object).err()) {
        return Err(invalid(
            format!("IPPool {name}: {why}"),
            "`berth gcp check` shows what the pool, the aliases and the pods say",
        ));
    }
    let space = pages::space_of(read.cidr, None, &read.pages);
    if pool::space(read.cidr).count() == 0 {
        return Err(invalid(
            format!(
                "IPPool {name}: spec.cidr {} has no address for a pod",
                read.cidr
            ),
            "a pool needs at least a /30; `berth gcp provision` makes a /16",
        ));
    }
    let network = |cidr: Ipv4Net| Prefix::containing(at(cidr.network()), cidr.prefix_len());
    let page = |block: &Ipv4Net| Page {
        block: *block,
        key: pool::key(&pages::name_of(name, *block), network(*block)),
        space: Arc::new(pages::space_of(read.cidr, Some(*block), &read.pages)),
    };
    Ok(PoolInfo {
        name: name.to_owned(),
        key: pool::key(name, network(read.cidr)),
        pages: read.pages.keys().map(page).collect(),
        cidr: read.cidr,
        subnet: read.subnet,
        range: (method == Method::SecondaryRange).then_some(read.range),
        space: Arc::new(space),
    })
}

/// The answer to the runtime after a read that failed.
pub(super) fn unread(error: ReadError) -> CniError {
    let remedy = match error.is_forbidden() {
        true => "grant the agent what deploy/gcp/agent/rbac.yaml does",
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
        Refusal::CoolingDown { .. } | Refusal::Held { .. } | Refusal::Avoided { .. } => {
            later(format!("IPPool {name}: {refusal}"), "it passes by itself")
        }
        other => CniError::new(Code::Internal, format!("IPPool {name}: {other}")),
    }
}
