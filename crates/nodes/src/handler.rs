//! What one node does about one policy: `plan(observed) -> steps`.
//!
//! ```text
//!   pool: allocate  ->  enactment: record  ->  host: apply
//! ```
//!
//! Guarantees: an address is applied only while both the pool and the enactment name it for (node, policy, capture), so a crash between two
//! writes leaks at most an offset, which the collector frees; the other order could apply one address twice. An address that the
//! pool, the enactment or its annotation already names is used again, on a node that is not Ready too; only a Ready node gets a new one.
//! Steps are executed in order; the plan is made again after each observation, so a step that failed is simply not done yet.

mod agenda;
mod allocate;
mod apply;
mod concrete;
pub mod enact;
mod execute;
mod link;
mod node_state;
mod observe;
mod peers;
mod phase;
mod plan;
mod run;

pub use concrete::{OF, check_kept_away};
pub use execute::HandlerError;
pub use link::InUse;
pub use observe::{KEPT_AWAY, POLICY_UID, ThisNode, is_ours, selects};
pub use phase::{Phase, Shown};
pub use plan::{
    Backoff, Enactment, Mode, Observed, Peers, PolicyState, PoolView, Step, Wait, no_free_address,
    plan,
};
pub use run::{Handler, HandlerConfig};
