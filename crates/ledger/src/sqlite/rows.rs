//! Pools as rows. Every statement here runs inside the caller's transaction.

use berth_core::{Address, Change, Cooldown, Handle, Moment, Owner, Pool, Record};
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::Failure;
use crate::{ClaimKey, ClaimKind, LedgerError, PoolKey, Snapshot, Version};

pub(super) fn version(connection: &Connection, pool: &PoolKey) -> Result<Version, Failure> {
    let number: Option<i64> = connection
        .prepare_cached("SELECT version FROM pools WHERE name = ?1")?
        .query_row([&pool.name], |row| row.get(0))
        .optional()?;
    Ok(Version::new(
        number.map(|number| number.to_string()).unwrap_or_default(),
    ))
}

pub(super) fn load(connection: &Connection, key: &PoolKey) -> Result<Snapshot, Failure> {
    let version = version(connection, key)?;
    let mut pool = Pool::new();
    let mut statement = connection.prepare_cached(
        "SELECT subject, part, handle, attributes, address FROM allocations WHERE pool = ?1",
    )?;
    let mut rows = statement.query([&key.name])?;
    while let Some(row) = rows.next()? {
        pool.restore(address(key, row, 4)?, record(&key.name, row)?);
    }
    let mut statement = connection
        .prepare_cached("SELECT subject, part, since, until, address FROM rests WHERE pool = ?1")?;
    let mut rows = statement.query([&key.name])?;
    while let Some(row) = rows.next()? {
        let cooldown = Cooldown {
            owner: Owner::new(row.get::<_, String>(0)?, row.get::<_, String>(1)?),
            since: Moment(row.get::<_, i64>(2)?.unsigned_abs()),
            until: Moment(row.get::<_, i64>(3)?.unsigned_abs()),
        };
        pool.restore_cooldown(address(key, row, 4)?, cooldown);
    }
    Ok(Snapshot { pool, version })
}

/// Whether a pool is at that version: else it was changed since it was read.
pub(super) fn check(connection: &Connection, key: &PoolKey, at: &Version) -> Result<(), Failure> {
    match version(connection, key)? == *at {
        true => Ok(()),
        false => Err(conflict(key, Vec::new())),
    }
}

fn conflict(key: &PoolKey, held: Vec<Address>) -> Failure {
    Failure::Ledger(LedgerError::Conflict {
        pool: key.name.clone(),
        held,
    })
}

/// Preconditions are the statements' own: a row that is there already, or is not as expected,
/// makes the whole transaction a conflict.
pub(super) fn commit(
    connection: &Connection,
    key: &PoolKey,
    base: &Version,
    changes: &[Change],
) -> Result<Version, Failure> {
    check(connection, key, base)?;
    let number = base.stored().parse::<i64>().unwrap_or(0) + 1;
    connection
        .prepare_cached(
            "INSERT INTO pools (name, network, version) VALUES (?1, ?2, ?3)
             ON CONFLICT (name) DO UPDATE SET version = excluded.version,
                 network = coalesce(excluded.network, network)",
        )?
        .execute(params![
            key.name,
            key.network.map(|network| network.to_string()),
            number
        ])?;
    for change in changes {
        let done = match change {
            Change::Allocate { address, record } => {
                claim_address(connection, key, *address, record)?
            }
            Change::Release {
                address,
                expected,
                cooldown,
            } => release_address(connection, key, *address, expected, cooldown.as_ref())?,
            Change::Update {
                address,
                expected,
                record,
            } => update_address(connection, key, *address, expected, record)?,
        };
        if !done {
            return Err(conflict(key, vec![change.address()]));
        }
    }
    Ok(Version::new(number.to_string()))
}

fn claim_address(
    connection: &Connection,
    key: &PoolKey,
    address: Address,
    record: &Record,
) -> Result<bool, Failure> {
    let text = address.to_string();
    let inserted = connection
        .prepare_cached(
            "INSERT INTO allocations (pool, address, subject, part, handle, attributes)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6) ON CONFLICT DO NOTHING",
        )?
        .execute(params![
            key.name,
            text,
            record.owner.subject,
            record.owner.part,
            record.handle.as_str(),
            attributes(record)?
        ])?;
    connection
        .prepare_cached("DELETE FROM rests WHERE pool = ?1 AND address = ?2")?
        .execute(params![key.name, text])?;
    Ok(inserted == 1)
}

fn release_address(
    connection: &Connection,
    key: &PoolKey,
    address: Address,
    expected: &Record,
    cooldown: Option<&Cooldown>,
) -> Result<bool, Failure> {
    let text = address.to_string();
    let deleted = connection
        .prepare_cached(
            "DELETE FROM allocations WHERE pool = ?1 AND address = ?2
             AND subject = ?3 AND part = ?4 AND handle = ?5",
        )?
        .execute(params![
            key.name,
            text,
            expected.owner.subject,
            expected.owner.part,
            expected.handle.as_str()
        ])?;
    if let Some(cooldown) = cooldown {
        connection
            .prepare_cached(
                "INSERT OR REPLACE INTO rests (pool, address, since, until, subject, part)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
            )?
            .execute(params![
                key.name,
                text,
                stored(cooldown.since),
                stored(cooldown.until),
                cooldown.owner.subject,
                cooldown.owner.part
            ])?;
    }
    Ok(deleted == 1)
}

fn update_address(
    connection: &Connection,
    key: &PoolKey,
    address: Address,
    expected: &Record,
    record: &Record,
) -> Result<bool, Failure> {
    let updated = connection
        .prepare_cached(
            "UPDATE allocations SET subject = ?6, part = ?7, handle = ?8, attributes = ?9
             WHERE pool = ?1 AND address = ?2 AND subject = ?3 AND part = ?4 AND handle = ?5",
        )?
        .execute(params![
            key.name,
            address.to_string(),
            expected.owner.subject,
            expected.owner.part,
            expected.handle.as_str(),
            record.owner.subject,
            record.owner.part,
            record.handle.as_str(),
            attributes(record)?
        ])?;
    Ok(updated == 1)
}

pub(super) fn pools(connection: &Connection) -> Result<Vec<PoolKey>, Failure> {
    let mut statement =
        connection.prepare_cached("SELECT name, network FROM pools ORDER BY name")?;
    let mut rows = statement.query([])?;
    let mut pools = Vec::new();
    while let Some(row) = rows.next()? {
        let name: String = row.get(0)?;
        let network = match row.get::<_, Option<String>>(1)? {
            None => None,
            Some(text) => Some(
                text.parse()
                    .map_err(|_| unreadable(&name, "network", &text))?,
            ),
        };
        pools.push(PoolKey { name, network });
    }
    Ok(pools)
}

pub(super) fn claim(connection: &Connection, key: &ClaimKey) -> Result<Option<Record>, Failure> {
    let mut statement = connection.prepare_cached(
        "SELECT subject, part, handle, attributes FROM claims WHERE kind = ?1 AND name = ?2",
    )?;
    let mut rows = statement.query(params![key.kind.to_string(), key.name])?;
    rows.next()?.map(|row| record(&key.name, row)).transpose()
}

pub(super) fn claims(
    connection: &Connection,
    kind: ClaimKind,
) -> Result<Vec<(ClaimKey, Record)>, Failure> {
    let mut statement = connection.prepare_cached(
        "SELECT subject, part, handle, attributes, name FROM claims WHERE kind = ?1 ORDER BY name",
    )?;
    let mut rows = statement.query([kind.to_string()])?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        let name: String = row.get(4)?;
        let record = record(&name, row)?;
        found.push((ClaimKey { kind, name }, record));
    }
    Ok(found)
}

pub(super) fn insert_claim(
    connection: &Connection,
    key: &ClaimKey,
    record: &Record,
) -> Result<(), Failure> {
    connection
        .prepare_cached(
            "INSERT INTO claims (kind, name, subject, part, handle, attributes)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
        )?
        .execute(params![
            key.kind.to_string(),
            key.name,
            record.owner.subject,
            record.owner.part,
            record.handle.as_str(),
            attributes(record)?
        ])?;
    Ok(())
}

pub(super) fn delete_claim(connection: &Connection, key: &ClaimKey) -> Result<(), Failure> {
    connection
        .prepare_cached("DELETE FROM claims WHERE kind = ?1 AND name = ?2")?
        .execute(params![key.kind.to_string(), key.name])?;
    Ok(())
}

fn record(place: &str, row: &Row<'_>) -> Result<Record, Failure> {
    let text: String = row.get(3)?;
    let attributes = if text.is_empty() {
        Ok(Default::default())
    } else {
        serde_json::from_str(&text)
    };
    Ok(Record {
        owner: Owner::new(row.get::<_, String>(0)?, row.get::<_, String>(1)?),
        handle: Handle::new(row.get::<_, String>(2)?),
        attributes: attributes.map_err(|_| unreadable(place, "attributes", &text))?,
    })
}

fn attributes(record: &Record) -> Result<String, Failure> {
    if record.attributes.is_empty() {
        return Ok(String::new());
    }
    serde_json::to_string(&record.attributes)
        .map_err(|error| Failure::Sqlite(rusqlite::Error::ToSqlConversionFailure(error.into())))
}

fn address(key: &PoolKey, row: &Row<'_>, column: usize) -> Result<Address, Failure> {
    let text: String = row.get(column)?;
    text.parse()
        .map_err(|_| unreadable(&key.name, "address", &text))
}

/// SQLite's integers are signed; times past the year 292 million are cut.
fn stored(moment: Moment) -> i64 {
    i64::try_from(moment.0).unwrap_or(i64::MAX)
}

fn unreadable(place: &str, column: &str, value: &str) -> Failure {
    Failure::Ledger(LedgerError::Unreadable {
        target: format!("pool {place}"),
        why: format!("column {column} holds `{value}`"),
    })
}
