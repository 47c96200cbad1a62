//! Why an alias could not be attached or detached, and what the attachment machine does about it.

use berth_attachment::{Failure, JournalFailed};
use thiserror::Error;

use crate::cloud::CloudError;

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NicError {
    #[error("{what}: {error}")]
    Cloud {
        /// Which request, and of which instance.
        what: String,
        error: CloudError,
    },
    #[error(
        "instance {instance}: {nic} has {used} alias ranges of at most {limit}; {free} more fit"
    )]
    Full {
        instance: String,
        nic: String,
        used: usize,
        limit: usize,
        free: usize,
    },
    #[error("the node's journal can't be written: {0}")]
    Journal(String),
    #[error("the lock file {path} can't be used: {why}")]
    Lock { path: String, why: String },
    #[error("the address can't be released: {0}")]
    Release(String),
}

impl From<JournalFailed> for NicError {
    fn from(JournalFailed(why): JournalFailed) -> NicError {
        NicError::Journal(why)
    }
}

impl NicError {
    /// Passes by itself: CNI code 11. Everything else needs an administrator.
    pub fn is_transient(&self) -> bool {
        match self {
            NicError::Cloud { error, .. } => {
                error.is_transient() || matches!(error, CloudError::InUse(_))
            }
            NicError::Full { .. } | NicError::Journal(_) | NicError::Release(_) => true,
            NicError::Lock { .. } => false,
        }
    }
}

/// Of a read: nothing was sent in this try, but an earlier one may have been.
pub(super) fn of_read(what: String, error: CloudError) -> Failure<NicError> {
    let gone = matches!(error, CloudError::NotFound(_));
    let blocked = matches!(
        error,
        CloudError::Denied(_) | CloudError::Unauthenticated(_) | CloudError::Refused(_)
    );
    let after = retry_after(&error);
    let error = NicError::Cloud { what, error };
    match (gone, blocked) {
        (true, _) => Failure::Gone(error),
        (_, true) => Failure::Blocked(error),
        _ => Failure::Busy { after, error },
    }
}

/// Of the update's answer.
pub(super) fn of_update(what: String, error: CloudError) -> Failure<NicError> {
    let after = retry_after(&error);
    let named = |error| NicError::Cloud { what, error };
    match error {
        CloudError::Stale(_) => Failure::Stale(named(error)),
        CloudError::NotReady(_) | CloudError::RateLimited { .. } => Failure::Busy {
            after,
            error: named(error),
        },
        CloudError::Quota(_) | CloudError::NicFull(_) => Failure::Full {
            room: None,
            error: named(error),
        },
        CloudError::InUse(_) | CloudError::Refused(_) | CloudError::AlreadyExists(_) => {
            Failure::Bad(named(error))
        }
        CloudError::NotFound(_) => Failure::Gone(named(error)),
        CloudError::Denied(_) | CloudError::Unauthenticated(_) => Failure::Blocked(named(error)),
        CloudError::Unavailable(_) | CloudError::OperationTimeout(_) => {
            Failure::Unknown(named(error))
        }
    }
}

/// Of the operation. A failed one stays failed under its id: what passes by itself needs a new intent.
pub(super) fn of_operation(what: String, error: CloudError) -> Failure<NicError> {
    match &error {
        CloudError::Unavailable(_) => Failure::Busy {
            after: None,
            error: NicError::Cloud { what, error },
        },
        // Whoever may not wait, or finds no such operation, does not know its outcome.
        CloudError::OperationTimeout(_)
        | CloudError::NotFound(_)
        | CloudError::Denied(_)
        | CloudError::Unauthenticated(_) => Failure::Unknown(NicError::Cloud { what, error }),
        _ => of_update(what, error),
    }
}

fn retry_after(error: &CloudError) -> Option<std::time::Duration> {
    match error {
        CloudError::RateLimited { retry_after, .. } => *retry_after,
        _ => None,
    }
}
