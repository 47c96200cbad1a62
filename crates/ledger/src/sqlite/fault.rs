//! SQLite's errors as decisions of the caller.

use std::path::Path;

use rusqlite::{ErrorCode, ffi};

use crate::{LedgerError, Rejection};

/// What to do about a file that can't be read. Not a copy: what was allocated since it was made would be allocated again.
pub(super) const DAMAGED: &str = "on a node of a cluster move it away, together with its -wal and -shm files, and restart the \
     agent, which reads back what pods hold; on a machine without a cluster end its containers first; put no older copy in its \
     place: what was allocated since would be allocated again";

/// What SQLite did when the I/O failed.
fn step(error: &rusqlite::Error) -> String {
    let code = error.sqlite_error().map_or(0, |error| error.extended_code);
    let step = match code {
        ffi::SQLITE_IOERR_READ | ffi::SQLITE_IOERR_SHORT_READ => "a read",
        ffi::SQLITE_IOERR_WRITE => "a write",
        ffi::SQLITE_IOERR_FSYNC | ffi::SQLITE_IOERR_DIR_FSYNC => "an fsync",
        ffi::SQLITE_IOERR_TRUNCATE => "a truncation",
        ffi::SQLITE_IOERR_SHMSIZE | ffi::SQLITE_IOERR_SHMMAP => "the growth of its shared memory",
        code => return format!("an access (SQLite error {code})"),
    };
    step.to_owned()
}

pub(super) fn classify(
    path: &Path,
    operation: &'static str,
    error: &rusqlite::Error,
) -> LedgerError {
    let target = path.display().to_string();
    let storage = |text: String| LedgerError::Rejected {
        operation,
        target: target.clone(),
        rejection: Rejection::Storage(text),
    };
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => LedgerError::Unavailable {
            target: target.clone(),
            why: "another process holds its lock".into(),
            retry_after: None,
        },
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => LedgerError::Unreadable {
            target: target.clone(),
            why: format!("{error}; {DAMAGED}"),
        },
        Some(ErrorCode::ReadOnly) => storage(
            "the file is read-only; make it and its directory writable for this user".into(),
        ),
        Some(ErrorCode::DiskFull) => {
            storage("no space left on its file system; nothing was recorded".into())
        }
        Some(ErrorCode::CannotOpen) => {
            storage("it can't be opened; check that its directory exists and is writable".into())
        }
        Some(ErrorCode::PermissionDenied) => {
            storage("access denied; check owner and mode of the file".into())
        }
        // Not uncertain, though a write that failed may come to light when the journal is recovered after a crash: to try
        // again at once would only fail again. What was recorded all the same is under a handle whose DEL frees it.
        Some(ErrorCode::SystemIoFailure) => storage(format!(
            "{} failed: {error}; the disk is failing, or a quota or a limit on file sizes is reached",
            step(error)
        )),
        _ => storage(error.to_string()),
    }
}
