//! Why there is no slice to give from. All of it may be otherwise a moment later.

use std::time::Duration;

use berth_core::Prefix;
use berth_core::slice::NodeName;
use berth_desk::DeskError;
use berth_ledger::LedgerError;

use crate::confirm::is_away;

#[derive(Debug, thiserror::Error)]
pub enum SliceError {
    /// Wait for the controller.
    #[error(
        "node {node} has no slice of {range} in NodeSlicePool {slice_pool} yet; a controller assigns it"
    )]
    Unassigned {
        node: NodeName,
        range: Prefix,
        slice_pool: String,
    },
    /// Wait for the kubelet to register the node, or give the agent its name.
    #[error(
        "there is no Node {node}: a controller takes the slices of nodes that do not exist, so none is claimed or given from under \
         this name; set --node (NODENAME) to the name that this node has in the cluster, or wait until it is registered"
    )]
    Unregistered { node: NodeName },
    /// The controller cuts another range than the network has.
    #[error("NodeSlicePool {slice_pool} is of {found}, and the network's range is {range}")]
    OtherRange {
        slice_pool: String,
        found: Prefix,
        range: Prefix,
    },
    /// Wait for others to give back.
    #[error("no slice of {range} is free for node {node}{}", asked(*.donors))]
    NoSlice {
        node: NodeName,
        range: Prefix,
        donors: usize,
    },
    /// Wait for slices of the range that the network had.
    #[error(
        "slices of {range} would lie over slices of {others}, of which {count} are still claimed (nodes: {nodes}), and their addresses may \
         be without reservations, for enable_overlapping_ranges is false or was when they gave: nothing is given before these slices are \
         given back, which their nodes do when the last pod with an address of them is gone; or set the range to what it was"
    )]
    Overlapped {
        range: Prefix,
        others: String,
        nodes: String,
        count: usize,
    },
    /// Wait for other nodes to create again what the API server lost.
    #[error(
        "the API server was away: no slice of {range} is claimed for {seconds} s, so that every node has created again what a restored \
         backup lacks"
    )]
    Settling { range: Prefix, seconds: u64 },
    /// Another file of this node has its slices.
    #[error(
        "the slices of {range} that node {node} has are kept in the database {path}, and this call was told {ours}: give it \
         that one (--database, BERTH_DATABASE, or `berth install`, which tells the engine beside the plugin), or start the node's \
         agent, which takes them over"
    )]
    OtherFile {
        range: Prefix,
        node: NodeName,
        path: String,
        ours: String,
    },
    /// The network is on its way back to its plain pool.
    #[error("{range} is going back to its plain pool; nothing is given from slices of it")]
    Leaving { range: Prefix },
    /// Wait for other nodes, or for a controller to see that they are gone.
    #[error("{range} is going back to its plain pool; slices of it are still held by {nodes}")]
    StillSliced { range: Prefix, nodes: String },
    /// Wait for the pods of slices to go, or go back to the slices.
    #[error(
        "slices of {range} are assigned to nodes by NodeSlicePool {slice_pool}, and what they gave is not known elsewhere, for \
         enable_overlapping_ranges is false or was when they gave: without node_slice_size nothing is given of this range while \
         that NodeSlicePool exists; set node_slice_size again, or wait: the controller deletes it when the last pod with an address of it is gone \
         (its annotation berth.dev/conditions names them)"
    )]
    StillAssigned { range: Prefix, slice_pool: String },
    /// The network's slices do not fit its range.
    #[error("slice_size: {0}")]
    Cut(#[from] berth_core::slice::SliceError),
    #[error("slices of {range} can't be confirmed: {source}")]
    Unconfirmed { range: Prefix, source: LedgerError },
    #[error(transparent)]
    Store(#[from] LedgerError),
    #[error(transparent)]
    Desk(#[from] DeskError),
}

impl SliceError {
    /// Whether the API server may answer the same question a moment later.
    pub fn is_passing(&self) -> bool {
        match self {
            Self::Store(error) | Self::Unconfirmed { source: error, .. } => {
                error.is_passing() || error.needs_reload()
            }
            Self::Settling { .. } => true,
            _ => false,
        }
    }

    /// Whether the API server did not answer, or was too busy to.
    pub fn is_outage(&self) -> bool {
        match self {
            Self::Store(error) | Self::Unconfirmed { source: error, .. } => is_away(error),
            _ => false,
        }
    }

    /// When the API server wants to be asked again, if it said so.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Store(LedgerError::Unavailable { retry_after, .. })
            | Self::Unconfirmed {
                source: LedgerError::Unavailable { retry_after, .. },
                ..
            } => *retry_after,
            _ => None,
        }
    }
}

fn asked(donors: usize) -> String {
    match donors {
        0 => String::new(),
        many => format!("; {many} other slices were asked for a part"),
    }
}

#[cfg(test)]
mod tests {
    use berth_core::slice::Cut;

    use super::*;

    #[test]
    fn a_size_that_does_not_cut_is_named_as_claimed_slices_have_it() {
        let cut = Cut::new("10.0.0.0/24".parse().unwrap(), 16);
        let error = SliceError::from(cut.unwrap_err()).to_string();
        assert!(error.starts_with("slice_size: /16 "), "{error}");
    }
}
