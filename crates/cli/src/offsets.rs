//! `berth offsets`: which address has which offset in a NodeIPPool.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use anyhow::bail;
use berth_core::{Address, Block, Offset};
use berth_nodes::pool::{Described, Place, PoolSpace};
use clap::Args;
use serde::Serialize;

use crate::exit::Negative;
use crate::node_pool::NodePool;
use crate::output::{self, Format, Row};
use crate::store::StoreArgs;

/// The most rows of a listing: a /8 is too long for a screen.
const MOST: usize = 4096;

#[derive(Debug, Args)]
#[command(
    override_usage = "berth offsets [OPTIONS] POOL [OFFSET|IP]...\n       berth offsets [OPTIONS] -f FILE [POOL] [OFFSET|IP]..."
)]
pub struct Offsets {
    /// A file with the NodeIPPool, or - for stdin, instead of the cluster.
    #[arg(long, short, value_name = "FILE")]
    file: Option<PathBuf>,
    /// List only allocated offsets.
    #[arg(long)]
    allocated: bool,
    /// The NodeIPPool, then offsets and addresses of it [default: all, the first 4,096].
    #[arg(value_name = "POOL, OFFSET or IP")]
    arguments: Vec<String>,
}

#[derive(Debug, Serialize)]
struct OffsetRow {
    /// `None` if the address has no offset.
    offset: Option<u64>,
    ip: String,
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    policy: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    capture: Option<String>,
}

impl Row for OffsetRow {
    const COLUMNS: &'static [&'static str] = &["offset", "ip", "state", "node", "policy"];

    fn cells(&self) -> Vec<String> {
        let offset = self.offset.map_or("-".to_owned(), |o| o.to_string());
        let text = |field: &Option<String>| field.clone().unwrap_or_default();
        vec![
            offset,
            self.ip.clone(),
            self.state.to_owned(),
            text(&self.node),
            text(&self.policy),
        ]
    }
}

impl Offsets {
    pub async fn run(&self, store: &StoreArgs, format: Format) -> anyhow::Result<()> {
        let (pool, values) = match (&self.file, self.arguments.split_first()) {
            (Some(file), _) => NodePool::of_file(file, &self.arguments)?,
            (None, Some((name, values))) => (NodePool::of_cluster(store, name).await?, values),
            (None, None) => bail!(Negative::Usage(
                "which NodeIPPool? Give its name, or a file with -f".to_owned()
            )),
        };
        let table = Lookup::new(&pool);
        let addresses = match values {
            [] if self.allocated => table.allocated(),
            [] => listed(&pool),
            values => {
                let read = values.iter().map(|value| address(&pool, value));
                read.collect::<anyhow::Result<Vec<Address>>>()?
            }
        };
        let rows = addresses.into_iter().map(|address| table.row(address));
        let rows: Vec<OffsetRow> = rows
            .filter(|row| !self.allocated || row.state == ALLOCATED)
            .collect();
        output::print(format, &rows)
    }
}

const ALLOCATED: &str = "allocated";

/// The status, by offset.
struct Lookup<'a> {
    space: &'a PoolSpace,
    held: BTreeSet<u64>,
    described: BTreeMap<u64, &'a Described>,
}

impl<'a> Lookup<'a> {
    fn new(pool: &'a NodePool) -> Lookup<'a> {
        let described = pool.recorded.described.iter();
        Lookup {
            space: &pool.space,
            held: pool.recorded.offsets.iter().collect(),
            described: described.map(|one| (one.offset, one)).collect(),
        }
    }

    fn allocated(&self) -> Vec<Address> {
        let held = self.held.iter();
        held.filter_map(|offset| self.space.address(Offset((*offset).into())))
            .collect()
    }

    fn row(&self, address: Address) -> OffsetRow {
        let place = self.space.place(address);
        let offset = place.offset().and_then(|o| u64::try_from(o.0).ok());
        let owner = offset.and_then(|offset| self.described.get(&offset));
        let held = offset.is_some_and(|offset| self.held.contains(&offset));
        let state = match place {
            _ if held => ALLOCATED,
            Place::Allocatable(_) if self.space.reserved_for(address).is_some() => "reserved",
            Place::Allocatable(_) => "free",
            other => other.word(),
        };
        let reserved = self.space.reserved_for(address).map(str::to_owned);
        OffsetRow {
            offset,
            ip: address.to_string(),
            state,
            node: owner.map(|one| one.node.clone()).or(reserved),
            policy: owner.map(|one| one.policy.clone()),
            capture: owner.map(|one| one.capture.clone()),
        }
    }
}

/// All addresses from the first to the last of each range, skipped ones too: as many as fit.
fn listed(pool: &NodePool) -> Vec<Address> {
    let of_block = |block: Block| {
        let next = move |address: &Address| address.next().filter(|next| *next <= block.last());
        std::iter::successors(Some(block.first()), next)
    };
    let mut all = pool.space.ranges().flat_map(of_block);
    let first: Vec<Address> = all.by_ref().take(MOST).collect();
    if all.next().is_some() {
        output::note(&format!(
            "NodeIPPool {} has {} offsets; these are its first {MOST} addresses. Name offsets or addresses, or list --allocated ones",
            pool.name,
            pool.space.offsets()
        ));
    }
    first
}

/// The address that an offset or an address names.
fn address(pool: &NodePool, value: &str) -> anyhow::Result<Address> {
    let last = pool.space.offsets().saturating_sub(1);
    if let Ok(offset) = value.parse::<u128>() {
        let Some(address) = pool.space.address(Offset(offset)) else {
            bail!(Negative::NotFound(format!(
                "offset {offset}: NodeIPPool {} has the offsets 0 to {last}",
                pool.name
            )));
        };
        return Ok(address);
    }
    let Ok(address) = value.parse::<Address>() else {
        bail!(Negative::Usage(format!(
            "`{value}` is neither an offset nor an address; give a number from 0 to {last}, or an address such as {}",
            pool.space
                .prefix()
                .network()
                .next()
                .unwrap_or(pool.space.prefix().network())
        )));
    };
    if pool.space.place(address) == Place::Outside {
        let ranges: Vec<String> = pool.space.ranges().map(|block| block.to_string()).collect();
        bail!(Negative::NotFound(format!(
            "{address} is not an address of NodeIPPool {}, which has {}",
            pool.name,
            ranges.join(", ")
        )));
    }
    Ok(address)
}
