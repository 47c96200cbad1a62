//! The metrics of the nodes front.
//!
//! | series | meaning |
//! |---|---|
//! | `berth_nodes_allocations_total{pool,outcome}` | claims of this node: success, none_free |
//! | `berth_nodes_applies_total{outcome}` | applies to this host: success, failure, collision |
//! | `berth_nodes_apply_seconds` | how long they took |
//! | `berth_nodes_withdrawals_total` | addresses that were taken off this host again |
//! | `berth_node_pool_addresses{pool,state}` | of the leader: addresses of a pool, used and free |
//! | `berth_node_pool_condition{pool,reason}` | of the leader: 1 for the reason of the condition Available |
//! | `berth_node_pool_releases_total{pool,why}` | of the leader: node_gone, policy_gone, stale, reset |
//! | `berth_node_enactments{phase}` | of the leader: enactments of pool policies |

use std::collections::BTreeMap;
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use crate::handler::Phase;
use crate::upkeep::Freed;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Allocated {
    pool: String,
    outcome: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Applied {
    outcome: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct PoolState {
    pool: String,
    state: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct PoolReason {
    pool: String,
    reason: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Released {
    pool: String,
    why: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct PhaseLabel {
    phase: &'static str,
}

/// How an apply went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Success,
    Failure,
    Collision,
}

/// The figures of one node's handler.
#[derive(Clone, Debug)]
pub struct HandlerMetrics {
    allocations: Family<Allocated, Counter>,
    applies: Family<Applied, Counter>,
    seconds: Histogram,
    withdrawals: Counter,
}

impl Default for HandlerMetrics {
    fn default() -> HandlerMetrics {
        HandlerMetrics {
            allocations: Family::default(),
            applies: Family::default(),
            seconds: Histogram::new(exponential_buckets(0.05, 2.0, 12)),
            withdrawals: Counter::default(),
        }
    }
}

impl HandlerMetrics {
    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("berth_nodes");
        registry.register(
            "allocations",
            "Claims of this node on NodeIPPools",
            self.allocations.clone(),
        );
        registry.register(
            "applies",
            "Applies of a policy to this host",
            self.applies.clone(),
        );
        registry.register(
            "apply_seconds",
            "How long an apply to this host took",
            self.seconds.clone(),
        );
        registry.register(
            "withdrawals",
            "Addresses that were taken off this host",
            self.withdrawals.clone(),
        );
    }

    pub(crate) fn allocated(&self, pool: &str, granted: bool) {
        let label = Allocated {
            pool: pool.to_owned(),
            outcome: if granted { "success" } else { "none_free" },
        };
        self.allocations.get_or_create(&label).inc();
    }

    pub(crate) fn applied(&self, outcome: Outcome, took: Duration) {
        let outcome = match outcome {
            Outcome::Success => "success",
            Outcome::Failure => "failure",
            Outcome::Collision => "collision",
        };
        self.applies.get_or_create(&Applied { outcome }).inc();
        self.seconds.observe(took.as_secs_f64());
    }

    pub(crate) fn withdrew(&self, addresses: usize) {
        self.withdrawals
            .inc_by(u64::try_from(addresses).unwrap_or(u64::MAX));
    }
}

/// A pool, as the leader last saw it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PoolFigures {
    pub used: i64,
    pub free: i64,
    pub reason: &'static str,
}

/// The figures of the leader. Followers show no gauges: what they know may be old.
#[derive(Clone, Debug, Default)]
pub struct UpkeepMetrics {
    addresses: Family<PoolState, Gauge>,
    conditions: Family<PoolReason, Gauge>,
    releases: Family<Released, Counter>,
    enactments: Family<PhaseLabel, Gauge>,
}

impl UpkeepMetrics {
    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("berth_node");
        registry.register(
            "pool_addresses",
            "Addresses of a NodeIPPool by state",
            self.addresses.clone(),
        );
        registry.register(
            "pool_condition",
            "1 for the reason of a NodeIPPool's condition Available",
            self.conditions.clone(),
        );
        registry.register(
            "pool_releases",
            "Addresses that were released, by cause",
            self.releases.clone(),
        );
        registry.register(
            "enactments",
            "Enactments of pool policies by phase",
            self.enactments.clone(),
        );
    }

    pub(crate) fn released(&self, pool: &str, why: Freed) {
        let label = Released {
            pool: pool.to_owned(),
            why: match why {
                Freed::NodeGone => "node_gone",
                Freed::PolicyGone => "policy_gone",
                Freed::Stale => "stale",
                Freed::Reset => "reset",
            },
        };
        self.releases.get_or_create(&label).inc();
    }

    /// Replaces all gauges: a pool that is gone has none.
    pub(crate) fn show(
        &self,
        pools: impl Iterator<Item = (String, PoolFigures)>,
        phases: &BTreeMap<&'static str, i64>,
    ) {
        self.clear();
        for (pool, figures) in pools {
            for (state, count) in [("used", figures.used), ("free", figures.free)] {
                let pool = pool.clone();
                let gauge = self.addresses.get_or_create(&PoolState { pool, state });
                gauge.set(count);
            }
            let reason = figures.reason;
            self.conditions
                .get_or_create(&PoolReason { pool, reason })
                .set(1);
        }
        for (phase, count) in phases {
            self.enactments
                .get_or_create(&PhaseLabel { phase })
                .set(*count);
        }
    }

    pub(crate) fn clear(&self) {
        self.addresses.clear();
        self.conditions.clear();
        self.enactments.clear();
    }
}

impl Phase {
    /// Its label value.
    pub(crate) const fn label(self) -> &'static str {
        match self {
            Phase::New => "new",
            Phase::Pending => "pending",
            Phase::Progressing => "progressing",
            Phase::Available => "available",
            Phase::Failing => "failing",
            Phase::Aborted => "aborted",
        }
    }
}
