//! The common desk of a cluster: the claims of all nodes on a shared range meet in the leader's desk, which commits them
//! together.
//!
//! ```text
//!   agent: desk of a pool --POST /v1/desk (TLS, token)--> leader: desk of the pool --one write--> IPPool object
//!                  \__ no leader, no answer: commits by itself, slower and just as safe
//! ```
//! Promises:
//! - an agent trusts exactly the certificate that the leader wrote into its Lease, which only the controller may write;
//! - a batch goes to the desks of its kind of pool (`/v1/desk/<kind>`); a leader that does not know the kind refuses it, and
//!   the agent commits by itself;
//! - the leader serves only service accounts that may write pools of that kind themselves, and only for the node that their token
//!   is bound to; it releases no entry that names another node, and hands one over only to a node that its pod is on;
//! - an agent hands to a pod only addresses that it asked for, whatever the leader answers;
//! - nothing but speed rests on any of it: every commit carries its preconditions, whoever makes it.
//!
//! Why a connection and not objects of the API: docs/decisions/0007.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod answers;
mod bounds;
mod client;
mod guard;
mod identity;
mod kind;
mod notice;
mod server;
mod transfer;
mod wire;

pub use client::{GatherSettings, KindDesk, Leader};
pub use guard::{AUDIENCE, Guard};
pub use identity::{Identity, IdentityError};
pub use kind::{Owners, PoolKind, Route};
pub use notice::Notice;
#[doc(hidden)]
pub use wire::{Batch, Replies};

pub use server::{Admission, Counter, serve};
