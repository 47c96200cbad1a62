//! The leader's task: addresses of nodes that are gone, and moves that no agent carries on.
//!
//! Guarantees: nothing is correct because of leadership. An address is released after its pod and Node were read as gone twice, a
//! grace period apart, and after its VM was read (I4); a move is carried on by compare-and-set, also beside the agents. A cluster
//! without IPPools costs no call of the cloud.

use async_trait::async_trait;
use berth_desk::{DeskMetrics, DeskSettings, Desks};
use berth_front::LeaderTask;
use berth_kube::Connection;
use prometheus_client::registry::Registry;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::engine::{Daemon, Duty, Engine, Setup};
use super::metrics::GcpMetrics;
use super::node::IP_POOL_KIND;
use super::settings::Settings;

/// See the module.
#[derive(Debug)]
pub struct GcpTask {
    connection: Connection,
    identity: String,
    settings: Settings,
    metrics: GcpMetrics,
}

impl GcpTask {
    pub fn new(connection: Connection, identity: &str, settings: Settings) -> GcpTask {
        GcpTask {
            connection,
            identity: identity.to_owned(),
            settings,
            metrics: GcpMetrics::default(),
        }
    }
}

#[async_trait]
impl LeaderTask for GcpTask {
    fn name(&self) -> &'static str {
        "gcp"
    }

    fn register(&self, registry: &mut Registry) {
        self.metrics.register(registry);
    }

    async fn lead(&self, term: CancellationToken) {
        let tasks = TaskTracker::new();
        let settings = DeskSettings {
            hold_back: true,
            ..DeskSettings::default()
        };
        let ledger = (IP_POOL_KIND.ledger)(&self.connection);
        let engine = Engine::new(Setup {
            duty: Duty::Cluster,
            node: self.identity.clone(),
            connection: self.connection.clone(),
            desks: Desks::new(ledger, settings, DeskMetrics::default()),
            settings: self.settings.clone(),
            daemon: Some(Daemon {
                stop: term.clone(),
                tasks: tasks.clone(),
            }),
            metrics: self.metrics.clone(),
        });
        tokio::select! {
            () = term.cancelled() => {}
            () = engine.sweep_forever() => {}
        }
        tasks.close();
        tasks.wait().await;
    }
}
