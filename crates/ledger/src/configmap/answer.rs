//! What an answer of the API server means to the caller of a ledger.
//!
//! Promises that an unknown outcome is never taken for a failure: a write whose answer was lost is
//! [`LedgerError::Uncertain`], and the caller looks again.

use std::time::Duration;

use kube::Error;

use crate::{LedgerError, Rejection};

/// Reads change nothing: whatever is not a refusal may be tried again.
pub(super) fn of_read(target: &str, error: &Error) -> LedgerError {
    refusal("read", target, error).unwrap_or_else(|| LedgerError::Unavailable {
        target: target.into(),
        why: chain(error),
        retry_after: retry_after(error),
    })
}

/// Writes: only an answer of the server says what happened, and only if it is about this request.
pub(super) fn of_write(target: &str, error: &Error) -> LedgerError {
    if let Some(refused) = refusal("write", target, error) {
        return refused;
    }
    match error {
        // Throttled: the server says that it did nothing. A 503 may come from a balancer after the
        // request was passed on, so it says nothing.
        Error::Api(status) if status.code == 429 => LedgerError::Unavailable {
            target: target.into(),
            why: chain(error),
            retry_after: retry_after(error),
        },
        _ => LedgerError::Uncertain {
            operation: "write",
            target: target.into(),
            why: chain(error),
        },
    }
}

fn refusal(operation: &'static str, target: &str, error: &Error) -> Option<LedgerError> {
    let Error::Api(status) = error else {
        return None;
    };
    let message = status.message.clone();
    let rejection = match status.code {
        409 => {
            return Some(LedgerError::Conflict {
                pool: target.into(),
                held: Vec::new(),
            });
        }
        401 => Rejection::Unauthenticated(message),
        403 => Rejection::Forbidden(message),
        404 => Rejection::Missing(message),
        code @ (400 | 405 | 413 | 415 | 422) => Rejection::Invalid { code, message },
        _ => return None,
    };
    Some(LedgerError::Rejected {
        operation,
        target: target.into(),
        rejection,
    })
}

fn retry_after(error: &Error) -> Option<Duration> {
    let Error::Api(status) = error else {
        return None;
    };
    let seconds = status.details.as_ref()?.retry_after_seconds;
    (seconds > 0).then(|| Duration::from_secs(seconds.into()))
}

/// The messages of an error and of what caused it, each once: some print their cause themselves.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let message = cause.to_string();
        if !text.contains(&message) {
            text = format!("{text}: {message}");
        }
        next = cause.source();
    }
    text
}
