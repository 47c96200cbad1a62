//! What a ledger can answer besides success. A variant is a decision of the caller.

use std::time::Duration;

use berth_core::Address;
use berth_kube::{KubeError, Rejection};
use thiserror::Error;

use crate::{Guard, PoolKey};

#[derive(Debug, Error)]
pub enum LedgerError {
    /// A precondition did not hold: somebody else wrote. Load again, plan again.
    #[error("{pool} was changed by another writer{}", addresses(.held))]
    Conflict { pool: String, held: Vec<Address> },

    /// The outcome is unknown: the request may or may not have been carried out. Load again and look.
    #[error("{operation} on {target}: its outcome is unknown: {why}")]
    Uncertain {
        operation: &'static str,
        target: String,
        why: String,
    },

    /// The name is claimed by somebody else.
    #[error("{name} is taken by {by}")]
    Taken { name: String, by: String },

    /// The store can't be reached or is busy. The same request may succeed later.
    #[error("{target} can't be reached: {why}")]
    Unavailable {
        target: String,
        why: String,
        retry_after: Option<Duration>,
    },

    /// The content is not what Berth can read. It stays as it is (I5) until a person looks at it.
    #[error("{target} can't be read and is left as it is: {why}")]
    Unreadable { target: String, why: String },

    /// What was claimed is given from elsewhere now: a range that was sliced, a slice that is another's. Look where, ask
    /// there.
    #[error("{pool} does not give this any more: it was moved to slices, or to another node")]
    Moved { pool: String },

    /// The pool's object can't take more. Nothing was recorded.
    #[error("{target} is full: {size} bytes would pass its limit of {limit}; {hint}")]
    Full {
        target: String,
        size: usize,
        limit: usize,
        hint: String,
    },

    /// The store refuses this request; repeating it will not help.
    #[error("{operation} on {target} was refused: {rejection}")]
    Rejected {
        operation: &'static str,
        target: String,
        rejection: Rejection,
    },
}

impl LedgerError {
    /// Refuses a guard, for a store that can't check another pool in the step of a commit.
    pub fn refuse_guard(pool: &PoolKey, guard: Option<&Guard>) -> Result<(), Self> {
        let refused = |guard: &Guard| Self::Rejected {
            operation: "guarded commit",
            target: format!("pool {pool}"),
            rejection: Rejection::Storage(format!(
                "its store can't check pool {} in the same step",
                guard.pool
            )),
        };
        guard.map_or(Ok(()), |guard| Err(refused(guard)))
    }

    /// Whether a commit was refused because the pool that guards it is not as it was read.
    pub fn is_of(&self, guard: &Guard) -> bool {
        matches!(self, Self::Conflict { pool, .. } if *pool == guard.pool.name)
    }

    /// Whether the same request may succeed if it is simply put again.
    pub const fn is_passing(&self) -> bool {
        matches!(self, Self::Unavailable { .. })
    }

    /// Whether the pool has to be loaded and planned again.
    pub const fn needs_reload(&self) -> bool {
        matches!(self, Self::Conflict { .. } | Self::Uncertain { .. })
    }
}

fn addresses(held: &[Address]) -> String {
    match held {
        [] => String::new(),
        [one] => format!(" at {one}"),
        many => format!(" at {} addresses", many.len()),
    }
}

impl From<KubeError> for LedgerError {
    fn from(error: KubeError) -> Self {
        match error {
            KubeError::Conflict { target } => Self::Conflict {
                pool: target,
                held: Vec::new(),
            },
            KubeError::OutcomeUnknown {
                operation,
                target,
                why,
            } => Self::Uncertain {
                operation,
                target,
                why,
            },
            KubeError::Unavailable {
                target,
                why,
                retry_after,
            } => Self::Unavailable {
                target,
                why,
                retry_after,
            },
            KubeError::Unreadable { target, why } => Self::Unreadable { target, why },
            KubeError::Rejected {
                operation,
                target,
                rejection,
            } => Self::Rejected {
                operation,
                target,
                rejection,
            },
        }
    }
}
