//! What the machines read from the API server, and what their conditional writes name.

use std::collections::BTreeSet;

use rangemap::RangeInclusiveSet;
use serde::{Deserialize, Serialize};

use crate::slice::NodeName;
use crate::{Address, Prefix};

/// Addresses as blocks: the free part of an IPv6 slice can't be listed.
pub type Addresses = RangeInclusiveSet<Address>;

/// Identifies a node's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FileId(pub u128);

/// The UID of a Kubernetes object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Uid(pub u128);

/// The resourceVersion of a Kubernetes object; only compared for equality.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Version(pub u64);

/// Names one publication. It is committed to the file before it is written to the object: a file that does not know
/// an object's nonce is older than the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Nonce(pub u128);

/// One state of one object: the precondition of writes and deletions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stamp {
    pub uid: Uid,
    pub version: Version,
}

/// The claim of a slice. Its holder writes it; the controller sets `recalled` and deletes it once the holder is gone.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lease {
    pub slice: Prefix,
    pub node: NodeName,
    pub node_uid: Uid,
    /// The file that the holder allocates in.
    pub file: FileId,
    /// What the holder has stopped allocating; the plain pool may allocate it.
    pub yielded: Addresses,
    /// The controller is about to reclaim the slice.
    pub recalled: bool,
}

/// The pool that a node publishes for a slice. It exists before the node allocates from the slice, and only that node
/// writes it: an empty pool means that the slice is in use, an absent one that it is not.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Published {
    pub slice: Prefix,
    pub node: NodeName,
    pub nonce: Nonce,
    pub entries: BTreeSet<Address>,
}

/// The addresses of a slice as blocks.
pub fn all_of(slice: Prefix) -> Addresses {
    let mut all = Addresses::new();
    all.insert(slice.network()..=slice.last());
    all
}
