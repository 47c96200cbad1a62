//! The garbage collectors of this node: one for every cluster that it keeps pools in.

use std::path::PathBuf;
use std::sync::Arc;

use berth_ledger::SharedLedger;
use berth_ledger::kube::Connection;
use berth_slices::slices::Setup;
use berth_slices::{SliceMetrics, SliceSettings, Slices};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::boot;
use crate::garbage::{Collector, GarbageMetrics, GarbageSettings};
use crate::journal::Journal;
use crate::policy::Policies;

/// Starts collectors, and stops them with the agent.
#[derive(Debug, Clone)]
pub(crate) struct Collectors {
    pub(crate) node: String,
    pub(crate) settings: GarbageSettings,
    pub(crate) metrics: GarbageMetrics,
    pub(crate) slice_settings: SliceSettings,
    pub(crate) slice_metrics: SliceMetrics,
    pub(crate) stop: CancellationToken,
    pub(crate) tasks: TaskTracker,
}

impl Collectors {
    /// The node's slices of a cluster, kept until the token is cancelled.
    pub(crate) fn slices(
        &self,
        connection: &Connection,
        local: SharedLedger,
        database: PathBuf,
    ) -> (Slices, CancellationToken) {
        let stop = self.stop.child_token();
        let slices = Slices::new(Setup {
            connection: connection.clone(),
            local,
            database,
            node: self.node.clone(),
            boot: boot::current(),
            settings: self.slice_settings.clone(),
            metrics: self.slice_metrics.clone(),
            daemon: Some((self.tasks.clone(), stop.clone())),
        });
        (slices, stop)
    }

    /// The cluster's policy of ranges, followed until the token is cancelled.
    pub(crate) fn policies(
        &self,
        connection: &Connection,
        stop: &CancellationToken,
    ) -> Arc<Policies> {
        let policies = Arc::new(Policies::new(connection));
        let (followed, stop) = (Arc::clone(&policies), stop.clone());
        self.tasks.spawn(async move {
            tokio::select! {
                () = stop.cancelled() => {}
                () = followed.follow() => {}
            }
        });
        policies
    }

    /// Starts one; it stops when the guard is dropped.
    pub(crate) fn start(
        &self,
        connection: Connection,
        ledger: SharedLedger,
        journal: Arc<Journal>,
        stop: CancellationToken,
    ) -> DropGuard {
        let collector = Collector::new(
            connection,
            ledger,
            &self.node,
            boot::current(),
            self.settings.clone(),
            self.metrics.clone(),
        )
        .with_journal(journal);
        self.tasks
            .spawn(collector.run(stop.clone().cancelled_owned()));
        stop.drop_guard()
    }
}
