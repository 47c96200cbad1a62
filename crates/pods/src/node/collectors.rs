//! The garbage collectors of this node: one for every cluster that it keeps pools in.

use std::sync::Arc;

use berth_kube::Connection;
use berth_ledger::SharedRecordLedger;
use berth_node::{NodeFile, boot};
use berth_slices::slices::Setup;
use berth_slices::{SliceMetrics, SliceSettings, Slices};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::garbage::{GarbageMetrics, GarbageSettings, collector};
use crate::journal::Journal;
use berth_networks::range_policy::Policies;

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
        file: &NodeFile,
    ) -> (Slices, CancellationToken) {
        let stop = self.stop.child_token();
        let slices = Slices::new(Setup {
            connection: connection.clone(),
            local: file.ledger(),
            database: file.path().to_owned(),
            file: file.identity().to_string(),
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
        ledger: SharedRecordLedger,
        journal: Arc<Journal>,
        stop: CancellationToken,
    ) -> DropGuard {
        let here = (self.node.as_str(), boot::current());
        let collector = collector(
            connection,
            ledger,
            (here.0, &here.1),
            Some(journal),
            &self.settings,
            &self.metrics,
        );
        self.tasks
            .spawn(collector.run(stop.clone().cancelled_owned()));
        stop.drop_guard()
    }
}
