//! A NodeIPPool: its addresses and their offsets, what its status says is allocated, and its condition.

pub mod codec;
mod condition;
mod growth;
mod range;
mod space;
mod status;

pub use codec::{Holder, NodePool};
pub use condition::{Collision, Condition, Health};
pub use growth::{Shrinks, check_growth};
pub use range::SpecError;
pub use space::{Place, PoolSpace};
pub(crate) use status::shortened;
pub use status::{Described, LSB_FIRST, Offsets, Recorded, Totals, encode};
