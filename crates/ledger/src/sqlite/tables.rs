//! Tables that another crate keeps in the same file (`crates/node`), on the ledger's own connection: one queue of writers,
//! one classification of errors.

use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use rusqlite::{Connection, TransactionBehavior};
use tokio::sync::oneshot;

use super::{Failure, SqliteLedger};
use crate::LedgerError;

impl SqliteLedger {
    /// Runs `work` in one write transaction: all of it, durably, or nothing.
    pub async fn transact<T, F>(&self, operation: &'static str, work: F) -> Result<T, LedgerError>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> Result<T, Failure> + Send + 'static,
    {
        self.run(operation, move |connection| transact(connection, work))
            .await
    }

    /// Runs `work` on one state of the file.
    pub async fn query<T, F>(&self, operation: &'static str, work: F) -> Result<T, LedgerError>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> Result<T, Failure> + Send + 'static,
    {
        self.read(operation, move |connection| {
            let transaction = connection.transaction()?;
            work(&transaction)
        })
        .await
    }
}

fn transact<T>(
    connection: &mut Connection,
    work: impl FnOnce(&Connection) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let done = work(&transaction)?;
    transaction.commit()?;
    Ok(done)
}

type Work = Box<dyn FnOnce(&Connection) -> Result<(), Failure> + Send>;

struct Queued {
    work: Work,
    done: oneshot::Sender<Result<(), Arc<LedgerError>>>,
}

/// Group commit: writes that wait for the file go into one transaction, which waits for the disk once.
#[derive(Clone)]
pub struct GroupWriter {
    ledger: SqliteLedger,
    operation: &'static str,
    queue: Arc<Mutex<Vec<Queued>>>,
}

impl fmt::Debug for GroupWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GroupWriter")
            .field("operation", &self.operation)
            .finish_non_exhaustive()
    }
}

impl GroupWriter {
    pub fn new(ledger: SqliteLedger, operation: &'static str) -> GroupWriter {
        GroupWriter {
            ledger,
            operation,
            queue: Arc::default(),
        }
    }

    /// Runs `work` with what else waits; returns when it is durable. An error is that of all of them.
    pub async fn write<F>(&self, work: F) -> Result<(), Arc<LedgerError>>
    where
        F: FnOnce(&Connection) -> Result<(), Failure> + Send + 'static,
    {
        let (done, outcome) = oneshot::channel();
        let work: Work = Box::new(work);
        self.queue.lock().push(Queued { work, done });
        let (queue, inner) = (Arc::clone(&self.queue), Arc::clone(&self.ledger.inner));
        let operation = self.operation;
        // The first that gets the connection writes for all; the others find nothing left.
        let ran = self.ledger.run(operation, move |connection| {
            let (all, waiting): (Vec<Work>, Vec<_>) = std::mem::take(&mut *queue.lock())
                .into_iter()
                .map(|queued| (queued.work, queued.done))
                .unzip();
            if all.is_empty() {
                return Ok(());
            }
            let written = transact(connection, |connection| {
                all.into_iter().try_for_each(|work| work(connection))
            });
            let written = written.map_err(|failure| Arc::new(inner.told(operation, failure)));
            for done in waiting {
                let _ = done.send(written.clone());
            }
            Ok(())
        });
        ran.await.map_err(Arc::new)?;
        match outcome.await {
            Ok(written) => written,
            Err(_) => Err(Arc::new(LedgerError::Uncertain {
                operation,
                target: self.ledger.inner.path.display().to_string(),
                why: "the writer ended before it had answered".to_owned(),
            })),
        }
    }
}
