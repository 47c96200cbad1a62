//! The protocol of node slices, second design: pure state machines that take events and return effects. Nothing but the
//! model runs them yet.
//!
//! What is to hold (docs/decisions/0017-slice-machine.md, which also says what they lack; checked to a bound): for every
//! address at most one process may allocate it, be it a node from its slice or a desk from the plain pool (S, I1, I8),
//! also after crashes, lost and late answers, files and servers that were rolled back, and objects deleted by hand. No
//! machine writes an object of another node.
//!
//! | module | what it is |
//! |---|---|
//! | [`node`] | one range on one node, in the process that owns the node's file |
//! | [`stored`] | what the node's file keeps of the range, and the changes that are committed to it |
//! | [`objects`] | what is read from the API server: leases, published pools, and what a conditional write names |
//! | [`mode`] | the mode of a range: one annotation of its plain pool, changed by compare-and-set |
//! | [`desk`] | what may be allocated in the plain pool, and who changes the mode |
//! | [`recall`] | how the controller reclaims the slice of a node that is gone |
//!
//! A driver executes the effects of one event in their order before it passes in the next event. It has no state of
//! the protocol: what it must know after a crash is in [`stored::Stored`]. `berth-model` runs this code.

pub mod desk;
pub mod effect;
pub mod event;
pub mod mode;
pub mod node;
pub mod objects;
pub mod recall;
pub mod stored;

mod claim;
mod return_slice;
mod verify;

#[cfg(test)]
mod tests;

pub use effect::Effect;
pub use event::Event;
pub use mode::{Mode, ModeKind, Token};
pub use node::{Me, NodeMachine, Role, Slice, Step};
pub use objects::{Addresses, FileId, Lease, Nonce, Published, Stamp, Uid, Version};
pub use stored::{Change, Hold, Stored};
