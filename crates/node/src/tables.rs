//! The node's own tables in its file, beside those of the ledger.
//!
//! Files of earlier versions kept the journal as pools named `node/<network>`, and the identity among the claims.
//! Both are migrated whenever the file is opened: an agent of an earlier version may have written since. What can't
//! be read stays where it is (I5).

use std::collections::BTreeMap;

use berth_ledger::{LedgerError, SqliteFailure};
use rand::RngExt;
use rusqlite::{Connection, OptionalExtension, params};

use crate::file::FileId;

/// The version of these tables.
const VERSION: i64 = 1;

const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS node_file (
        id TEXT NOT NULL,
        version INTEGER NOT NULL
    );
    CREATE TABLE IF NOT EXISTS journal (
        network TEXT NOT NULL,
        address TEXT NOT NULL,
        pool TEXT NOT NULL,
        pool_network TEXT,
        subject TEXT NOT NULL,
        part TEXT NOT NULL,
        handle TEXT NOT NULL,
        attributes TEXT NOT NULL,
        PRIMARY KEY (network, address)
    ) WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS attachments (
        target TEXT NOT NULL,
        item TEXT NOT NULL,
        subject TEXT NOT NULL,
        part TEXT NOT NULL,
        handle TEXT NOT NULL,
        attributes TEXT NOT NULL,
        state TEXT NOT NULL,
        intent TEXT,
        goal TEXT,
        PRIMARY KEY (target, item)
    ) WITHOUT ROWID;
    CREATE INDEX IF NOT EXISTS attachments_by_handle ON attachments (handle);
    CREATE INDEX IF NOT EXISTS attachments_by_owner ON attachments (subject, part);";

/// The prefix of the names of the journal's pools.
pub(crate) const OLD_JOURNAL: &str = "node/";
/// The first name after that prefix.
const AFTER_OLD_JOURNAL: &str = "node0";
/// The prefix of the attribute that named the pool of an address.
const OLD_POOL: &str = "pool/";

/// The identity, if the tables exist and nothing has to be migrated.
pub(crate) fn read(connection: &Connection, file: &str) -> Result<Option<FileId>, SqliteFailure> {
    let exists = "SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name IN ('node_file', 'journal', 'attachments')";
    let tables: i64 = connection.query_row(exists, [], |row| row.get(0))?;
    if tables < 3 || has_old_journal(connection)? {
        return Ok(None);
    }
    identity(connection, file)
}

/// Creates the tables and migrates what earlier versions wrote. Runs in a write transaction.
pub(crate) fn migrate(connection: &Connection, file: &str) -> Result<FileId, SqliteFailure> {
    connection.execute_batch(TABLES)?;
    let id = match identity(connection, file)? {
        Some(id) => id,
        None => name(connection)?,
    };
    bring_over_journal(connection)?;
    Ok(id)
}

fn identity(connection: &Connection, file: &str) -> Result<Option<FileId>, SqliteFailure> {
    let found = connection
        .query_row("SELECT id, version FROM node_file", [], |row| {
            Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)?))
        })
        .optional()?;
    match found {
        Some((_, version)) if version > VERSION => {
            Err(SqliteFailure::Ledger(LedgerError::Unreadable {
                target: file.to_owned(),
                why: format!(
                    "its node tables are version {version}, this Berth knows up to {VERSION}; use a newer Berth"
                ),
            }))
        }
        found => Ok(found.map(|(id, _)| FileId::new(id))),
    }
}

/// The identity that an earlier version had recorded, else a new one. An earlier version that runs again reads it among the claims.
fn name(connection: &Connection) -> Result<FileId, SqliteFailure> {
    let known = connection
        .query_row(
            "SELECT subject FROM claims WHERE kind = 'slice' AND name = 'file'",
            [],
            |row| row.get::<_, String>(0),
        )
        .optional()?;
    let id = known.unwrap_or_else(|| format!("{:032x}", rand::rng().random::<u128>()));
    connection.execute(
        "INSERT INTO node_file (id, version) VALUES (?1, ?2)",
        params![id, VERSION],
    )?;
    connection.execute(
        "INSERT OR IGNORE INTO claims (kind, name, subject, part, handle, attributes)
         VALUES ('slice', 'file', ?1, '', '', '')",
        [&id],
    )?;
    Ok(FileId::new(id))
}

fn has_old_journal(connection: &Connection) -> Result<bool, SqliteFailure> {
    let any = "SELECT EXISTS (SELECT 1 FROM pools WHERE name >= ?1 AND name < ?2)";
    Ok(connection.query_row(any, [OLD_JOURNAL, AFTER_OLD_JOURNAL], |row| row.get(0))?)
}

fn bring_over_journal(connection: &Connection) -> Result<(), SqliteFailure> {
    let mut statement = connection.prepare(
        "SELECT pool, address, subject, part, handle, attributes FROM allocations WHERE pool >= ?1 AND pool < ?2",
    )?;
    let rows = statement.query_map([OLD_JOURNAL, AFTER_OLD_JOURNAL], |row| {
        Ok(OldEntry {
            journal: row.get(0)?,
            address: row.get(1)?,
            subject: row.get(2)?,
            part: row.get(3)?,
            handle: row.get(4)?,
            attributes: row.get(5)?,
        })
    })?;
    for entry in rows.collect::<Result<Vec<_>, _>>()? {
        match entry.write(connection)? {
            true => {
                connection.execute(
                    "DELETE FROM allocations WHERE pool = ?1 AND address = ?2",
                    [&entry.journal, &entry.address],
                )?;
            }
            false => tracing::warn!(
                journal = entry.journal,
                address = entry.address,
                "an entry of the node's journal can't be read and stays as it is"
            ),
        }
    }
    connection.execute(
        "DELETE FROM pools WHERE name >= ?1 AND name < ?2
         AND NOT EXISTS (SELECT 1 FROM allocations WHERE pool = name)
         AND NOT EXISTS (SELECT 1 FROM rests WHERE pool = name)",
        [OLD_JOURNAL, AFTER_OLD_JOURNAL],
    )?;
    Ok(())
}

/// A journal's entry as earlier versions kept it: a record of a pool.
struct OldEntry {
    journal: String,
    address: String,
    subject: String,
    part: String,
    handle: String,
    attributes: String,
}

impl OldEntry {
    /// False if it can't be read. An entry that is already in the table is newer.
    fn write(&self, connection: &Connection) -> Result<bool, SqliteFailure> {
        let Ok(mut attributes) = serde_json::from_str::<BTreeMap<String, String>>(&self.attributes)
        else {
            return Ok(false);
        };
        let Some(pool) = attributes.remove(&format!("{OLD_POOL}{}", self.address)) else {
            return Ok(false);
        };
        attributes.retain(|key, _| !key.starts_with(OLD_POOL));
        let Some((pool, pool_network)) = pool.split_once(' ') else {
            return Ok(false);
        };
        let network = self.journal.strip_prefix(OLD_JOURNAL).unwrap_or_default();
        let attributes = match attributes.is_empty() {
            true => String::new(),
            false => serde_json::to_string(&attributes).unwrap_or_default(),
        };
        connection.execute(
            "INSERT OR IGNORE INTO journal
                (network, address, pool, pool_network, subject, part, handle, attributes)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
            params![
                network,
                self.address,
                pool,
                Some(pool_network).filter(|network| !network.is_empty()),
                self.subject,
                self.part,
                self.handle,
                attributes
            ],
        )?;
        Ok(true)
    }
}
