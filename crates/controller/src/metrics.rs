//! What the assignment of slices counts.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

#[derive(Clone, Debug, Default)]
pub struct Metrics {
    pub passes: Counter,
    writes: Counter,
    refused: Counter,
    pub assigned: Counter,
    pub reclaimed: Counter,
    pub problems: Gauge,
    pub nodes: Gauge,
    pub pools: Gauge,
}

impl Metrics {
    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("berth_controller");
        registry.register("passes", "Passes over all networks", self.passes.clone());
        registry.register("writes", "NodeSlicePools written", self.writes.clone());
        registry.register(
            "refused_writes",
            "Writes of NodeSlicePools that did not go through",
            self.refused.clone(),
        );
        registry.register(
            "assigned_slices",
            "Slices assigned to nodes",
            self.assigned.clone(),
        );
        registry.register(
            "reclaimed_slices",
            "Slices reclaimed from nodes that are gone",
            self.reclaimed.clone(),
        );
        registry.register(
            "troubles",
            "What is wrong with definitions now",
            self.problems.clone(),
        );
        registry.register("nodes", "Nodes that are seen", self.nodes.clone());
        registry.register(
            "slice_pools",
            "NodeSlicePools that are tended",
            self.pools.clone(),
        );
    }

    pub fn wrote(&self, done: bool) {
        let counter = if done { &self.writes } else { &self.refused };
        counter.inc();
    }
}
