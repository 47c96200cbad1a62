//! Why an outside call failed, by what the machine does about it.

use std::fmt;
use std::time::Duration;

/// How a call failed. `F` is the driver's own error, for the caller.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Failure<F> {
    /// The target changed since the driver read it: the same items again, as a new intent.
    Stale(F),
    /// Not carried out; it passes by itself. What arrived meanwhile joins the next call.
    Busy { after: Option<Duration>, error: F },
    /// Whether it was carried out is unknown: the same intent is repeated until it is known.
    Unknown(F),
    /// At least one of the items is refused: halve the call to find it.
    Bad(F),
    /// The target has no room for all of them; `room` says for how many, where the driver knows it.
    Full { room: Option<usize>, error: F },
    /// The target no longer exists, and nothing is present on it.
    Gone(F),
    /// Refused until an administrator acts, such as a missing permission.
    Blocked(F),
}

impl<F> Failure<F> {
    pub fn error(&self) -> &F {
        match self {
            Failure::Stale(error)
            | Failure::Busy { error, .. }
            | Failure::Unknown(error)
            | Failure::Bad(error)
            | Failure::Full { error, .. }
            | Failure::Gone(error)
            | Failure::Blocked(error) => error,
        }
    }
}

/// Why an item was not attached or its detach not recorded.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Refusal<F> {
    /// The call failed; the item is not present.
    Failed(F),
    /// A later request asked for the opposite.
    Superseded,
    /// The deadline has passed. The item is being removed again, and then released.
    TooLate,
    /// This process is stopping.
    Stopped,
}

/// The journal could not be written; why.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct JournalFailed(pub String);

impl<F: fmt::Display> fmt::Display for Refusal<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Failed(error) => error.fmt(f),
            Refusal::Superseded => f.write_str("superseded by a later request for the same item"),
            Refusal::Stopped => f.write_str("the process is stopping"),
            Refusal::TooLate => f.write_str("not done within the deadline"),
        }
    }
}

impl<F: fmt::Display + fmt::Debug> std::error::Error for Refusal<F> {}
