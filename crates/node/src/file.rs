//! The node's SQLite file.
//!
//! Guarantees: the directory is made for root alone (0700); a file that can't be read is refused and not changed (I5);
//! the identity is recorded when the file is opened for the first time and stays. [`NodeFile::own`] is granted to one
//! process at a time: the agent for its life, `berth cni` for one call of a sliced network.

use std::fmt;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use berth_ledger::{LedgerError, SharedRecordLedger, SqliteLedger};
use tokio::sync::OnceCell;

use crate::attachments::Attachments;
use crate::journal::Journal;
use crate::owner_lock::{AGENT, OwnerLock};
use crate::tables;

/// Identifies a node's file among all others, including a restored or second file of the same node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FileId(String);

impl FileId {
    pub(crate) fn new(id: String) -> FileId {
        FileId(id)
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for FileId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The file, open. Clones share it.
#[derive(Clone, Debug)]
pub struct NodeFile {
    path: PathBuf,
    ledger: SqliteLedger,
    identity: FileId,
    journal: Journal,
    attachments: Attachments,
    /// Released with the last clone.
    owned: Option<Arc<OwnerLock>>,
}

impl NodeFile {
    /// Opens or creates the file. Other processes of the node may have it open, too.
    pub async fn open(path: &Path) -> Result<NodeFile, LedgerError> {
        make_directory(path);
        // Absolute, because other processes must find it, too.
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let ledger = SqliteLedger::open(&path)?;
        let identity = identity(&ledger, &path).await?;
        Ok(NodeFile {
            path,
            journal: Journal::new(ledger.clone()),
            attachments: Attachments::new(ledger.clone()),
            ledger,
            identity,
            owned: None,
        })
    }

    /// Opens the file as its only owner. Waits at most `limit` for the process that owns it now; `owner` is the name
    /// that other waiting processes show, such as `berth agent`.
    pub async fn own(path: &Path, owner: &str, limit: Duration) -> Result<NodeFile, LedgerError> {
        make_directory(path);
        let lock = OwnerLock::take(path, owner, limit).await?;
        let file = NodeFile::open(path).await?;
        Ok(NodeFile {
            owned: Some(Arc::new(lock)),
            ..file
        })
    }

    /// Whether no other process owns it.
    pub fn is_owned(&self) -> bool {
        self.owned.is_some()
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn identity(&self) -> &FileId {
        &self.identity
    }

    /// The node's own pools and claims.
    pub fn ledger(&self) -> SharedRecordLedger {
        Arc::new(self.ledger.clone())
    }

    pub fn journal(&self) -> &Journal {
        &self.journal
    }

    pub fn attachments(&self) -> &Attachments {
        &self.attachments
    }
}

/// How long a process waits for calls that own the file.
const OWN_LIMIT: Duration = Duration::from_secs(30);

/// The file of a process, opened at its first use: some calls need none.
#[derive(Debug)]
pub struct LazyFile {
    path: PathBuf,
    is_agents: bool,
    open: OnceCell<NodeFile>,
    owned: OnceCell<NodeFile>,
}

impl LazyFile {
    /// An agent's, which owns it from its opening on.
    pub fn of_agent(path: &Path) -> LazyFile {
        LazyFile {
            is_agents: true,
            ..LazyFile::of_call(path)
        }
    }

    /// That of a process that serves one call.
    pub fn of_call(path: &Path) -> LazyFile {
        LazyFile {
            path: path.to_owned(),
            is_agents: false,
            open: OnceCell::new(),
            owned: OnceCell::new(),
        }
    }

    /// The file, for what several processes may write. What fails is tried again by the next call.
    pub async fn get(&self) -> Result<&NodeFile, LedgerError> {
        if self.is_agents {
            return self.own().await;
        }
        let open = || NodeFile::open(&self.path);
        self.open.get_or_try_init(open).await
    }

    /// The file, for allocating from slices: no other process does while this one lives.
    pub async fn own(&self) -> Result<&NodeFile, LedgerError> {
        let owner = if self.is_agents { AGENT } else { "berth cni" };
        let own = || NodeFile::own(&self.path, owner, OWN_LIMIT);
        self.owned.get_or_try_init(own).await
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the file exists.
    pub fn exists(&self) -> bool {
        self.path.exists()
    }
}

/// Creates the directory on a machine where Berth never ran. The ledger reports a failure.
fn make_directory(path: &Path) {
    if let Some(dir) = path.parent() {
        let _ = DirBuilder::new().recursive(true).mode(0o700).create(dir);
    }
}

async fn identity(ledger: &SqliteLedger, path: &Path) -> Result<FileId, LedgerError> {
    let file = path.display().to_string();
    let name = file.clone();
    // Usually there is nothing to write: a call that is served without an agent waits for no other.
    let known = ledger
        .query("open", move |connection| tables::read(connection, &file))
        .await?;
    match known {
        Some(id) => Ok(id),
        None => {
            ledger
                .transact("open", move |connection| tables::migrate(connection, &name))
                .await
        }
    }
}
