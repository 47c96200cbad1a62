//! The pods front's policy for the collector (`crates/collector`): addresses of pods that are gone, with their reservations.
//!
//! Beside pools, a sweep repairs what whereabouts keeps with them: reservations that lack an entry, entries that lack
//! their reservation, and addresses that IPAMClaims record and no pool holds. It reports addresses that several pods have.
//!
//! | file | part |
//! |---|---|
//! | `policy` | what a release needs and what ends with it |
//! | `survey` | what a sweep keeps of reservations, networks and this node's journal |
//! | [`plan`], `repair` | which entries are freed and which reservations end or are made; the steps beside releases |
//! | `reservation_index`, `packed_reservations` | which reservation belongs to which entry |
//! | [`pool_policies`] | what networks want of their pools |
//! | [`duplicates`], [`address_index`] | addresses that several owners have |
//! | `claim_repair` | addresses that claims record and no pool holds |
//! | `journalled` | this node's own entries, by its journal |
//! | `sandbox` | whether a container's sandbox is still on this node |
//! | [`reboot`] | what a machine without a cluster frees at its start |
//! | `events` | Events on pods |

pub mod address_index;
mod claim_repair;
pub mod duplicates;
mod events;
mod journalled;
mod metrics;
mod packed_reservations;
pub mod plan;
mod policy;
pub mod pool_policies;
pub mod reboot;
mod repair;
pub(crate) mod reservation_index;
pub(crate) mod sandbox;
mod survey;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

pub use berth_collector::GracePeriods;
use berth_collector::{CollectTask, Collector, CollectorSettings};
use berth_kube::Connection;
use berth_ledger::SharedRecordLedger;
use berth_whereabouts::KubeLedger;

pub use metrics::GarbageMetrics;
pub use policy::PodPolicy;

use crate::config::flat;
use crate::journal::Journal;
use journalled::Journalled;

/// What the names of the collector's metrics begin with.
const METRICS: &str = "berth_garbage";

/// How addresses of pods that are gone are collected.
#[derive(Clone, Debug)]
pub struct GarbageSettings {
    pub grace: GracePeriods,
    /// About how often all pools of the cluster are read, by one agent or another.
    pub interval: Duration,
    /// Where the flat file is searched.
    pub flat_places: Vec<PathBuf>,
}

impl Default for GarbageSettings {
    fn default() -> Self {
        let CollectorSettings { grace, interval } = CollectorSettings::default();
        GarbageSettings {
            grace,
            interval,
            flat_places: flat::PLACES.iter().map(PathBuf::from).collect(),
        }
    }
}

/// The collector of the node `node`, which is in the boot `boot`, for the pools of `ledger`. With a journal, this node's own
/// pods are collected when they change, and by their UIDs.
pub fn collector(
    connection: Connection,
    ledger: SharedRecordLedger,
    (node, boot): (&str, &str),
    journal: Option<Arc<Journal>>,
    settings: &GarbageSettings,
    metrics: &GarbageMetrics,
) -> Collector<PodPolicy> {
    let policy = PodPolicy::new(
        &connection,
        SharedRecordLedger::clone(&ledger),
        (node, boot),
        journal.clone(),
        settings.flat_places.clone(),
        metrics.pods.clone(),
    );
    let works = CollectorSettings {
        grace: settings.grace,
        interval: settings.interval,
    };
    let of_collector = metrics.collector.clone();
    let collector = Collector::new(connection, ledger, policy, node, works, of_collector);
    match journal {
        Some(journal) => collector.with_local(Arc::new(Journalled {
            journal,
            node: node.to_owned(),
            boot: boot.to_owned(),
        })),
        None => collector,
    }
}

/// The collector of the whole cluster as a leader task. `leads` says whether this process leads now.
pub fn collect_task(
    connection: Connection,
    identity: &str,
    settings: &GarbageSettings,
    leads: impl Fn() -> bool + Send + Sync + 'static,
) -> CollectTask<PodPolicy> {
    let ledger = Arc::new(KubeLedger::new(connection.clone()));
    let metrics = GarbageMetrics::default();
    let here = (identity, "");
    let collector = collector(connection, ledger, here, None, settings, &metrics);
    CollectTask::new("garbage", METRICS, collector.led(leads))
}
