//! What happens to one range on one node.

use std::collections::BTreeSet;

use super::mode::Mode;
use super::objects::{Lease, Published, Stamp};
use crate::{Address, Prefix};

/// The answer to a conditional write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Written {
    /// It was made; the object has this stamp now.
    Yes(Stamp),
    /// Its precondition did not hold, or the object is not there.
    Refused,
    /// No answer came: it was made, was not, or will be.
    Unknown,
}

/// The answer to a deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Deleted {
    /// The object is not there any more.
    Yes,
    /// The object is not as it was named.
    Refused,
    /// No answer came.
    Unknown,
}

/// What a node reads of one slice before it relies on its lease.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SliceRead {
    pub lease: Option<(Lease, Stamp)>,
    /// This node's published pool.
    pub published: Option<(Published, Stamp)>,
    /// Whether this node's Node object exists.
    pub registered: bool,
}

/// What a node reads after it has claimed and announced a slice.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RangeRead {
    /// None: there is no plain pool.
    pub mode: Option<Mode>,
    /// The plain pool's entries in the slice.
    pub plain: BTreeSet<Address>,
    /// Whether another node publishes a pool for the slice.
    pub is_published_elsewhere: bool,
    /// What this node's pods and its runtime's result cache show in the slice.
    pub in_use: BTreeSet<Address>,
}

/// What happens. Answers name the slice whose request they answer.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Event {
    /// An ADD needs this address.
    Allocate(Address),
    /// A DEL, or proof that the address's pod is gone.
    Release(Address),
    /// An ADD found no free address: claim this slice.
    Claim(Prefix),
    /// The slice was unused for its idle time.
    Return(Prefix),
    /// The published pool differs from what pods have.
    Publish(Prefix),
    /// The yielded parts are needed again, and the range seems to be sliced.
    Reclaim(Prefix),
    /// The plain pool's entries in the slice may have been released.
    Refresh(Prefix),
    /// A watch shows this mode.
    ModeSeen(Mode),
    /// A watch shows that a lease is not as this node wrote it.
    LeaseChanged(Prefix),
    /// It is time to compare everything with the API server.
    Resync,
    /// The API server does not answer.
    Disconnected,
    /// It answers again.
    Connected,
    /// The settle time after a start or an outage has passed.
    Settled,

    /// The slices for which this node has a lease or a published pool; none: no answer came.
    Owned(Option<BTreeSet<Prefix>>),
    /// None: no answer came.
    SliceRead(Prefix, Option<Box<SliceRead>>),
    /// The CREATE of a lease; refused: there is one.
    Created(Prefix, Written),
    /// The write of this node's lease.
    LeaseWritten(Prefix, Written),
    /// The write of this node's published pool.
    Announced(Prefix, Written),
    /// None: no answer came.
    RangeRead(Prefix, Option<RangeRead>),
    /// The mode was set, was changed by another process, or no answer came: it is read again in any case.
    ModeSet(Prefix),
    /// The pods' addresses of a slice were added to the plain pool.
    CopiedOut(Prefix, Written),
    Retracted(Prefix, Deleted),
    LeaseDeleted(Prefix, Deleted),
}
