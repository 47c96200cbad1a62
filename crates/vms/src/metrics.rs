//! The Prometheus metrics of the VM pools.
//!
//! | series | meaning |
//! |---|---|
//! | `berth_vm_pool_vms{pool,state}` | VMs free, in use, quarantined; and of the free ones, silent |
//! | `berth_vm_pool_utilization{pool}` | the share of a pool's VMs that is not free |
//! | `berth_vm_allocations_total{pool,outcome}` | success, exhausted, failure |
//! | `berth_vm_deallocations_total{pool,outcome}` | success, failure |
//! | `berth_vm_allocation_seconds` | from the request to the VM that is ready |
//! | `berth_vm_cleanups_total{pool,outcome}` | success, failure |
//! | `berth_vm_passed_over_total{pool}` | VMs that failed their check during an allocation |
//! | `berth_vm_conflicts_total{pool}` | writes that conflicted with another writer |
//! | `berth_vm_foreign_writes_total{pool}` | writes of the state by another program |
//! | `berth_vm_restored_total{pool}` | allocations of this node that another program erased and Berth restored |
//! | `berth_vm_unparsed_total{pool}` | entries of the state that can't be parsed, and VMs held because of them |

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use berth_ledger::configmap::ForeignWrites;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use crate::pool::{PoolError, Status};

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct PoolLabel {
    pool: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct StateLabel {
    pool: String,
    state: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OutcomeLabel {
    pool: String,
    outcome: &'static str,
}

type Ratio = Gauge<f64, AtomicU64>;

/// The counters of all VM pools of a process.
#[derive(Clone, Debug)]
pub struct VmMetrics {
    vms: Family<StateLabel, Gauge>,
    utilization: Family<PoolLabel, Ratio>,
    allocations: Family<OutcomeLabel, Counter>,
    deallocations: Family<OutcomeLabel, Counter>,
    /// For all pools: one histogram for each pool would add eighteen series a pool.
    seconds: Histogram,
    cleanups: Family<OutcomeLabel, Counter>,
    passed_over: Family<PoolLabel, Counter>,
    conflicts: Family<PoolLabel, Counter>,
    foreign_writes: Family<PoolLabel, Counter>,
    restored: Family<PoolLabel, Counter>,
    unparsed: Family<PoolLabel, Counter>,
}

impl Default for VmMetrics {
    fn default() -> Self {
        Self {
            vms: Family::default(),
            utilization: Family::default(),
            allocations: Family::default(),
            deallocations: Family::default(),
            seconds: Histogram::new(exponential_buckets(0.001, 2.0, 16)),
            cleanups: Family::default(),
            passed_over: Family::default(),
            conflicts: Family::default(),
            foreign_writes: Family::default(),
            restored: Family::default(),
            unparsed: Family::default(),
        }
    }
}

impl VmMetrics {
    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("berth_vm");
        registry.register("pool_vms", "VMs by state", self.vms.clone());
        registry.register(
            "pool_utilization",
            "The share of VMs that is not free",
            self.utilization.clone(),
        );
        registry.register("allocations", "Requests for a VM", self.allocations.clone());
        registry.register(
            "deallocations",
            "VMs deallocated",
            self.deallocations.clone(),
        );
        registry.register(
            "allocation_seconds",
            "From a request to a VM that is ready",
            self.seconds.clone(),
        );
        registry.register(
            "cleanups",
            "Reboots of VMs that were deallocated",
            self.cleanups.clone(),
        );
        registry.register(
            "passed_over",
            "VMs that failed their check when they were to be allocated",
            self.passed_over.clone(),
        );
        registry.register(
            "conflicts",
            "Writes of the state that met another writer",
            self.conflicts.clone(),
        );
        registry.register(
            "foreign_writes",
            "Writes of the state by another program",
            self.foreign_writes.clone(),
        );
        registry.register(
            "restored",
            "Allocations of this node that another program erased and that were put back",
            self.restored.clone(),
        );
        registry.register(
            "unparsed",
            "Entries of the state that can't be parsed, and VMs held because of them",
            self.unparsed.clone(),
        );
    }

    pub(crate) fn of(&self, pool: &str) -> PoolMeters {
        PoolMeters {
            all: self.clone(),
            pool: pool.into(),
        }
    }
}

/// One pool's counters.
#[derive(Clone, Debug)]
pub(crate) struct PoolMeters {
    all: VmMetrics,
    pool: String,
}

impl PoolMeters {
    fn label(&self) -> PoolLabel {
        PoolLabel {
            pool: self.pool.clone(),
        }
    }

    fn outcome(&self, outcome: &'static str) -> OutcomeLabel {
        OutcomeLabel {
            pool: self.pool.clone(),
            outcome,
        }
    }

    pub(crate) fn allocated(&self, error: Option<&PoolError>, took: Duration) {
        let outcome = match error {
            None => "success",
            Some(PoolError::Exhausted { .. }) => "exhausted",
            Some(_) => "failure",
        };
        self.all
            .allocations
            .get_or_create(&self.outcome(outcome))
            .inc();
        self.all.seconds.observe(took.as_secs_f64());
    }

    pub(crate) fn deallocated(&self, error: Option<&PoolError>) {
        let outcome = if error.is_none() {
            "success"
        } else {
            "failure"
        };
        self.all
            .deallocations
            .get_or_create(&self.outcome(outcome))
            .inc();
    }

    pub(crate) fn cleaned(&self, ok: bool) {
        let outcome = if ok { "success" } else { "failure" };
        self.all
            .cleanups
            .get_or_create(&self.outcome(outcome))
            .inc();
    }

    pub(crate) fn passed_over(&self) {
        self.all.passed_over.get_or_create(&self.label()).inc();
    }

    /// Counted by the ledger; `so_far` is its number.
    pub(crate) fn conflicts(&self, so_far: u64) {
        self.raise(&self.all.conflicts, so_far);
    }

    /// Counted by the ledger, too.
    pub(crate) fn foreign(&self, so_far: ForeignWrites, unparsed: u64) {
        self.raise(&self.all.foreign_writes, so_far.writes);
        self.raise(&self.all.restored, so_far.restored);
        self.raise(&self.all.unparsed, unparsed);
    }

    fn raise(&self, counters: &Family<PoolLabel, Counter>, so_far: u64) {
        let counter = counters.get_or_create(&self.label());
        counter.inc_by(so_far.saturating_sub(counter.get()));
    }

    pub(crate) fn counted(&self, status: &Status) {
        let passed_over = [
            &status.silent,
            &status.untrusted,
            &status.locked,
            &status.occupied,
        ];
        let silent = passed_over.iter().map(|ips| ips.len()).sum();
        for (state, count) in [
            ("available", status.available),
            ("in_use", status.in_use),
            ("quarantined", status.quarantined),
            ("silent", silent),
        ] {
            let label = StateLabel {
                pool: self.pool.clone(),
                state,
            };
            let count = i64::try_from(count).unwrap_or(i64::MAX);
            self.all.vms.get_or_create(&label).set(count);
        }
        let taken = (status.in_use + status.quarantined) as f64;
        let share = taken / status.total.max(1) as f64;
        self.all.utilization.get_or_create(&self.label()).set(share);
    }
}
