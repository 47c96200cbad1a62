//! Addresses of pods that are gone, found and freed.
//!
//! DEL frees an address when the runtime says so. This is for the times when it never does: the node crashed,
//! the pod was deleted by force, the agent or the API server was away, somebody wrote an entry by hand.
//!
//! Promises: an address is freed only on proof that its holder is gone (I4), seen twice with a grace period
//! between, the last time by a quorum read just before; the release names the holder that was judged (I6), so a
//! pod that took the entry over in between keeps it. Pools and reservations are repaired together.
//!
//! | file | part |
//! |---|---|
//! | [`facts`] | what is known of pods, nodes, entries and reservations |
//! | [`judge`] | whether one holder is gone |
//! | [`plan`] | what a look leads to |
//! | [`pairing`] | which reservation belongs to which entry |

pub mod facts;
pub mod judge;
mod pairing;
pub mod plan;
