//! Addresses that a person allocates and releases, where a container runtime does it otherwise.
//!
//! Promises: an allocation by hand is made as an ADD is made (the network's ranges, exclusions, gateway and
//! reservations count), and stays until a person releases it. A release reads the holder's pod first, by a quorum
//! read, and says whether the pod lives (I4); it names the holder (I6).

mod allocate;
mod release;

use berth_desk::DeskMetrics;
use berth_kube::Connection;
use berth_ledger::{PoolKey, SharedRecordLedger};
use berth_node::journal::OLD_POOLS;
use berth_slices::{PlainPools, sliced};

use crate::store::Store;

pub use allocate::{Allocated, NetworkError, allocate, network_of_cluster, network_of_text};
pub use release::{Origin, Standing, end_cooldown, find, leftover, release, runs_here, standing};

/// The pools of a cluster, for one command.
pub fn cluster_store(ledger: SharedRecordLedger, connection: &Connection) -> Store {
    let plain = PlainPools::new(connection);
    Store::cluster_once(ledger, DeskMetrics::default()).with_plain_pools(plain)
}

/// The pools of this machine alone, for one command.
pub fn standalone_store(ledger: SharedRecordLedger) -> Store {
    Store::standalone(ledger, DeskMetrics::default())
}

/// Whether a pool of a node's file is no pool of addresses: its journal, its list of slices, its notes of what is published.
pub fn is_bookkeeping(pool: &PoolKey) -> bool {
    let inner = [OLD_POOLS, sliced::HOLDINGS, sliced::NOTES];
    inner.iter().any(|prefix| pool.name.starts_with(prefix))
}

/// Whether a pool of a node's file is of the node's slices: only its agent writes it.
pub fn is_nodes_own(pool: &PoolKey) -> bool {
    sliced::is_sliced(pool)
}
