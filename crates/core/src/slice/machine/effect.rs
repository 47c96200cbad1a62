//! What a node's driver executes, in order.

use std::collections::BTreeSet;

use super::mode::{Mode, Token};
use super::objects::{FileId, Lease, Nonce, Stamp};
use super::stored::Change;
use crate::{Address, Prefix};

/// An action outside the machine. Each request is answered by exactly one event.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Effect {
    /// Make the change durable before anything that follows.
    Commit(Change),
    /// Answer the ADD: the address is allocated.
    Answer(Address),
    /// Answer the ADD: this address can't be allocated.
    Refuse(Address),
    /// Start the settle timer.
    Settle,
    /// Report that the slice belongs to another file of this node; only an agent takes it over.
    ReportOtherFile { slice: Prefix, file: FileId },

    /// List the slices for which this node has a lease or a published pool.
    ListOwned,
    /// Read this node's Node object, then the lease and this node's published pool of the slice.
    ReadSlice(Prefix),
    /// Create the lease.
    CreateLease(Lease),
    /// Replace the lease, if it has the stamp.
    WriteLease { lease: Lease, expected: Stamp },
    /// Create this node's published pool, or replace it if it has the stamp.
    Announce {
        slice: Prefix,
        entries: BTreeSet<Address>,
        nonce: Nonce,
        expected: Option<Stamp>,
    },
    /// Read the mode and the entries of the plain pool, other nodes' published pools of the slice, and what this node's
    /// pods and its runtime's result cache show.
    ReadRange(Prefix),
    /// Set the mode, if it is `expected`; none: create the plain pool.
    SetMode {
        slice: Prefix,
        expected: Option<Token>,
        mode: Mode,
    },
    /// Add the addresses to the plain pool for their pods, if the mode has the token.
    CopyOut {
        slice: Prefix,
        pods: BTreeSet<Address>,
        token: Token,
    },
    /// Delete this node's published pool, if it has the stamp.
    Retract { slice: Prefix, expected: Stamp },
    /// Delete the lease, if it has the stamp.
    DeleteLease { slice: Prefix, expected: Stamp },
}
