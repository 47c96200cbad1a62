//! What a desk counts.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct PoolLabel {
    pool: String,
}

fn sizes() -> Histogram {
    Histogram::new(exponential_buckets(1.0, 2.0, 11))
}

fn times() -> Histogram {
    Histogram::new(exponential_buckets(0.0005, 2.0, 17))
}

/// The counters of all desks of a process, by pool. Histograms are the process's: one of each pool would be thirty
/// series more for every pool.
#[derive(Clone, Debug)]
pub struct DeskMetrics {
    requests: Family<PoolLabel, Counter>,
    commits: Family<PoolLabel, Counter>,
    conflicts: Family<PoolLabel, Counter>,
    retries: Family<PoolLabel, Counter>,
    by_leader: Family<PoolLabel, Counter>,
    alone: Family<PoolLabel, Counter>,
    batch: Histogram,
    seconds: Histogram,
}

impl Default for DeskMetrics {
    fn default() -> Self {
        Self {
            requests: Family::default(),
            commits: Family::default(),
            conflicts: Family::default(),
            retries: Family::default(),
            by_leader: Family::default(),
            alone: Family::default(),
            batch: sizes(),
            seconds: times(),
        }
    }
}

impl DeskMetrics {
    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("berth_desk");
        registry.register(
            "requests",
            "Requests put to the desk",
            self.requests.clone(),
        );
        registry.register("commits", "Commits to the ledger", self.commits.clone());
        registry.register(
            "conflicts",
            "Commits that met another writer",
            self.conflicts.clone(),
        );
        registry.register(
            "retries",
            "Tries after a transient failure",
            self.retries.clone(),
        );
        registry.register(
            "common",
            "Requests that the leader's desk answered",
            self.by_leader.clone(),
        );
        registry.register(
            "alone",
            "Requests that the leader's desk did not answer, served here",
            self.alone.clone(),
        );
        registry.register("batch_size", "Requests in one commit", self.batch.clone());
        registry.register(
            "seconds",
            "From a request to its answer",
            self.seconds.clone(),
        );
    }

    pub fn of(&self, pool: &str) -> PoolMetrics {
        let label = PoolLabel {
            pool: pool.to_owned(),
        };
        PoolMetrics {
            requests: self.requests.get_or_create(&label).clone(),
            commits: self.commits.get_or_create(&label).clone(),
            conflicts: self.conflicts.get_or_create(&label).clone(),
            retries: self.retries.get_or_create(&label).clone(),
            by_leader: self.by_leader.get_or_create(&label).clone(),
            alone: self.alone.get_or_create(&label).clone(),
            batch: self.batch.clone(),
            seconds: self.seconds.clone(),
        }
    }

    /// Ends the series of a pool whose desk is closed.
    pub(crate) fn forget(&self, pool: &str) {
        let label = PoolLabel {
            pool: pool.to_owned(),
        };
        for family in [
            &self.requests,
            &self.commits,
            &self.conflicts,
            &self.retries,
            &self.by_leader,
            &self.alone,
        ] {
            family.remove(&label);
        }
    }
}

/// One pool's counters.
#[derive(Clone, Debug)]
pub struct PoolMetrics {
    pub requests: Counter,
    pub commits: Counter,
    pub conflicts: Counter,
    pub retries: Counter,
    /// Answered by the leader's desk.
    pub by_leader: Counter,
    /// Served here because it did not answer.
    pub alone: Counter,
    /// Of all pools.
    pub batch: Histogram,
    /// Of all pools.
    pub seconds: Histogram,
}
