//! What a collector counts.

use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use super::judge::Reason;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

/// The figures of all collectors of a process.
#[derive(Clone, Debug)]
pub struct GarbageMetrics {
    freed: Family<ReasonLabel, Counter>,
    pub(super) spared: Counter,
    pub(super) outrun: Counter,
    pub(super) failed: Counter,
    pub(super) ended: Counter,
    pub(super) reserved: Counter,
    pub(super) suspects: Gauge,
    pub(super) disputes: Gauge,
    pub(super) desks: Gauge,
    sweeps: Counter,
    seconds: Histogram,
}

impl Default for GarbageMetrics {
    fn default() -> Self {
        GarbageMetrics {
            freed: Family::default(),
            spared: Counter::default(),
            outrun: Counter::default(),
            failed: Counter::default(),
            ended: Counter::default(),
            reserved: Counter::default(),
            suspects: Gauge::default(),
            disputes: Gauge::default(),
            desks: Gauge::default(),
            sweeps: Counter::default(),
            // From ten milliseconds to five minutes.
            seconds: Histogram::new(exponential_buckets(0.01, 2.0, 16)),
        }
    }
}

impl GarbageMetrics {
    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("berth_garbage");
        let counters = [
            (
                "spared",
                "Suspected entries that the last look found alive",
                &self.spared,
            ),
            (
                "outrun",
                "Suspected entries that had another holder when they were to be freed",
                &self.outrun,
            ),
            (
                "failed",
                "Entries and reservations that could not be freed or repaired",
                &self.failed,
            ),
            (
                "reservations_ended",
                "Reservations without an entry that were ended",
                &self.ended,
            ),
            (
                "reservations_made",
                "Reservations that were made for entries which lacked them",
                &self.reserved,
            ),
            ("sweeps", "Sweeps over all pools", &self.sweeps),
        ];
        for (name, help, counter) in counters {
            registry.register(name, help, counter.clone());
        }
        registry.register(
            "freed",
            "Addresses freed, by why their pod is gone",
            self.freed.clone(),
        );
        registry.register(
            "suspects",
            "What is suspected and not old enough to be freed",
            self.suspects.clone(),
        );
        registry.register(
            "disputes",
            "Addresses with several living holders: in pools that overlap, by reservation, or by their pods' network-status",
            self.disputes.clone(),
        );
        registry.register(
            "desks",
            "Pools of which the collector holds a copy, because it released something lately",
            self.desks.clone(),
        );
        registry.register(
            "sweep_seconds",
            "How long a look at all pools takes",
            self.seconds.clone(),
        );
    }

    pub(super) fn count_freed(&self, reason: &Reason) {
        let reason = match reason {
            Reason::Absent => "absent",
            Reason::Replaced => "replaced",
            Reason::Finished(_) => "finished",
            Reason::NodeGone(_) => "node_gone",
        };
        self.freed.get_or_create(&ReasonLabel { reason }).inc();
    }

    pub(super) fn count_sweep(&self, took: Duration) {
        self.sweeps.inc();
        self.seconds.observe(took.as_secs_f64());
    }
}
