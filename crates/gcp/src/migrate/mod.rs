//! Moving an address with its pod from one VM to another.
//!
//! - [`rules`]: who may have an address that another pod holds; pure.
//! - [`machine`]: the phases of a move, all of them in one durable record; pure.
//! - [`group`]: which calls of several moves go out together; pure.
//! - [`batch`]: sends them.
//! - [`executor`]: carries a move out over the cloud client; any process may, at any time, also several at once.

pub mod batch;
pub mod executor;
pub mod group;
pub mod machine;
pub mod rules;

/// The address that a destination pod asks for.
pub const IP: &str = "live.cast.ai/ip";
/// The node that the address is attached to.
pub const ORIGINAL_INSTANCE: &str = "live.cast.ai/original-instance";
/// On the source pod: its address moves away, and its DEL keeps it.
pub const MOVE_OUT_IP: &str = "live.cast.ai/move-out-ip";
