//! The file itself: how it is opened, what version it has, whether it is whole.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rand::RngExt;
use rusqlite::{Connection, OpenFlags, TransactionBehavior};

use super::fault::classify;
use crate::{LedgerError, Rejection};

/// "brth" in the file's header: what tells our file from any other SQLite database.
const APPLICATION_ID: i32 = 0x6272_7468;

/// How long a process waits for another's write before it reports the file as busy.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// Each step brings the schema from version n to n + 1. Steps are never edited, only added.
const MIGRATIONS: &[&str] = &[
    // 1: pools, allocations, rests, claims by name.
    "CREATE TABLE pools (
        name TEXT NOT NULL PRIMARY KEY,
        network TEXT,
        version INTEGER NOT NULL
     ) WITHOUT ROWID;
     CREATE TABLE allocations (
        pool TEXT NOT NULL REFERENCES pools(name),
        address TEXT NOT NULL,
        subject TEXT NOT NULL,
        part TEXT NOT NULL,
        handle TEXT NOT NULL,
        attributes TEXT NOT NULL,
        PRIMARY KEY (pool, address)
     ) WITHOUT ROWID;
     CREATE TABLE rests (
        pool TEXT NOT NULL REFERENCES pools(name),
        address TEXT NOT NULL,
        since INTEGER NOT NULL,
        until INTEGER NOT NULL,
        subject TEXT NOT NULL,
        part TEXT NOT NULL,
        PRIMARY KEY (pool, address)
     ) WITHOUT ROWID;
     CREATE TABLE claims (
        kind TEXT NOT NULL,
        name TEXT NOT NULL,
        subject TEXT NOT NULL,
        part TEXT NOT NULL,
        handle TEXT NOT NULL,
        attributes TEXT NOT NULL,
        PRIMARY KEY (kind, name)
     ) WITHOUT ROWID;",
];

/// Who else may have the file open.
#[derive(Clone, Copy, Debug)]
pub(super) enum Sharing {
    /// Other processes: the command line beside an agent, an agent that takes over from another.
    Processes,
    Nobody,
}

/// Opens the file, waiting for others as long as any statement would. SQLite itself does not wait
/// while another process switches a new file to WAL, or removes the journal as the last one out: it
/// reports the file as busy at once.
pub(super) fn open(path: &Path, sharing: Sharing) -> Result<Connection, LedgerError> {
    create_private(path)?;
    let deadline = Instant::now() + BUSY_TIMEOUT;
    loop {
        match open_once(path, sharing) {
            Err(error) if error.is_passing() && Instant::now() < deadline => {
                let pause = rand::rng().random_range(1..20);
                std::thread::sleep(Duration::from_millis(pause));
            }
            done => return done,
        }
    }
}

fn open_once(path: &Path, sharing: Sharing) -> Result<Connection, LedgerError> {
    let failed = |error: rusqlite::Error| classify(path, "open", &error);
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = match sharing {
        Sharing::Processes => Connection::open_with_flags(path, flags),
        // The index of the journal is then in this process's memory and not in a file.
        Sharing::Nobody => Connection::open_with_flags_and_vfs(path, flags, c"unix-excl"),
    }
    .map_err(failed)?;
    connection.busy_timeout(BUSY_TIMEOUT).map_err(failed)?;
    refuse_foreign(path, &mut connection)?;
    connection
        .execute_batch(
            "PRAGMA journal_mode = WAL;
             PRAGMA synchronous = FULL;
             PRAGMA foreign_keys = ON;
             PRAGMA trusted_schema = OFF;
             PRAGMA cell_size_check = ON;",
        )
        .map_err(failed)?;
    check_integrity(path, &connection)?;
    migrate(path, &mut connection)?;
    Ok(connection)
}

/// SQLite gives its journal files the mode of the database, so this one call makes all of them
/// private.
fn create_private(path: &Path) -> Result<(), LedgerError> {
    let made = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path);
    match made {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(LedgerError::Rejected {
            operation: "open",
            target: path.display().to_string(),
            rejection: Rejection::Storage(format!(
                "{error}; check that its directory exists and is writable"
            )),
        }),
    }
}

/// Another program's database, or one of a newer Berth, is not ours to change (I5).
fn refuse_foreign(path: &Path, connection: &mut Connection) -> Result<(), LedgerError> {
    let failed = |error: rusqlite::Error| classify(path, "open", &error);
    // One view of the file: another process may be making its tables just now, and an id from
    // before with tables from after would look like a stranger's.
    let view = connection.transaction().map_err(failed)?;
    let number = |pragma: &str| view.query_row(pragma, [], |row| row.get::<_, i64>(0));
    let application = number("PRAGMA application_id").map_err(failed)?;
    let version = number("PRAGMA user_version").map_err(failed)?;
    let tables = number("SELECT count(*) FROM sqlite_schema").map_err(failed)?;
    let unreadable = |why: String| LedgerError::Unreadable {
        target: path.display().to_string(),
        why,
    };
    if application != i64::from(APPLICATION_ID) && (application != 0 || tables > 0) {
        return Err(unreadable(
            "it is another program's database; give Berth a path of its own".into(),
        ));
    }
    if version > MIGRATIONS.len() as i64 {
        return Err(unreadable(format!(
            "its schema is version {version}, this Berth knows up to {}; use a newer Berth",
            MIGRATIONS.len()
        )));
    }
    Ok(())
}

fn check_integrity(path: &Path, connection: &Connection) -> Result<(), LedgerError> {
    let verdict: String = connection
        .query_row("PRAGMA quick_check(1)", [], |row| row.get(0))
        .map_err(|error| classify(path, "integrity check", &error))?;
    if verdict == "ok" {
        return Ok(());
    }
    Err(LedgerError::Unreadable {
        target: path.display().to_string(),
        why: format!("integrity check: {verdict}; {}", super::fault::DAMAGED),
    })
}

fn migrate(path: &Path, connection: &mut Connection) -> Result<(), LedgerError> {
    let failed = |error: rusqlite::Error| classify(path, "migrate", &error);
    let version = |connection: &Connection| {
        connection.query_row("PRAGMA user_version", [], |row| row.get::<_, u32>(0))
    };
    if version(connection).map_err(failed)? as usize == MIGRATIONS.len() {
        return Ok(());
    }
    // Two processes may open a new file at once: the version is read again under the write lock.
    let transaction = connection
        .transaction_with_behavior(TransactionBehavior::Immediate)
        .map_err(failed)?;
    let current = version(&transaction).map_err(failed)?;
    for step in MIGRATIONS.iter().skip(current as usize) {
        transaction.execute_batch(step).map_err(failed)?;
    }
    transaction
        .pragma_update(None, "application_id", APPLICATION_ID)
        .map_err(failed)?;
    transaction
        .pragma_update(None, "user_version", MIGRATIONS.len() as i64)
        .map_err(failed)?;
    transaction.commit().map_err(failed)
}
