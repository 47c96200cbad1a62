//! What is known of the node, whichever front asks.

use std::path::PathBuf;

use berth_kube::Connect;
use berth_leader::LeaderSettings;

/// The node that a process serves.
#[derive(Debug, Clone, Default)]
pub struct Node {
    /// Its name in the cluster, or the machine's; empty where it is unknown, which no node of a cluster may be.
    pub name: String,
    /// Its own store, an SQLite file.
    pub database: PathBuf,
    /// The cluster that keeps all pools; none: the one that a network names, or this machine.
    pub cluster: Option<Connect>,
    /// How requests of this node reach the leader's desk; none: this node writes shared pools itself.
    pub leader_desk: Option<LeaderSettings>,
    /// The directory of the agent's socket, which a reboot empties.
    pub runtime: Option<PathBuf>,
    /// What `berth install` left if it was installed for a cluster: this node is then never served from its own file alone.
    pub installed: Option<PathBuf>,
}
