//! A kind of objects that a front keeps its pools in.

use berth_ledger::SharedLedger;
use berth_ledger::kube::Connection;

/// What the engine has to know of a kind: as data, so that a list of kinds is one line each.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// As people write it: `nodeippools.berth.dev`.
    pub name: &'static str,
    /// Reads and writes the pools of a cluster.
    pub ledger: fn(&Connection) -> SharedLedger,
}
