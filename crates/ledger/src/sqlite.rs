//! The embedded ledger: one SQLite file, many processes.
//!
//! Promises: WAL with synchronous=FULL, so a commit that returned survives a power cut (I2). A
//! reservation survives the end of the process, and a power cut no later than the next commit: it
//! only repeats what a pool's record says, which is durable, and a machine that lost its power has no
//! containers left that could hold one. The file is 0600; a file that is corrupt, of another program, or of a newer Berth is refused and not
//! touched (I5). Readable with the `sqlite3` shell: addresses are text.
//!
//! Every process has its own connection. Writers of one process queue on a lock, writers of several
//! processes on SQLite's, and the version of each pool tells a cached copy that it is old.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use berth_core::{Change, Record};
use futures::StreamExt;
use futures::stream::BoxStream;
use parking_lot::Mutex;
use rusqlite::{Connection, TransactionBehavior};
use tokio::sync::watch;

use crate::{ClaimKey, ClaimKind, Guard, Ledger, LedgerError, PoolKey, Records, Snapshot, Version};

mod fault;
mod rows;
mod schema;
mod tables;

use schema::Sharing;
pub use tables::GroupWriter;

/// How often a watch looks for other processes' commits. Own commits are seen at once.
const WATCH_INTERVAL: Duration = Duration::from_millis(200);

/// Pages of a file that is read without leaving the runtime's worker: some 2,000 records.
const SMALL: i64 = 64;

#[derive(Clone, Debug)]
pub struct SqliteLedger {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    path: PathBuf,
    connection: Mutex<Connection>,
    /// Counts this process's commits, to wake its watches.
    commits: watch::Sender<u64>,
}

impl SqliteLedger {
    /// Opens or creates the file, brings its schema up to date and checks its integrity.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, LedgerError> {
        Self::open_shared(path.as_ref(), Sharing::Processes)
    }

    /// The same for a file that no other process opens meanwhile; it finds it locked. One open file less.
    pub fn open_alone(path: impl AsRef<Path>) -> Result<Self, LedgerError> {
        Self::open_shared(path.as_ref(), Sharing::Nobody)
    }

    fn open_shared(path: &Path, sharing: Sharing) -> Result<Self, LedgerError> {
        let path = path.to_owned();
        let connection = schema::open(&path, sharing)?;
        let commits = watch::channel(0).0;
        let inner = Inner {
            path,
            connection: Mutex::new(connection),
            commits,
        };
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// Runs `work` on the connection, off the runtime's workers: a commit waits for the disk.
    async fn run<T, F>(&self, operation: &'static str, work: F) -> Result<T, LedgerError>
    where
        T: Send + 'static,
        F: FnOnce(&mut Connection) -> Result<T, Failure> + Send + 'static,
    {
        let inner = Arc::clone(&self.inner);
        let task = tokio::task::spawn_blocking(move || {
            let mut connection = inner.connection.lock();
            work(&mut connection).map_err(|failure| inner.told(operation, failure))
        });
        task.await.unwrap_or_else(|error| {
            Err(LedgerError::Uncertain {
                operation,
                target: self.inner.path.display().to_string(),
                why: error.to_string(),
            })
        })
    }

    async fn write(
        &self,
        pool: &PoolKey,
        base: &Version,
        changes: &[Change],
        guard: Option<&Guard>,
    ) -> Result<Version, LedgerError> {
        let (pool, base, changes) = (pool.clone(), base.clone(), changes.to_vec());
        let guard = guard.cloned();
        let version = self
            .run("commit", move |connection| {
                // Immediate: a transaction that reads first and then finds itself unable to write
                // would have to be begun again anyway.
                let transaction =
                    connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
                if let Some(guard) = &guard {
                    rows::check(&transaction, &guard.pool, &guard.version)?;
                }
                let version = rows::commit(&transaction, &pool, &base, &changes)?;
                transaction.commit()?;
                Ok(version)
            })
            .await?;
        self.inner.commits.send_modify(|count| *count += 1);
        Ok(version)
    }

    /// The same for reads. A small file is read on this thread, if the connection is free: its pages are in memory, and
    /// handing the read to another thread takes longer than the read.
    async fn read<T, F>(&self, operation: &'static str, work: F) -> Result<T, LedgerError>
    where
        T: Send + 'static,
        F: FnOnce(&mut Connection) -> Result<T, Failure> + Send + 'static,
    {
        if let Some(mut connection) = self.inner.connection.try_lock()
            && is_small(&connection)
        {
            return work(&mut connection).map_err(|failure| self.inner.told(operation, failure));
        }
        self.run(operation, work).await
    }
}

impl Inner {
    fn told(&self, operation: &'static str, failure: Failure) -> LedgerError {
        match failure {
            Failure::Sqlite(error) => fault::classify(&self.path, operation, &error),
            Failure::Ledger(error) => error,
        }
    }
}

/// Whether all of the file is read in a moment.
fn is_small(connection: &Connection) -> bool {
    let pages = connection
        .prepare_cached("PRAGMA page_count")
        .and_then(|mut count| count.query_row([], |row| row.get::<_, i64>(0)));
    pages.is_ok_and(|pages| pages <= SMALL)
}

/// What goes wrong inside a transaction: SQLite's own errors, or a decision of ours.
#[derive(Debug)]
pub enum Failure {
    Sqlite(rusqlite::Error),
    Ledger(LedgerError),
}

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sqlite(error)
    }
}

impl From<LedgerError> for Failure {
    fn from(error: LedgerError) -> Self {
        Self::Ledger(error)
    }
}

#[async_trait]
impl Ledger for SqliteLedger {
    async fn load(&self, pool: &PoolKey) -> Result<Snapshot, LedgerError> {
        let pool = pool.clone();
        self.read("load", move |connection| {
            let transaction = connection.transaction()?;
            rows::load(&transaction, &pool)
        })
        .await
    }

    async fn refresh(
        &self,
        pool: &PoolKey,
        base: &Version,
    ) -> Result<Option<Snapshot>, LedgerError> {
        let (pool, base) = (pool.clone(), base.clone());
        self.read("refresh", move |connection| {
            let transaction = connection.transaction()?;
            if rows::version(&transaction, &pool)? == base {
                return Ok(None);
            }
            rows::load(&transaction, &pool).map(Some)
        })
        .await
    }

    async fn commit(
        &self,
        pool: &PoolKey,
        base: &Version,
        changes: &[Change],
        guard: Option<&Guard>,
    ) -> Result<Version, LedgerError> {
        self.write(pool, base, changes, guard).await
    }

    async fn watch_versions(
        &self,
        pool: &PoolKey,
    ) -> Result<BoxStream<'static, Result<Version, LedgerError>>, LedgerError> {
        struct Watch {
            ledger: SqliteLedger,
            pool: PoolKey,
            seen: Option<Version>,
            commits: watch::Receiver<u64>,
        }
        let commits = self.inner.commits.subscribe();
        let start = Watch {
            ledger: self.clone(),
            pool: pool.clone(),
            seen: None,
            commits,
        };
        let stream = futures::stream::unfold(start, |mut watch| async move {
            loop {
                let found = match &watch.seen {
                    None => watch.ledger.load(&watch.pool).await.map(Some),
                    Some(seen) => watch.ledger.refresh(&watch.pool, seen).await,
                };
                match found {
                    Ok(Some(snapshot)) => {
                        watch.seen = Some(snapshot.version.clone());
                        return Some((Ok(snapshot.version), watch));
                    }
                    Ok(None) => {
                        // Either end of the wait means "look again".
                        let _ = tokio::time::timeout(WATCH_INTERVAL, watch.commits.changed()).await;
                    }
                    Err(error) => {
                        tokio::time::sleep(WATCH_INTERVAL).await;
                        return Some((Err(error), watch));
                    }
                }
            }
        });
        Ok(stream.boxed())
    }

    async fn pools(&self) -> Result<Vec<PoolKey>, LedgerError> {
        self.read("list pools", |connection| rows::pools(connection))
            .await
    }
}

#[async_trait]
impl Records for SqliteLedger {
    async fn create(&self, key: &ClaimKey, record: &Record) -> Result<(), LedgerError> {
        let (key, record) = (key.clone(), record.clone());
        self.run("create", move |connection| {
            claiming(connection, key.kind, |transaction| {
                match rows::claim(transaction, &key)? {
                    Some(held) if held.same_holder(&record) => Ok(()),
                    Some(held) => Err(taken(&key, Some(&held)).into()),
                    None => rows::insert_claim(transaction, &key, &record),
                }
            })
        })
        .await
    }

    async fn delete(&self, key: &ClaimKey, expected: &Record) -> Result<(), LedgerError> {
        let (key, expected) = (key.clone(), expected.clone());
        self.run("delete", move |connection| {
            claiming(connection, key.kind, |transaction| {
                match rows::claim(transaction, &key)? {
                    Some(held) if !held.same_holder(&expected) => {
                        Err(taken(&key, Some(&held)).into())
                    }
                    Some(_) => rows::delete_claim(transaction, &key),
                    None => Ok(()),
                }
            })
        })
        .await
    }

    async fn transfer(
        &self,
        key: &ClaimKey,
        expected: &Record,
        record: &Record,
    ) -> Result<(), LedgerError> {
        let (key, expected, record) = (key.clone(), expected.clone(), record.clone());
        self.run("transfer", move |connection| {
            claiming(connection, key.kind, |transaction| {
                match rows::claim(transaction, &key)? {
                    Some(held) if held.same_holder(&record) => Ok(()),
                    Some(held) if held.same_holder(&expected) => {
                        rows::delete_claim(transaction, &key)?;
                        rows::insert_claim(transaction, &key, &record)
                    }
                    held => Err(taken(&key, held.as_ref()).into()),
                }
            })
        })
        .await
    }

    async fn get(&self, key: &ClaimKey) -> Result<Option<Record>, LedgerError> {
        let key = key.clone();
        self.read("read", move |connection| rows::claim(connection, &key))
            .await
    }

    async fn visit(
        &self,
        kind: ClaimKind,
        visit: &mut (dyn FnMut(ClaimKey, Record) + Send),
    ) -> Result<(), LedgerError> {
        let list = self.read("list", move |connection| rows::claims(connection, kind));
        for (key, record) in list.await? {
            visit(key, record);
        }
        Ok(())
    }
}

/// A transaction on claims by name; one on reservations does not wait for the disk.
fn claiming(
    connection: &mut Connection,
    kind: ClaimKind,
    work: impl FnOnce(&Connection) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let waits = kind != ClaimKind::Reservation;
    if !waits {
        connection.pragma_update(None, "synchronous", "NORMAL")?;
    }
    let transact = |connection: &mut Connection| {
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        work(&transaction)?;
        Ok(transaction.commit()?)
    };
    let done = transact(connection);
    if !waits {
        connection.pragma_update(None, "synchronous", "FULL")?;
    }
    done
}

fn taken(key: &ClaimKey, held: Option<&Record>) -> LedgerError {
    LedgerError::Taken {
        name: key.to_string(),
        by: held.map_or_else(|| "nobody".into(), |held| held.owner.to_string()),
    }
}
