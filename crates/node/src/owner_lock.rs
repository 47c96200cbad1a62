//! An exclusive lock beside the database, held by the one process that may allocate from the node's slices.
//!
//! The kernel releases it when the process ends, in whatever way. It is a separate file: closing any other descriptor
//! of the database would release SQLite's own locks.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use berth_ledger::{LedgerError, Rejection};
use tokio::time::{Instant, sleep};

/// How often a waiting process tries.
const PAUSE: Duration = Duration::from_millis(20);
/// How an agent names itself. It owns the file for its life, so a process waits for it only as long as one takes to end.
pub(crate) const AGENT: &str = "berth agent";
const AGENT_ENDS: Duration = Duration::from_secs(2);
/// How much of the owner's line is shown.
const SHOWN: u64 = 200;

/// Held for as long as the process may allocate.
#[derive(Debug)]
pub(crate) struct OwnerLock {
    _file: File,
}

impl OwnerLock {
    /// Waits for the lock at most `limit`. `owner` is the name that other waiting processes show, such as `berth
    /// agent`.
    pub(crate) async fn take(
        database: &Path,
        owner: &str,
        limit: Duration,
    ) -> Result<OwnerLock, LedgerError> {
        // Beside the whole name: `node.lock` beside `node.db` may be another program's.
        let mut path = database.as_os_str().to_owned();
        path.push(".owner");
        let path = PathBuf::from(path);
        let began = Instant::now();
        loop {
            match try_take(&path, owner).map_err(|error| refused(&path, &error))? {
                Attempt::Taken(file) => return Ok(OwnerLock { _file: file }),
                Attempt::HeldBy(holder) if began.elapsed() < patience(&holder, limit) => {
                    sleep(PAUSE).await;
                }
                Attempt::HeldBy(holder) => {
                    return Err(LedgerError::Unavailable {
                        target: database.display().to_string(),
                        why: format!(
                            "{holder} owns this file, and only one process of a node may allocate from its slices"
                        ),
                        retry_after: None,
                    });
                }
            }
        }
    }
}

fn patience(holder: &str, limit: Duration) -> Duration {
    match holder.starts_with(AGENT) {
        true => limit.min(AGENT_ENDS),
        false => limit,
    }
}

enum Attempt {
    Taken(File),
    HeldBy(String),
}

fn try_take(path: &PathBuf, owner: &str) -> io::Result<Attempt> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).mode(0o600);
    let mut file = options.open(path)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(Attempt::HeldBy(holder(&file))),
        Err(TryLockError::Error(error)) => return Err(error),
    }
    // The file was removed and created again between open and lock: the lock of the old file excludes no other
    // process.
    let is_current = match std::fs::metadata(path) {
        Ok(now) => now.ino() == file.metadata()?.ino(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => false,
        Err(error) => return Err(error),
    };
    if !is_current {
        return Ok(Attempt::HeldBy("another process".to_owned()));
    }
    file.set_len(0)?;
    file.rewind()?;
    writeln!(file, "{owner} (process {})", std::process::id())?;
    Ok(Attempt::Taken(file))
}

/// The lock's owner, if it wrote its name.
fn holder(file: &File) -> String {
    let mut text = String::new();
    let read = file.take(SHOWN).read_to_string(&mut text);
    match (read, text.trim()) {
        (Ok(_), line) if !line.is_empty() => line.to_owned(),
        _ => "another process".to_owned(),
    }
}

fn refused(path: &Path, error: &io::Error) -> LedgerError {
    LedgerError::Rejected {
        operation: "lock",
        target: path.display().to_string(),
        rejection: Rejection::Storage(error.to_string()),
    }
}
