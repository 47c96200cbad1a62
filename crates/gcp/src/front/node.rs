//! The gcp front as an agent, or a process that serves one call, runs it.

use std::sync::Arc;

use async_trait::async_trait;
use berth_cni::NetConf;
use berth_cni::wire::{Answer, Request};
use berth_front::{Front, Host, Kind, Lifetime, Readiness, Serving, StartError};
use berth_kube::{Part, Verb};
use berth_leader::{Owners, PoolKind};
use berth_ledger::object::ObjectLedger;

use super::config::{PLUGIN, invalid};
use super::engine::{Daemon, Duty, Setup};
use super::metrics::GcpMetrics;
use super::settings::Settings;
use crate::pool::{IP_POOLS, IpPools};

/// The `ipam.type`s of this front.
pub const PLUGINS: &[&str] = &[PLUGIN];

/// IPPools, for the leader's desk and `berth pools`.
pub const IP_POOL_KIND: Kind = Kind {
    pool: PoolKind {
        resource: &IP_POOLS,
        part: Part::Object,
        verb: Verb::Update,
    },
    owners: Owners::Pods,
    linger: std::time::Duration::ZERO,
    move_of: Some(super::moves::move_of),
    ledger: |connection| Arc::new(ObjectLedger::new(connection, IpPools)),
};

/// The gcp front, set up.
#[derive(Clone, Debug, Default)]
pub struct GcpFront {
    pub settings: Settings,
}

#[async_trait]
impl Front for GcpFront {
    fn name(&self) -> &'static str {
        "gcp"
    }

    fn plugins(&self) -> &'static [&'static str] {
        PLUGINS
    }

    /// Makes no call: a node without such pods costs none.
    async fn start(self: Box<Self>, host: Host<'_>) -> Result<Arc<dyn Serving>, StartError> {
        let Some(connect) = &host.node.cluster else {
            return Ok(Arc::new(ServingGcp(None)));
        };
        let cluster = host.clusters.open(connect).await?;
        let attachments = host.file.get().await?.attachments().clone();
        let daemon = (host.lifetime == Lifetime::Daemon).then_some(Daemon {
            stop: host.stop,
            tasks: host.tasks,
        });
        let metrics = GcpMetrics::default();
        metrics.register(host.registry);
        let front = super::Front::new(Setup {
            duty: Duty::Node(attachments),
            metrics,
            node: host.node.name.clone(),
            desks: IP_POOL_KIND.desks(&cluster, host.desk_metrics),
            connection: cluster.connection,
            settings: self.settings,
            daemon,
        });
        front.start();
        Ok(Arc::new(ServingGcp(Some(front))))
    }
}

/// None: this process knows no cluster, and IPPools are in one.
#[derive(Debug)]
struct ServingGcp(Option<super::Front>);

#[async_trait]
impl Serving for ServingGcp {
    async fn call(&self, request: &Request) -> Answer {
        match &self.0 {
            Some(front) => front.answer(request).await,
            None => {
                let error = invalid(
                    format!(
                        "{PLUGIN} allocates from IPPools of a cluster, and no cluster is named"
                    ),
                    "start the agent in the cluster or with --kubeconfig",
                );
                Answer::failure(error.render(NetConf::version_of(&request.stdin)))
            }
        }
    }

    async fn ready(&self) -> Readiness {
        Readiness::Ready
    }
}
