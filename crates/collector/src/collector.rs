//! One collector as a background task.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use berth_kube::Connection;
use berth_ledger::SharedLedger;
use prometheus_client::registry::Registry;

use super::clock::Clock;
use super::executor::Executor;
use super::local::{Local, LocalEntries};
use super::metrics::CollectorMetrics;
use super::pod_watch::PodWatch;
use super::policy::Policy;
use super::quorum_reader::QuorumReader;
use super::suspicions::GracePeriods;
use super::sweep::Sweep;
use super::sweep_lease::{Leads, SweepLease};

/// How a collector works.
#[derive(Clone, Copy, Debug)]
pub struct CollectorSettings {
    pub grace: GracePeriods,
    /// About how often all pools of the cluster are read.
    pub interval: Duration,
}

impl Default for CollectorSettings {
    fn default() -> Self {
        CollectorSettings {
            grace: GracePeriods::default(),
            interval: Duration::from_secs(300),
        }
    }
}

/// The collector of one process, for the pools of one front in one cluster.
#[derive(Debug)]
pub struct Collector<P: Policy> {
    connection: Connection,
    ledger: SharedLedger,
    policy: Arc<P>,
    node: String,
    local: Option<Arc<dyn LocalEntries>>,
    leads: Option<Leads>,
    settings: CollectorSettings,
    metrics: CollectorMetrics,
}

impl<P: Policy> Collector<P> {
    /// A collector of the node `node`, for the pools of `ledger`.
    pub fn new(
        connection: Connection,
        ledger: SharedLedger,
        policy: P,
        node: impl Into<String>,
        settings: CollectorSettings,
        metrics: CollectorMetrics,
    ) -> Collector<P> {
        Collector {
            connection,
            ledger,
            policy: Arc::new(policy),
            node: node.into(),
            local: None,
            leads: None,
            settings,
            metrics,
        }
    }

    /// Also collects what this node noted of its own pods, whenever they change.
    #[must_use]
    pub fn with_local(mut self, entries: Arc<dyn LocalEntries>) -> Collector<P> {
        self.local = Some(entries);
        self
    }

    /// Sweeps whenever this process leads, instead of sharing a Lease with the agents: for a controller, which may free what
    /// lost nodes left where agents may not.
    #[must_use]
    pub fn led(mut self, leads: impl Fn() -> bool + Send + Sync + 'static) -> Collector<P> {
        self.leads = Some(Leads::new(leads));
        self
    }

    /// Registers the metrics of the collector and of its policy; `prefix` is what their names begin with.
    pub fn register(&self, registry: &mut Registry, prefix: &str) {
        self.metrics.register(registry, prefix);
        self.policy.register(registry, prefix);
    }

    /// Collects until `shutdown` completes. The next collector finds whatever this one left half done.
    pub async fn run(self, shutdown: impl Future<Output = ()>) {
        let reader = QuorumReader::new(&self.connection);
        let Connection {
            client,
            namespace,
            timeout,
        } = self.connection;
        let CollectorSettings { grace, interval } = self.settings;
        let executor = Arc::new(Executor::new(
            Arc::clone(&self.policy),
            reader.clone(),
            SharedLedger::clone(&self.ledger),
            self.metrics.clone(),
            self.node.clone(),
            grace.pod,
        ));
        let clock = Clock::start();
        let lease = SweepLease::new(client.clone(), &namespace, &self.node, interval, timeout);
        let sweep = Sweep {
            policy: Arc::clone(&self.policy),
            ledger: self.ledger,
            reader,
            executor: Arc::clone(&executor),
            lease: match self.leads {
                Some(leads) => lease.led(leads),
                None => lease,
            },
            grace,
            interval,
            metrics: self.metrics,
            clock,
            node: self.node.clone(),
        };
        let (node, policy) = (self.node, self.policy);
        let local = async {
            let Some(entries) = self.local else {
                return std::future::pending().await;
            };
            let pods = Arc::new(PodWatch::default());
            let local = Local {
                entries,
                policy,
                pods: Arc::clone(&pods),
                executor: Arc::clone(&executor),
                grace,
                interval,
                node: node.clone(),
                clock,
            };
            tokio::join!(pods.follow(client, &node), local.run());
        };
        tokio::select! {
            () = shutdown => {}
            () = sweep.run() => {}
            () = local => {}
            () = executor.close_desks(grace.pod) => {}
        }
    }
}
