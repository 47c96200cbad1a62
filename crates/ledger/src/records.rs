//! Named records: the CREATE of a name is the claim, so that all processes share no table.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use berth_core::Record;
use serde::{Deserialize, Serialize};

use crate::{Ledger, LedgerError};

/// The name of a record.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ClaimKey {
    pub kind: ClaimKind,
    pub name: String,
}

impl ClaimKey {
    pub fn new(kind: ClaimKind, name: impl Into<String>) -> Self {
        Self {
            kind,
            name: name.into(),
        }
    }
}

impl fmt::Display for ClaimKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, self.name)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ClaimKind {
    /// One address, across all pools whose ranges overlap.
    Reservation,
    /// What a node notes about its slices, in its own file. The slices of a cluster are objects of their own kind.
    Slice,
}

impl fmt::Display for ClaimKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Reservation => "reservation",
            Self::Slice => "slice",
        })
    }
}

/// A store of named records.
#[async_trait]
pub trait Records: fmt::Debug + Send + Sync + 'static {
    /// Creates the record, durably. Fails with [`LedgerError::Taken`] if the name exists, unless the same holder has it:
    /// then nothing is left to do (I3).
    async fn create(&self, key: &ClaimKey, record: &Record) -> Result<(), LedgerError>;

    /// Transfers the name from `expected` to `record`, in one step: at no time is the name free. One that `record` has
    /// already is no error; one that another holder has, or that does not exist, is [`LedgerError::Taken`] (I6).
    async fn transfer(
        &self,
        key: &ClaimKey,
        expected: &Record,
        record: &Record,
    ) -> Result<(), LedgerError>;

    /// Deletes the record if `expected` holds it. An absent one is no error; another holder's is
    /// [`LedgerError::Taken`] (I6).
    async fn delete(&self, key: &ClaimKey, expected: &Record) -> Result<(), LedgerError>;

    /// The holder of a name, read so that a completed create is seen.
    async fn get(&self, key: &ClaimKey) -> Result<Option<Record>, LedgerError>;

    /// Shows every record of a kind to `visit`, one at a time: a caller that keeps what it needs of each holds no list of
    /// them.
    async fn visit(
        &self,
        kind: ClaimKind,
        visit: &mut (dyn FnMut(ClaimKey, Record) + Send),
    ) -> Result<(), LedgerError>;

    /// All records of a kind, where they are few.
    async fn list(&self, kind: ClaimKind) -> Result<Vec<(ClaimKey, Record)>, LedgerError> {
        let mut found = Vec::new();
        self.visit(kind, &mut |key, record| found.push((key, record)))
            .await?;
        Ok(found)
    }
}

/// A ledger that keeps named records beside its pools.
pub trait RecordLedger: Ledger + Records {}

impl<T: Ledger + Records> RecordLedger for T {}

/// One that many desks share.
pub type SharedRecordLedger = Arc<dyn RecordLedger>;
