//! Turns of processes that write one object: who is next ([`ring`]), and when that is ([`line`]).
//!
//! One mechanism for every object that several processes write. Nothing rests on it but speed.

mod line;
mod ring;

pub(crate) use line::{Line, Patience};
pub(crate) use ring::{PREFIX, Ring, patch};
