//! The collector of the whole cluster as a leader's task: it frees what pods of lost nodes left in plain pools.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use berth_front::LeaderTask;
use berth_ledger::KubeLedger;
use berth_ledger::kube::Connection;
use prometheus_client::registry::Registry;
use tokio_util::sync::CancellationToken;

use super::{Collector, GarbageMetrics, GarbageSettings};

/// Collects whenever this process leads.
pub struct CollectTask {
    connection: Connection,
    identity: String,
    settings: GarbageSettings,
    metrics: GarbageMetrics,
    leads: Arc<dyn Fn() -> bool + Send + Sync>,
}

impl CollectTask {
    /// `leads` tells whether this process leads, at the time it is asked.
    pub fn new(
        connection: Connection,
        identity: String,
        settings: GarbageSettings,
        leads: impl Fn() -> bool + Send + Sync + 'static,
    ) -> CollectTask {
        CollectTask {
            connection,
            identity,
            settings,
            metrics: GarbageMetrics::default(),
            leads: Arc::new(leads),
        }
    }
}

impl fmt::Debug for CollectTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CollectTask")
            .field("identity", &self.identity)
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl LeaderTask for CollectTask {
    fn name(&self) -> &'static str {
        "garbage"
    }

    fn register(&self, registry: &mut Registry) {
        self.metrics.register(registry);
    }

    /// Beyond a term: the collector itself asks before each step whether this process leads.
    async fn follow(&self, stop: CancellationToken) {
        let ledger = Arc::new(KubeLedger::new(self.connection.clone()));
        let leads = Arc::clone(&self.leads);
        let collector = Collector::new(
            self.connection.clone(),
            ledger,
            &self.identity,
            "",
            self.settings.clone(),
            self.metrics.clone(),
        );
        collector
            .led(move || leads())
            .run(stop.cancelled_owned())
            .await;
    }
}
