//! What the collector of pods' addresses counts beside releases.

use berth_collector::CollectorMetrics;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::METRICS;

/// The metrics of all collectors of pods' addresses in a process.
#[derive(Clone, Debug, Default)]
pub struct GarbageMetrics {
    pub(super) collector: CollectorMetrics,
    pub(super) pods: PodMetrics,
}

impl GarbageMetrics {
    pub fn register(&self, registry: &mut Registry) {
        self.collector.register(registry, METRICS);
        self.pods.register(registry, METRICS);
    }
}

#[derive(Clone, Debug, Default)]
pub struct PodMetrics {
    pub(super) ended: Counter,
    pub(super) reserved: Counter,
    pub(super) disputes: Gauge,
}

impl PodMetrics {
    pub(super) fn register(&self, registry: &mut Registry, prefix: &str) {
        let registry = registry.sub_registry_with_prefix(prefix);
        registry.register(
            "reservations_ended",
            "Reservations without an entry that were ended",
            self.ended.clone(),
        );
        registry.register(
            "reservations_made",
            "Reservations that were made for entries which lacked them",
            self.reserved.clone(),
        );
        registry.register(
            "disputes",
            "Addresses with several living holders: in pools that overlap, by reservation, or by their pods' network-status",
            self.disputes.clone(),
        );
    }
}
