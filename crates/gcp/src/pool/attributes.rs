//! The attributes of an allocation, by name: what the pool's object keeps besides upstream's fields.

use berth_core::STAGE;

/// Upstream's time of an allocation.
pub const ALLOCATED_AT: &str = "allocatedAt";
/// Which VM has the alias, so that it is found when its Node is gone. The VM's name is not written where it is the node's.
pub const ZONE: &str = "zone";
pub const INSTANCE: &str = "instance";
/// Of an allocation in the primary range: its address is reserved.
pub const METHOD: &str = "method";
pub const STATIC: &str = "static";
/// The UID of the pod's controller.
pub const CONTROLLER: &str = "controller";
/// Of an allocation without a pod: attached before one asks for it.
pub const WARM: &str = "warm";
/// Of an allocation that moves: where it goes. Its phase is the stage.
pub const MOVE: &str = "move";
/// The marker of the source's pod, as it was read.
pub const MOVE_OUT: &str = "moveOutIP";
/// When the source's pod ended and its address was kept.
pub const KEPT_AT: &str = "keptAt";

/// What must not be lost when another program writes the entry.
pub const VITAL: [&str; 4] = [STAGE, MOVE, MOVE_OUT, KEPT_AT];
/// What an allocation carries while an agent or the controller works on it: it moves, is kept for a move, or is attached before a
/// pod asks for it.
pub const UNDER_WAY: [&str; 4] = [STAGE, MOVE, KEPT_AT, WARM];
