//! A range that is given from slices, and the names of what belongs to it.

use std::sync::Arc;

use berth_api::names;
use berth_core::slice::NodeName;
use berth_core::{Prefix, Record, Space};
use berth_ledger::PoolKey;

use crate::adopt::{ORIGIN, PLAIN};

/// What the names of slices' pools in the node's ledger begin with: no pool of a cluster has a slash in its name.
pub const POOLS: &str = "slice/";

/// What the names of the pools that keep holdings begin with.
pub const HOLDINGS: &str = "slices/";

pub use crate::published::NOTES;

/// One range of a network.
#[derive(Clone, Debug)]
pub struct Sliced {
    /// The network's `network_name`: empty for those without one.
    pub network: String,
    /// The NodeSlicePool that a controller assigns it by.
    pub slice_pool: String,
    pub range: Prefix,
    /// What may be given of the whole range by choice: by one claim, by a network, or by all networks that were called for.
    pub usable: Arc<Space>,
    pub mode: Mode,
    /// Whether every address of it has a reservation when it is given (overlap checks are on, and none may be late).
    pub checked: bool,
}

/// Where a node's slices come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// A controller assigns them.
    Assigned,
    /// Nodes claim them.
    Elastic {
        /// The length of a slice, if the network sets one. The range's mark has the last word.
        size: Option<u8>,
        /// Whether parts of others' slices are asked for when none is free.
        borrow: bool,
    },
}

/// What may be given of a range, before a call tells.
pub(crate) fn untold(range: Prefix) -> Arc<Space> {
    Arc::new(Space::list([range.block()]))
}

impl Sliced {
    /// The range as a later call has it. Networks that share it may give different parts of it: what one of them may give by
    /// choice is given from slices, whichever of them was called for last (I1).
    pub fn renewed(&self, by: &Arc<Self>) -> Arc<Self> {
        let known = &self.usable;
        if known == &by.usable || *known == untold(self.range) {
            return Arc::clone(by);
        }
        let usable = match known.covers(&by.usable) {
            true => Arc::clone(known),
            false => Arc::new(known.joined(&by.usable)),
        };
        Arc::new(Sliced {
            usable,
            ..Sliced::clone(by)
        })
    }

    /// The same range, where only those addresses help.
    #[must_use]
    pub fn wanting(&self, usable: &Arc<Space>) -> Arc<Self> {
        Arc::new(Self {
            usable: Arc::clone(usable),
            ..self.clone()
        })
    }

    /// The pool in the node's ledger.
    pub fn key(&self) -> PoolKey {
        key(&self.network, self.range)
    }

    /// The pool that all nodes would share.
    pub fn plain(&self) -> PoolKey {
        PoolKey::of_network(names::pool(&self.network, "", self.range), self.range)
    }

    /// Where the holdings are kept.
    pub fn holdings(&self) -> PoolKey {
        let name = names::pool(&self.network, "", self.range);
        PoolKey::of_network(format!("{HOLDINGS}{name}"), self.range)
    }

    /// The object that a slice is published in, as whereabouts names it.
    pub fn published(&self, node: &NodeName, slice: Prefix) -> PoolKey {
        PoolKey::of_network(names::pool(&self.network, node.as_str(), slice), slice)
    }
}

/// The pool of a range's slices in the node's ledger.
pub fn key(network: &str, range: Prefix) -> PoolKey {
    PoolKey::of_network(format!("{POOLS}{}", names::pool(network, "", range)), range)
}

/// Whether a record is held in a slice only because the range's plain pool has it: it goes when it has gone there.
pub fn is_of_plain(record: &Record) -> bool {
    record.attribute(ORIGIN) == Some(PLAIN)
}

/// Whether a pool is one of slices, in the node's own ledger.
pub fn is_sliced(pool: &PoolKey) -> bool {
    pool.name.starts_with(POOLS)
}

/// The name of the plain pool, of whichever pool of that range.
pub fn plain_name(pool: &str) -> &str {
    pool.strip_prefix(POOLS).unwrap_or(pool)
}
