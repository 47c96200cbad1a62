//! The protocol by which slices change hands (docs/decisions/0006-slices.md), for a checker that runs it in every order
//! of its steps.
//!
//! The decisions are the real ones (`berth_core::slice::elastic`); what is modelled is who does what when: claim, extend,
//! split, pass on, borrow back, yield, the loss of a node, its return with an old epoch, a crash after every step, and
//! writes that arrive long after they were sent. [`assigned`] is the hand-over of slices that a controller assigns;
//! [`slice_machine`] is the second design, whose machines run as they are.
#![allow(
    clippy::unwrap_used,
    reason = "a model that can't go on has to say so at once"
)]

pub mod assigned;
pub mod attachment;
pub mod batching;
mod donor;
pub mod machine;
pub mod migration;
pub mod protocol;
mod quiescence;
pub mod slice_machine;
mod steps;
mod taker;
pub mod world;
pub mod write;
