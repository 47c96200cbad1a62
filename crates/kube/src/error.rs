//! What a request to the API server can answer besides success. A variant is a decision of the caller.

use std::time::Duration;

use thiserror::Error;

#[derive(Debug, Error)]
pub enum KubeError {
    /// A precondition did not hold: another writer was faster. Read again.
    #[error("{target} was changed by another writer")]
    Conflict { target: String },

    /// The request may or may not have been carried out. Read again.
    #[error("{operation} on {target}: its outcome is unknown: {why}")]
    OutcomeUnknown {
        operation: &'static str,
        target: String,
        why: String,
    },

    /// The API server can't be reached or is busy. The same request may succeed later.
    #[error("{target} can't be reached: {why}")]
    Unavailable {
        target: String,
        why: String,
        retry_after: Option<Duration>,
    },

    /// The content is not what Berth can read.
    #[error("{target} can't be read and is left as it is: {why}")]
    Unreadable { target: String, why: String },

    /// The API server refuses this request; repeating it will not help.
    #[error("{operation} on {target} was refused: {rejection}")]
    Rejected {
        operation: &'static str,
        target: String,
        rejection: Rejection,
    },
}

/// Why a request is refused for good.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Rejection {
    #[error("not authenticated (401): {0}")]
    Unauthenticated(String),
    #[error("not allowed (403): {0}")]
    Forbidden(String),
    #[error("not found (404): {0}")]
    Missing(String),
    #[error("not valid ({code}): {message}")]
    Invalid { code: u16, message: String },
    #[error("{0}")]
    Storage(String),
}

impl KubeError {
    /// Whether the same request may succeed if it is sent again.
    pub const fn is_transient(&self) -> bool {
        matches!(self, Self::Unavailable { .. })
    }

    /// How long the server asks its clients to wait.
    pub const fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Unavailable { retry_after, .. } => *retry_after,
            _ => None,
        }
    }
}

/// The messages of an error and of its causes, each once: some print their cause themselves.
pub fn chain(error: &dyn std::error::Error) -> String {
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
