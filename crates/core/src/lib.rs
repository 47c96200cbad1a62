//! The rules of address management, and nothing else.
//!
//! Promises: no I/O, no clock, no randomness of its own. What a function returns depends on its
//! arguments alone, so every rule here can be tested against a model and replayed from a seed.
//! Costs grow with what is allocated, never with the size of a range.
//!
//! # Glossary
//! | word | meaning |
//! |---|---|
//! | [`Address`] | one IPv4 or IPv6 address, ordered as a number within its family |
//! | [`Prefix`] | a CIDR, host bits masked |
//! | [`Space`] | the addresses that may be given for one request: blocks minus what is withheld |
//! | [`Dialect`] | what a front's users expect to be withheld, as data |
//! | [`Owner`] | who holds an address, for giving: the same owner gets the same address (I3) |
//! | [`Handle`] | the token that frees it: another handle never does (I6) |
//! | [`Record`] | what is kept of one allocation |
//! | [`STAGE`] | where an allocation is between its choice and its release; a change names the stage that it ends |
//! | [`Pool`] | all records of one ledger pool, indexed |
//! | [`Change`] | one step that a ledger commits, with its own precondition |
//! | [`plan`] | requests against a pool -> changes and answers |
//! | [`slice`] | sub-ranges that belong to one node at a time |
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod address;
pub mod dialect;
pub mod examine;
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
pub use plan::{Answer, Claim, Granted, Refusal, Release, Request, Want, plan};
pub use pool::{Change, Pool, Rest, Stray};
pub use prefix::Prefix;
pub use range::{Block, RangeError, RangeSpec, Warning};
pub use record::{ByHandError, Handle, Moment, NODE, Owner, Record, STAGE};
pub use space::Space;
