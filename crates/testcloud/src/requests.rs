//! The record of every request.

use std::time::Instant;

use serde_json::Value;

/// The classic quota groups, each with a rate of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Group {
    Read,
    OperationRead,
    Mutation,
    /// Tokens and metadata: not counted.
    Metadata,
}

/// One request and its answer.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// As in `instances.get`.
    pub call: String,
    pub method: String,
    /// Without the query.
    pub path: String,
    pub query: Vec<(String, String)>,
    /// Null where there was none, or none that is JSON.
    pub body: Value,
    pub at: Instant,
    /// None where the connection was closed without an answer.
    pub code: Option<u16>,
}
