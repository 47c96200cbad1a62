//! How the controller reclaims one slice of a node that is gone: in two writes with a pause and a second proof between
//! (I8).
//!
//! The recall is written first, so that a node that still runs stops and writes its lease again; every deletion names
//! the version that was read after the pause, so one of the two writes fails.

use super::event::{Deleted, Written};
use super::objects::{Lease, Stamp};
use crate::Prefix;

/// What the controller knows of one slice.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Recall {
    /// Nothing was done.
    Idle,
    /// The recall is being written.
    Recalling,
    /// The recall is written; a node that still runs has time to answer.
    Pausing,
    /// Node, lease and published pool are being read again.
    Confirming,
    /// The published pool of the node that is gone is being deleted; the lease is next.
    Retracting { lease: Option<Stamp> },
    /// The lease is being deleted.
    Deleting,
}

/// What the controller reads of a slice.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Proof {
    /// Whether its node is gone by its Node object: absent, another UID, or out of service.
    pub is_gone: bool,
    pub lease: Option<(Lease, Stamp)>,
    /// The published pool of the node that is gone.
    pub published: Option<Stamp>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RecallEvent {
    /// A comparison of leases, published pools and nodes shows this slice.
    Seen(Proof),
    Recalled(Written),
    PauseOver,
    /// None: no answer came.
    Confirmed(Option<Proof>),
    Retracted(Deleted),
    Deleted(Deleted),
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RecallEffect {
    /// Mark the lease as recalled, if it has the stamp.
    Recall {
        slice: Prefix,
        expected: Stamp,
    },
    /// Wait until a node that still runs has noticed.
    Pause,
    /// Read Node, lease and published pool.
    Confirm(Prefix),
    Retract {
        slice: Prefix,
        expected: Stamp,
    },
    DeleteLease {
        slice: Prefix,
        expected: Stamp,
    },
}

impl Recall {
    pub fn handle(&mut self, slice: Prefix, event: RecallEvent) -> Option<RecallEffect> {
        let (next, effect) = match (&*self, event) {
            (Recall::Idle, RecallEvent::Seen(proof)) if proof.is_gone => match proof.lease {
                Some((lease, expected)) if !lease.recalled => (
                    Recall::Recalling,
                    Some(RecallEffect::Recall { slice, expected }),
                ),
                _ => (Recall::Pausing, Some(RecallEffect::Pause)),
            },
            (Recall::Recalling, RecallEvent::Recalled(Written::Yes(_))) => {
                (Recall::Pausing, Some(RecallEffect::Pause))
            }
            (Recall::Pausing, RecallEvent::PauseOver) => {
                (Recall::Confirming, Some(RecallEffect::Confirm(slice)))
            }
            (Recall::Confirming, RecallEvent::Confirmed(Some(proof))) => confirmed(slice, proof),
            (Recall::Retracting { lease }, RecallEvent::Retracted(Deleted::Yes)) => {
                delete(slice, *lease)
            }
            // After a refusal or a missing answer, the recall starts again from what is read then.
            (
                _,
                RecallEvent::Recalled(_)
                | RecallEvent::Confirmed(_)
                | RecallEvent::Retracted(_)
                | RecallEvent::Deleted(_),
            ) => (Recall::Idle, None),
            _ => return None,
        };
        *self = next;
        effect
    }
}

fn confirmed(slice: Prefix, proof: Proof) -> (Recall, Option<RecallEffect>) {
    let is_recalled = |(lease, _): &(Lease, Stamp)| lease.recalled;
    // A lease without the recall was written by its node since.
    if !proof.is_gone
        || proof
            .lease
            .as_ref()
            .is_some_and(|lease| !is_recalled(lease))
    {
        return (Recall::Idle, None);
    }
    let lease = proof.lease.map(|(_, stamp)| stamp);
    match proof.published {
        Some(expected) => (
            Recall::Retracting { lease },
            Some(RecallEffect::Retract { slice, expected }),
        ),
        None => delete(slice, lease),
    }
}

fn delete(slice: Prefix, lease: Option<Stamp>) -> (Recall, Option<RecallEffect>) {
    match lease {
        Some(expected) => (
            Recall::Deleting,
            Some(RecallEffect::DeleteLease { slice, expected }),
        ),
        None => (Recall::Idle, None),
    }
}
