//! The rules of address management, as pure functions.
//!
//! Guarantees: no I/O, no clock, no randomness of its own. A result depends only on the arguments, so every rule can be
//! tested against a model and replayed from a seed. Costs grow with what is allocated, never with the size of a range.
//!
//! # Glossary
//! | word | meaning |
//! |---|---|
//! | [`Address`] | one IPv4 or IPv6 address, ordered as a number within its family |
//! | [`Prefix`] | a CIDR, host bits masked |
//! | [`Space`] | the addresses that may be allocated for one request: blocks minus what is withheld |
//! | [`Dialect`] | what a front's users expect to be withheld, as data |
//! | [`Owner`] | who an address is allocated to: the same owner gets the same address (I3) |
//! | [`Handle`] | the token that releases it: another handle never does (I6) |
//! | [`Record`] | what is stored for one allocation |
//! | [`STAGE`] | where an allocation is between its choice and its release; a change names the stage that it ends |
//! | [`Pool`] | all records of one ledger pool, indexed |
//! | [`Change`] | one step that a ledger commits, with its own precondition |
//! | [`plan`] | requests against a pool -> changes and answers |
//! | [`slice`] | sub-ranges that belong to one node at a time |
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod address;
pub mod diagnose;
pub mod dialect;
pub mod invariant;
mod offset;
mod order;

pub mod plan;
mod pool;
mod prefix;
mod range;
mod record;
pub mod slice;
mod space;

pub use address::{Address, Family};
pub use dialect::Dialect;
pub use offset::Offset;
pub use order::{Order, Rendezvous, hash_index};
pub use plan::{AddressRequest, Allocate, Answer, Granted, Refusal, Release, Request, plan};
pub use pool::{Change, Cooldown, Pool, Unparsed};
pub use prefix::Prefix;
pub use range::{Block, RangeError, RangeSpec, Warning};
pub use record::{ByHandError, Handle, Moment, NODE, Owner, Record, STAGE};
pub use space::Space;
