//! The nodes front as agent and controller run it: flags, the handler of a node, the leader's upkeep.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use berth_front::{
    Cluster, Front, Host as Process, Kind, LeaderTask, Lifetime, Serving, StartError,
};
use berth_gather::{Owners, PoolKind};
use berth_ledger::kube::{Connect, Connection, Part, Verb};
use tokio_util::sync::CancellationToken;

use crate::handler::{Handler, HandlerConfig, Mode, check_kept_away};
use crate::host::Host;
use crate::store::{self, POOLS, PoolStore};
use crate::upkeep::{Upkeep, UpkeepConfig};

/// NodeIPPools, for the leader's desk and `berth pools`: the claims of all nodes on one pool go into one write.
pub const NODE_IP_POOL_KIND: Kind = Kind {
    pool: PoolKind {
        resource: &POOLS,
        part: Part::Status,
        verb: Verb::Update,
    },
    owners: Owners::Nodes,
    ledger: store::ledger,
};

/// What an agent is told of host interfaces.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Host interfaces")]
pub struct NodeArgs {
    /// Give interfaces of this host addresses from NodeIPPools, as NodeNetworkConfigurationPolicies ask for them.
    #[arg(long, env = "BERTH_NODES")]
    nodes: bool,
    /// What becomes of a policy that is rendered for this node.
    #[arg(long, env = "BERTH_NODES_APPLY", value_enum, default_value_t)]
    nodes_apply: Apply,
    /// The program that shows and changes the host's network: berth-host, or the node's own nmstatectl.
    #[arg(long, env = "BERTH_HOST_PROGRAM", default_value = "berth-host")]
    host_program: PathBuf,
    /// The host has no NetworkManager: the host program is called with --kernel.
    #[arg(long, env = "BERTH_HOST_KERNEL")]
    host_kernel: bool,
    /// Seconds that one call of the host program may take; a change that is not confirmed by then is undone.
    #[arg(long, env = "BERTH_HOST_TIMEOUT", default_value_t = 120, value_parser = clap::value_parser!(u64).range(1..))]
    host_timeout: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum Apply {
    /// This agent applies it with the host program.
    #[default]
    Host,
    /// kubernetes-nmstate applies it, from a concrete policy that is written for this node.
    Policy,
    /// Nothing is allocated or applied; what could not be rendered is logged.
    Off,
}

impl NodeArgs {
    /// The front, if it is switched on.
    pub fn front(self, cluster: Option<Connect>) -> Option<NodeFront> {
        self.nodes.then(|| NodeFront {
            cluster,
            mode: match self.nodes_apply {
                Apply::Host => Mode::Host,
                Apply::Policy => Mode::Policy,
                Apply::Off => Mode::Off,
            },
            host: Host {
                program: self.host_program,
                kernel: self.host_kernel,
                limit: Duration::from_secs(self.host_timeout),
            },
        })
    }
}

/// The front before it runs.
#[derive(Debug)]
pub struct NodeFront {
    cluster: Option<Connect>,
    mode: Mode,
    host: Host,
}

#[async_trait]
impl Front for NodeFront {
    fn name(&self) -> &'static str {
        "nodes"
    }

    async fn start(self: Box<Self>, host: Process<'_>) -> Result<Arc<dyn Serving>, StartError> {
        let cluster = self.cluster.as_ref().ok_or(
            "--nodes: policies and pools are objects of a cluster; name it with --kubeconfig, or run in a pod of it",
        )?;
        let cluster = host.clusters.open(cluster).await?;
        if self.mode == Mode::Policy {
            let connection = &cluster.connection;
            check_kept_away(&connection.client, connection.timeout).await?;
        }
        if host.lifetime == Lifetime::Daemon {
            let handler = self.handler(&cluster, &host);
            let stop = host.stop.clone();
            host.tasks.spawn(async move { handler.run(stop).await });
        }
        Ok(Arc::new(ServingNodes))
    }
}

impl NodeFront {
    fn handler(&self, cluster: &Cluster, host: &Process<'_>) -> Handler {
        let desks = NODE_IP_POOL_KIND.desks(cluster, host.desk_metrics.clone());
        let connection = &cluster.connection;
        let config = HandlerConfig {
            node: host.node.name.clone(),
            mode: self.mode,
            host: self.host.clone(),
            timeout: connection.timeout,
        };
        Handler::new(connection, desks, config)
    }
}

/// Serves no calls: everything happens in the background.
#[derive(Debug)]
struct ServingNodes;

#[async_trait]
impl Serving for ServingNodes {}

/// The leader's task.
#[derive(Debug)]
pub struct UpkeepTask(Upkeep);

impl UpkeepTask {
    pub fn new(connection: &Connection, config: UpkeepConfig) -> UpkeepTask {
        let store = PoolStore::new(connection);
        UpkeepTask(Upkeep::new(connection.client.clone(), store, config))
    }
}

#[async_trait]
impl LeaderTask for UpkeepTask {
    fn name(&self) -> &'static str {
        "nodes"
    }

    fn ready(&self) -> Result<(), String> {
        match self.0.is_ready() {
            true => Ok(()),
            false => Err("NodeIPPools, policies or enactments were not listed yet".to_owned()),
        }
    }

    async fn follow(&self, stop: CancellationToken) {
        self.0.follow(stop).await;
    }

    async fn lead(&self, term: CancellationToken) {
        self.0.lead(term).await;
    }
}
