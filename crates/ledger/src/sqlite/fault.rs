//! SQLite's errors as decisions of the caller.

use std::path::Path;

use rusqlite::ErrorCode;

use crate::{LedgerError, Rejection};

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
            why: format!("{error}; restore it from a copy, or move it away to begin anew"),
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
        // A failed fsync or read: what the file holds now is not known.
        Some(ErrorCode::SystemIoFailure) => LedgerError::Uncertain {
            operation,
            target: target.clone(),
            why: error.to_string(),
        },
        _ => storage(error.to_string()),
    }
}
