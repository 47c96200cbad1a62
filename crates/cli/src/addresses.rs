//! `berth addresses` and `berth who`.

use anyhow::bail;
use berth_core::{Address, Record};
use berth_ledger::{PoolKey, SharedLedger};
use clap::Args;
use serde::Serialize;

use crate::exit::Negative;
use crate::output::{self, Format, Row};

#[derive(Debug, Args)]
pub struct Addresses {
    /// Only this pool's.
    #[arg(long)]
    pool: Option<String>,
}

#[derive(Debug, Args)]
pub struct Who {
    /// The address.
    address: Address,
}

#[derive(Debug, Serialize)]
pub struct AddressRow {
    address: String,
    pool: String,
    owner: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    interface: String,
    handle: String,
    #[serde(skip_serializing_if = "std::collections::BTreeMap::is_empty")]
    attributes: std::collections::BTreeMap<String, String>,
}

impl Row for AddressRow {
    const COLUMNS: &'static [&'static str] =
        &["address", "owner", "interface", "container", "pool"];

    fn cells(&self) -> Vec<String> {
        // Container ids are 64 digits; people compare the first twelve.
        let handle: String = self.handle.chars().take(12).collect();
        vec![
            self.address.clone(),
            self.owner.clone(),
            self.interface.clone(),
            handle,
            self.pool.clone(),
        ]
    }
}

impl AddressRow {
    pub fn new(pool: &PoolKey, address: Address, record: &Record) -> Self {
        Self {
            address: address.to_string(),
            pool: pool.name.clone(),
            owner: record.owner.subject.clone(),
            interface: record.owner.part.clone(),
            handle: record.handle.to_string(),
            attributes: record.attributes.clone(),
        }
    }
}

impl Addresses {
    pub async fn run(&self, ledger: SharedLedger, format: Format) -> anyhow::Result<()> {
        let mut rows = Vec::new();
        let mut seen = false;
        for key in ledger.pools().await? {
            if self.pool.as_ref().is_some_and(|name| *name != key.name) {
                continue;
            }
            seen = true;
            let pool = ledger.load(&key).await?.pool;
            let all = pool.records().chain(pool.rivals());
            rows.extend(all.map(|(address, record)| AddressRow::new(&key, address, record)));
        }
        if let (Some(name), false) = (&self.pool, seen) {
            bail!(Negative::NotFound(format!(
                "there is no pool `{name}`; `berth pools` lists them"
            )));
        }
        output::print(format, &rows)
    }
}

/// Every holder of an address, in all pools.
pub async fn holders(
    ledger: &SharedLedger,
    address: Address,
) -> anyhow::Result<Vec<(PoolKey, Record)>> {
    let mut found = Vec::new();
    for key in ledger.pools().await? {
        if key
            .network
            .is_some_and(|network| !network.contains(address))
        {
            continue;
        }
        let pool = ledger.load(&key).await?.pool;
        found.extend(
            pool.holders(address)
                .map(|record| (key.clone(), record.clone())),
        );
    }
    Ok(found)
}

impl Who {
    pub async fn run(&self, ledger: SharedLedger, format: Format) -> anyhow::Result<()> {
        let found = holders(&ledger, self.address).await?;
        if found.is_empty() {
            bail!(Negative::NotFound(format!("nobody holds {}", self.address)));
        }
        let rows: Vec<AddressRow> = found
            .iter()
            .map(|(pool, record)| AddressRow::new(pool, self.address, record))
            .collect();
        output::print(format, &rows)
    }
}
