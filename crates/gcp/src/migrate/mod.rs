//! Moving an address with its pod from one VM to another.
//!
//! - [`rules`]: who may have an address that another pod holds; pure.
//! - [`machine`]: the phases of a move, all of them in one durable record; pure.
//! - [`batch`]: calls of several moves for one VM go out together.
//! - [`executor`]: carries a move out over the cloud client; any process may, at any time, also several at once.

pub mod batch;
pub mod executor;
pub mod machine;
pub mod rules;

/// The address that a destination pod asks for.
pub const IP: &str = "live.cast.ai/ip";
/// The node that the address is attached to.
pub const ORIGINAL_INSTANCE: &str = "live.cast.ai/original-instance";
/// On the source pod: its address moves away, and its DEL keeps it.
pub const MOVE_OUT_IP: &str = "live.cast.ai/move-out-ip";
