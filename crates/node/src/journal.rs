//! Records which addresses of the cluster's pools this node's containers hold, by network.
//!
//! A pool in the cluster records which pod holds an address, but not its network or node. CNI GC may release only
//! what is of its network and of this node: this journal proves that (I4). It is evidence and not a pool: a missing
//! entry is left to the sweep over the cluster's pods; a stale one leads to a record that has another holder by now,
//! which is not released (I6). Writes are durable, and waiting ones share one transaction.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_core::{Address, Handle, Owner, Prefix, Record};
use berth_ledger::{GroupWriter, LedgerError, PoolKey, SqliteFailure, SqliteLedger};
use rusqlite::{Connection, Row, params};

/// The journal's pools in a file of an earlier version that could not be read.
pub const OLD_POOLS: &str = crate::tables::OLD_JOURNAL;

/// The journal in the node's file.
#[derive(Clone, Debug)]
pub struct Journal {
    ledger: SqliteLedger,
    writer: GroupWriter,
}

/// An address that a container of this node holds, and the pool that it is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub pool: PoolKey,
    pub address: Address,
    pub record: Record,
}

const COLUMNS: &str = "network, address, pool, pool_network, subject, part, handle, attributes";

impl Journal {
    pub(crate) fn new(ledger: SqliteLedger) -> Journal {
        let writer = GroupWriter::new(ledger.clone(), "journal");
        Journal { ledger, writer }
    }

    /// Records what a call allocated, all of it or nothing. An older holder of one of the addresses is replaced: the
    /// pool has just allocated it.
    pub async fn add(
        &self,
        network: &str,
        record: &Record,
        allocated: &[(PoolKey, Address)],
    ) -> Result<(), Arc<LedgerError>> {
        let (network, record, allocated) = (network.to_owned(), record.clone(), allocated.to_vec());
        self.writer
            .write(move |connection| {
                for (pool, address) in &allocated {
                    insert(connection, &network, pool, *address, &record)?;
                }
                Ok(())
            })
            .await
    }

    /// Drops the entries of an interface of a container.
    pub async fn remove(
        &self,
        network: &str,
        handle: &Handle,
        ifname: &str,
    ) -> Result<(), Arc<LedgerError>> {
        let (network, handle, ifname) = (network.to_owned(), handle.clone(), ifname.to_owned());
        self.writer
            .write(move |connection| {
                connection
                    .prepare_cached(
                        "DELETE FROM journal WHERE network = ?1 AND handle = ?2 AND part = ?3",
                    )?
                    .execute(params![network, handle.as_str(), ifname])?;
                Ok(())
            })
            .await
    }

    /// Drops the entry of one address, if this holder has it.
    pub async fn remove_address(
        &self,
        network: &str,
        address: Address,
        holder: &Record,
    ) -> Result<(), Arc<LedgerError>> {
        let (network, holder) = (network.to_owned(), holder.clone());
        self.writer
            .write(move |connection| {
                connection
                    .prepare_cached(
                        "DELETE FROM journal WHERE network = ?1 AND address = ?2
                     AND subject = ?3 AND part = ?4 AND handle = ?5",
                    )?
                    .execute(params![
                        network,
                        address.to_string(),
                        holder.owner.subject,
                        holder.owner.part,
                        holder.handle.as_str()
                    ])?;
                Ok(())
            })
            .await
    }

    /// Every entry, with its network.
    pub async fn all(&self) -> Result<Vec<(String, Entry)>, LedgerError> {
        let query = format!("SELECT {COLUMNS} FROM journal ORDER BY network, address");
        self.select(query, None).await
    }

    /// The entries of a network.
    pub async fn entries(&self, network: &str) -> Result<Vec<Entry>, LedgerError> {
        let query = format!("SELECT {COLUMNS} FROM journal WHERE network = ?1 ORDER BY address");
        let found = self.select(query, Some(network.to_owned())).await?;
        Ok(found.into_iter().map(|(_, entry)| entry).collect())
    }

    async fn select(
        &self,
        query: String,
        network: Option<String>,
    ) -> Result<Vec<(String, Entry)>, LedgerError> {
        self.ledger
            .query("read the journal", move |connection| {
                let mut statement = connection.prepare_cached(&query)?;
                let mut rows = statement.query(rusqlite::params_from_iter(network))?;
                let mut found = Vec::new();
                while let Some(row) = rows.next()? {
                    found.push(entry(row)?);
                }
                Ok(found)
            })
            .await
    }
}

fn insert(
    connection: &Connection,
    network: &str,
    pool: &PoolKey,
    address: Address,
    record: &Record,
) -> Result<(), SqliteFailure> {
    let attributes = match record.attributes.is_empty() {
        true => String::new(),
        false => serde_json::to_string(&record.attributes)
            .map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))?,
    };
    connection
        .prepare_cached(&format!(
            "INSERT OR REPLACE INTO journal ({COLUMNS}) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)"
        ))?
        .execute(params![
            network,
            address.to_string(),
            pool.name,
            pool.network.map(|network| network.to_string()),
            record.owner.subject,
            record.owner.part,
            record.handle.as_str(),
            attributes
        ])?;
    Ok(())
}

fn entry(row: &Row<'_>) -> Result<(String, Entry), SqliteFailure> {
    let network: String = row.get(0)?;
    let text = |column: usize| row.get::<_, String>(column);
    let unreadable = |column: &str, value: &str| {
        SqliteFailure::Ledger(LedgerError::Unreadable {
            target: format!("the node's journal of network {network}"),
            why: format!("column {column} holds `{value}`"),
        })
    };
    let address = text(1)?;
    let pool_network = row.get::<_, Option<String>>(3)?;
    let pool_network: Option<Prefix> = match pool_network {
        None => None,
        Some(text) => Some(
            text.parse()
                .map_err(|_| unreadable("pool_network", &text))?,
        ),
    };
    let attributes = text(7)?;
    let attributes: BTreeMap<String, String> = match attributes.is_empty() {
        true => BTreeMap::new(),
        false => {
            serde_json::from_str(&attributes).map_err(|_| unreadable("attributes", &attributes))?
        }
    };
    let entry = Entry {
        pool: PoolKey {
            name: text(2)?,
            network: pool_network,
        },
        address: address
            .parse()
            .map_err(|_| unreadable("address", &address))?,
        record: Record {
            owner: Owner::new(text(4)?, text(5)?),
            handle: Handle::new(text(6)?),
            attributes,
        },
    };
    Ok((network, entry))
}
