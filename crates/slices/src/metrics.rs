//! What a node counts of its slices.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

/// One range on this node: as many as the node has sliced networks.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct OfRange {
    pub pool: String,
}

#[derive(Clone, Debug)]
pub struct SliceMetrics {
    pub(crate) held: Family<OfRange, Gauge>,
    pub(crate) free: Family<OfRange, Gauge>,
    pub(crate) refills: Family<OfRange, Counter>,
    pub(crate) yields: Family<OfRange, Counter>,
    pub(crate) borrows: Family<OfRange, Counter>,
    pub(crate) donations: Family<OfRange, Counter>,
    pub(crate) lost: Family<OfRange, Counter>,
    pub(crate) conflicts: Family<OfRange, Counter>,
    pub(crate) publishes: Family<OfRange, Counter>,
    pub(crate) lag: Histogram,
}

impl Default for SliceMetrics {
    fn default() -> Self {
        Self {
            held: Family::default(),
            free: Family::default(),
            refills: Family::default(),
            yields: Family::default(),
            borrows: Family::default(),
            donations: Family::default(),
            lost: Family::default(),
            conflicts: Family::default(),
            publishes: Family::default(),
            lag: Histogram::new([0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0]),
        }
    }
}

impl SliceMetrics {
    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("berth_slices");
        registry.register(
            "held",
            "Slices that this node gives from",
            self.held.clone(),
        );
        registry.register(
            "free_addresses",
            "Addresses of this node's slices that nobody holds",
            self.free.clone(),
        );
        registry.register("refills", "Slices gained", self.refills.clone());
        registry.register("yields", "Empty slices given back", self.yields.clone());
        registry.register(
            "borrows",
            "Parts of other nodes' slices gained",
            self.borrows.clone(),
        );
        registry.register(
            "donations",
            "Parts of this node's slices given to others",
            self.donations.clone(),
        );
        registry.register(
            "lost",
            "Slices that became another's while this node held them",
            self.lost.clone(),
        );
        registry.register(
            "conflicts",
            "Addresses of this node's slices that somebody else has given too",
            self.conflicts.clone(),
        );
        registry.register(
            "publishes",
            "Writes of slices' pool objects",
            self.publishes.clone(),
        );
        registry.register_with_unit(
            "publish_lag",
            "Time from a change to its publication",
            Unit::Seconds,
            self.lag.clone(),
        );
    }
}
