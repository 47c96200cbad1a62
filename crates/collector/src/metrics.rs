//! The metrics of collectors.

use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use super::executor::Outcome;
use super::liveness::Reason;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

/// The metrics of all collectors of one front in a process.
#[derive(Clone, Debug)]
pub struct CollectorMetrics {
    freed: Family<ReasonLabel, Counter>,
    pub(crate) spared: Counter,
    pub(crate) outrun: Counter,
    pub(crate) failed: Counter,
    pub(crate) suspects: Gauge,
    pub(crate) desks: Gauge,
    sweeps: Counter,
    seconds: Histogram,
}

impl Default for CollectorMetrics {
    fn default() -> Self {
        CollectorMetrics {
            freed: Family::default(),
            spared: Counter::default(),
            outrun: Counter::default(),
            failed: Counter::default(),
            suspects: Gauge::default(),
            desks: Gauge::default(),
            sweeps: Counter::default(),
            // From ten milliseconds to five minutes.
            seconds: Histogram::new(exponential_buckets(0.01, 2.0, 16)),
        }
    }
}

impl CollectorMetrics {
    /// Registers them under `prefix`, such as `berth_garbage`.
    pub fn register(&self, registry: &mut Registry, prefix: &str) {
        let registry = registry.sub_registry_with_prefix(prefix);
        let counters = [
            (
                "spared",
                "Suspected entries that the last read found alive",
                &self.spared,
            ),
            (
                "outrun",
                "Suspected entries that had another holder when they were to be freed",
                &self.outrun,
            ),
            (
                "failed",
                "Steps that failed: entries that could not be freed, or repairs",
                &self.failed,
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
            "Entries that are suspected and wait for the grace period",
            self.suspects.clone(),
        );
        registry.register(
            "desks",
            "Pools that the collector keeps a copy of because it released an address of theirs lately",
            self.desks.clone(),
        );
        registry.register(
            "sweep_seconds",
            "How long a read of all pools takes",
            self.seconds.clone(),
        );
    }

    pub(crate) fn count(&self, outcome: Outcome) {
        match outcome {
            Outcome::Done => {}
            Outcome::Spared => {
                self.spared.inc();
            }
            Outcome::Superseded => {
                self.outrun.inc();
            }
            Outcome::Failed { .. } => {
                self.failed.inc();
            }
        }
    }

    pub(crate) fn count_freed(&self, reason: &Reason) {
        let reason = match reason {
            Reason::Absent => "absent",
            Reason::Replaced => "replaced",
            Reason::Finished(_) => "finished",
            Reason::NodeGone(_) => "node_gone",
        };
        self.freed.get_or_create(&ReasonLabel { reason }).inc();
    }

    pub(crate) fn count_sweep(&self, took: Duration) {
        self.sweeps.inc();
        self.seconds.observe(took.as_secs_f64());
    }
}
