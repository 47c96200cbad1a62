//! The leader's desk: the requests of all nodes for a shared pool go to the leader, which commits them together.
//!
//! ```text
//!   agent: desk of a pool --POST /v1/desk (TLS, token)--> leader: desk of the pool --one write--> IPPool object
//!                  \__ no leader, no answer: commits by itself, slower and just as safe
//! ```
//! Guarantees:
//! - an agent trusts exactly the certificate that the leader wrote into its Lease, which only the controller may write;
//! - a batch goes to the desks of its kind of pool (`/v1/desk/<kind>`); a leader that does not know the kind refuses it, and
//!   the agent commits by itself;
//! - the leader serves only service accounts that may write pools of that kind themselves, and only for the node that their token
//!   is bound to; it releases no entry that names another node, and hands one over only to a node that its pod is on;
//! - an agent hands to a pod only addresses that it asked for, whatever the leader answers;
//! - only speed rests on it: every commit carries its preconditions, on a node as on the leader.
//!
//! Why a connection and not objects of the API: docs/decisions/0007.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod answers;
mod authorization;
mod bounds;
mod client;
mod endpoint;
mod kind;
mod server;
mod tls;
mod transfer;
mod wire;

pub use authorization::{AUDIENCE, Authorizer};
pub use client::{KindDesk, Leader, LeaderSettings};
pub use endpoint::Endpoint;
pub use kind::{MoveOf, Moving, Owners, PoolKind, Route};
pub use tls::{TlsError, TlsIdentity};
#[doc(hidden)]
pub use wire::{Batch, Replies};

pub use server::{Admission, DeskServer, serve};
