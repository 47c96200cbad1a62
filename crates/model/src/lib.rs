//! Model of the slice protocol (docs/decisions/0006-slices.md), which a checker runs in every order of its steps.
//!
//! The decisions are the product's code (`berth_core::slice::elastic`); the model is which process does what when:
//! claim, extend, split, transfer, borrow back, yield, loss of a node, its return with an old epoch, a crash after
//! every step, and writes that arrive long after they were sent. [`assigned`] models slices that the controller
//! assigns; [`slice_machine`] is the second design, whose machines run unchanged.
#![allow(
    clippy::unwrap_used,
    reason = "a model that can't go on has to stop at once"
)]

pub mod assigned;
pub mod attachment;
pub mod batching;
pub mod cluster;
mod donor;
pub mod machine;
pub mod migration;
pub mod protocol;
mod quiescence;
pub mod slice_machine;
mod steps;
mod taker;
pub mod write;
