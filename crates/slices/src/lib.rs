//! The slices of one node: which sub-ranges of a cluster's networks are its own, and the addresses that it gives from
//! them without asking anybody.
//!
//! Promises (docs/decisions/0006-slices.md): an address is given only from a slice that is this node's, and the slice is in
//! the node's ledger before its first address is (I1, I8); giving less is written before it is said, giving more
//! after it is granted; what others hold in a slice is held here too (I7); what is given is published, later and
//! together, for whoever reads the cluster's objects.
//!
//! | file | part |
//! |---|---|
//! | [`sliced`] | a range that is given from slices, and the names of its pools |
//! | [`slices`] | what the front asks: which slices may be given from, and more of them |
//! | `ledger` | pools of slices in the node's file, everything else in the cluster |
//! | `holdings` | which slices are held, durably |
//! | `world` | what all ranges of a node share |
//! | `pool` | one range on this node: its state |
//! | `gate` | who changes what is held |
//! | `giving` | when a slice is given from, and when that ends |
//! | `confirm` | whether that is confirmed |
//! | `keep` | the one task that keeps it |
//! | `patience` | how long a call waits for what may pass |
//! | `busy` | how the API server bears what is asked of it |
//! | `outage` | publications while it fails to answer them |
//! | `link` | whether it was away, and may have gone back in time |
//! | `assigned` | slices that a controller has assigned |
//! | `claim` | one slice claimed by name: the claim, the look after it, the holding |
//! | `elastic` | slices of the node's own: compared with their claims, refilled and given back |
//! | `borrow`, `donate`, `surrender` | parts of others' slices: the two sides, and what can't be given meanwhile |
//! | `moved` | a slice that is of another range by now |
//! | `vanished` | claims that somebody deleted |
//! | `forget` | slices that were lost, until their last pod is gone |
//! | `vain` | searches that found nothing |
//! | `overlap` | ranges of one network that overlap |
//! | `adopt` | what others hold in a slice that becomes ours |
//! | `file` | which file of the node its slices are kept in |
//! | `recover` | what was allocated since the node's file was made |
//! | `pods`, `results` | what this node's pods have: by the API server, by the runtime's result cache |
//! | `room` | whether a range has room for another pod: what STATUS asks |
//! | `retire` | the way back to a plain pool |
//! | `plain`, `unreserved` | the plain pool beside slices that are assigned, and what it has to be told |
//! | `publish`, `ours`, `published` | the view of it in the cluster, and what of that is this node's |
//! | `proofs` | which networks overlap no other |
//! | `events` | what its administrator is told |
//! | `pending` | reservations that wait for the API server |
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod adopt;
mod assigned;
mod borrow;
mod busy;
mod claim;
mod confirm;
mod current;
mod donate;
mod elastic;
mod error;
mod events;
mod file;
mod forget;
mod gate;
mod giving;
mod holdings;
mod keep;
mod ledger;
mod link;
mod mark;
mod metrics;
mod moved;
mod ours;
mod outage;
mod overlap;
mod patience;
mod pending;
mod plain;
mod pods;
mod pool;
mod proofs;
mod publish;
mod published;
mod recover;
mod results;
mod retire;
mod room;
mod settings;
pub mod sliced;
pub mod slices;
mod surrender;
mod unreserved;
mod vain;
mod vanished;
mod world;

pub use error::SliceError;
pub use holdings::{Holding, Source, State};
pub use metrics::SliceMetrics;
pub use plain::PlainPools;
pub use pool::Active;
pub use settings::SliceSettings;
pub use sliced::{Mode, Sliced};
pub use slices::Slices;
