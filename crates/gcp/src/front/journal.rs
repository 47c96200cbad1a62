//! What this node has to do about its NIC, as the node's own file has it: `berth_node::attachments` with addresses as items.

use std::net::Ipv4Addr;

use berth_core::{Record, STAGE};
pub use berth_node::attachments::{Found as FoundRow, State};
use berth_node::{Attachments, TargetJournal};

use crate::nic::NicPlace;

/// Which IPPool an address is of.
pub const POOL: &str = "ippool";

/// The target of moves to this node: a row is written before the move is recorded in the pool, so that this node's next process
/// knows of it, and goes when the address is attached here.
const MOVES: &str = "gcp-moves";

/// The moves to this node that were begun.
pub fn moves_of(attachments: &Attachments) -> TargetJournal<Ipv4Addr> {
    attachments.of(MOVES)
}

/// Whether a row is about a NIC of this VM, not about a move to it.
pub fn is_of_nic(found: &FoundRow<Ipv4Addr>) -> bool {
    found.target != MOVES
}

/// The journal of one NIC and range.
pub type NicJournal = TargetJournal<Ipv4Addr>;

/// How the journal names a NIC and its range.
pub fn target_of(place: &NicPlace) -> String {
    let range = place.range.as_deref().unwrap_or_default();
    format!(
        "gcp-nic/{}/{}/{}/{range}",
        place.zone, place.instance, place.nic
    )
}

/// The holder of an address as the journal has it: with its pool, and without the stage of a move, which is the pool's.
pub fn holder(record: &Record, pool: &str) -> Record {
    let mut holder = record.clone().with(POOL, pool);
    holder.attributes.remove(STAGE);
    holder
}
