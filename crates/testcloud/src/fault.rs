//! Faults that a test puts in the place of answers.

use std::time::Duration;

use crate::error::ApiError;

/// What happens to a call instead of its usual answer.
#[derive(Clone, Debug)]
pub enum Fault {
    /// Refused; nothing is carried out.
    Refuse(ApiError),
    /// Refused before the request is parsed, with a body that is not JSON.
    NotJson(u16),
    /// Carried out, then the connection is closed without an answer.
    LoseAnswer,
    /// The connection is closed; nothing is carried out.
    Cut,
    /// Carried out after a pause.
    Delay(Duration),
    /// Accepted, and the operation ends with this error (code and message) and changes nothing.
    FailOperation(String, String),
    /// Accepted, and the operation never ends.
    EndlessOperation,
}
