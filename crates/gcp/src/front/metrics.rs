//! What the front counts, in Prometheus' form.
//!
//! | series | what it tells |
//! |---|---|
//! | `berth_gcp_calls_total{verb,outcome}` | CNI calls: done, delegated, later (code 11), refused |
//! | `berth_gcp_add_seconds` | how long ADDs took that got an address |
//! | `berth_gcp_moves_total{outcome}` | moves that this process ended: moved, back, unfinished |
//! | `berth_gcp_collected_total{gone}` | addresses released because their pod, or their node, is gone |
//! | `berth_gcp_requests_total{group,outcome}` | requests to Google by quota group: read, change, wait; ok, limited, refused, failed |
//! | `berth_gcp_operation_seconds` | from an update to the end of its operation |

use std::time::Duration;

use berth_cni::{CniError, Code};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use crate::cloud::CloudMetrics;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct CallLabel {
    verb: &'static str,
    outcome: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OutcomeLabel {
    outcome: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct GoneLabel {
    gone: &'static str,
}

/// The counters of one process.
#[derive(Clone, Debug)]
pub struct GcpMetrics {
    calls: Family<CallLabel, Counter>,
    add_seconds: Histogram,
    moves: Family<OutcomeLabel, Counter>,
    collected: Family<GoneLabel, Counter>,
    cloud: CloudMetrics,
}

impl Default for GcpMetrics {
    fn default() -> GcpMetrics {
        GcpMetrics {
            calls: Family::default(),
            add_seconds: Histogram::new(exponential_buckets(0.01, 2.0, 14)),
            moves: Family::default(),
            collected: Family::default(),
            cloud: CloudMetrics::default(),
        }
    }
}

/// How a call ended.
pub(super) enum Ended<'a> {
    Done,
    Delegated,
    Failed(&'a CniError),
}

/// How a move ended.
#[derive(Clone, Copy, Debug)]
pub(super) enum MoveEnd {
    Moved,
    Back,
    Unfinished,
}

/// What is gone with an address's owner.
#[derive(Clone, Copy, Debug)]
pub(super) enum Gone {
    Pod,
    Node,
}

impl GcpMetrics {
    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("berth_gcp");
        registry.register("calls", "CNI calls of gcp-ipam", self.calls.clone());
        registry.register(
            "add_seconds",
            "How long ADDs took that got an address",
            self.add_seconds.clone(),
        );
        registry.register("moves", "Moves of addresses that ended", self.moves.clone());
        registry.register(
            "collected",
            "Addresses released because their pod or node is gone",
            self.collected.clone(),
        );
        self.cloud.register(registry);
    }

    /// For the client of the Compute API.
    pub(super) fn cloud(&self) -> CloudMetrics {
        self.cloud.clone()
    }

    pub(super) fn called(&self, verb: &'static str, ended: &Ended<'_>, took: Duration) {
        let outcome = match ended {
            Ended::Done => "done",
            Ended::Delegated => "delegated",
            Ended::Failed(error) if error.code == Code::TryLater => "later",
            Ended::Failed(_) => "refused",
        };
        self.calls.get_or_create(&CallLabel { verb, outcome }).inc();
        if verb == "ADD" && outcome == "done" {
            self.add_seconds.observe(took.as_secs_f64());
        }
    }

    pub(super) fn moved(&self, end: MoveEnd) {
        let outcome = match end {
            MoveEnd::Moved => "moved",
            MoveEnd::Back => "back",
            MoveEnd::Unfinished => "unfinished",
        };
        self.moves.get_or_create(&OutcomeLabel { outcome }).inc();
    }

    pub(super) fn collected(&self, gone: Gone) {
        let gone = match gone {
            Gone::Pod => "pod",
            Gone::Node => "node",
        };
        self.collected.get_or_create(&GoneLabel { gone }).inc();
    }
}
