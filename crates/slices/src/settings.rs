//! How a node keeps its slices.

use std::path::PathBuf;
use std::time::Duration;

#[derive(Clone, Debug)]
pub struct SliceSettings {
    /// How long changes are gathered before they are published together.
    pub gather: Duration,
    /// The same while changes keep coming; twice as long each time.
    pub gather_busy: Duration,
    /// And no longer than that.
    pub gather_most: Duration,
    /// How long a publication is put off at most while the API server is slow to answer those who wait for an address.
    pub publish_within: Duration,
    /// About how often holdings are compared with the cluster's objects without any reason.
    pub look: Duration,
    /// How long an ADD waits for a slice that a controller is about to assign.
    pub assign_wait: Duration,
    /// How long a slice must have been empty before it is given back.
    pub idle: Duration,
    /// How many addresses a node holds beyond what it uses, in hundredths of a slice.
    pub reserve: u128,
    /// How long another node may take to answer a request for a part of its slice.
    pub donor_wait: Duration,
    /// How long an offer may lie before it is taken back.
    pub offer_wait: Duration,
    /// Where libcni keeps the results of this node's attachments; none: nowhere that this process may read.
    pub result_caches: Vec<PathBuf>,
    /// A directory that goes with the node's boot, and in no backup; none: a file put back is not noticed without the API
    /// server.
    pub runtime: Option<PathBuf>,
}

impl Default for SliceSettings {
    fn default() -> Self {
        Self {
            gather: Duration::from_millis(200),
            gather_busy: Duration::from_secs(1),
            gather_most: Duration::from_secs(5),
            publish_within: Duration::from_secs(120),
            look: Duration::from_secs(60),
            assign_wait: Duration::from_secs(3),
            idle: Duration::from_secs(600),
            reserve: 25,
            donor_wait: Duration::from_secs(2),
            offer_wait: Duration::from_secs(15),
            result_caches: Vec::new(),
            runtime: None,
        }
    }
}
