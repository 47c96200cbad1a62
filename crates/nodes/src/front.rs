//! The nodes front as agent and controller run it: flags, the handler of a node, the leader's upkeep.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use berth_front::{
    Cluster, Front, Host as Process, Kind, LeaderTask, Lifetime, Serving, StartError,
};
use berth_kube::{Connect, Connection, Part, Verb};
use berth_leader::{Owners, PoolKind};
use prometheus_client::registry::Registry;
use tokio_util::sync::CancellationToken;

use crate::handler::{Handler, HandlerConfig, Mode, check_kept_away};
use crate::host::Host;
use crate::metrics::HandlerMetrics;
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
    // A pool of nodes is written rarely, and then by all of them: a node that joins alone does not wait, 200 nodes share a few writes.
    linger: Duration::from_millis(400),
    move_of: None,
    ledger: store::ledger,
};

/// The agent's flags for host interfaces.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Host interfaces")]
pub struct NodeArgs {
    /// Allocate addresses of NodeIPPools to this host's interfaces, as NodeNetworkConfigurationPolicies request them.
    #[arg(long, env = "BERTH_NODES")]
    nodes: bool,
    /// How a policy that is rendered for this node is applied.
    #[arg(long, env = "BERTH_NODES_APPLY", value_enum, default_value_t)]
    nodes_apply: Apply,
    /// The program that reads and changes the host's network: berth-host, or the node's own nmstatectl.
    #[arg(long, env = "BERTH_HOST_PROGRAM", default_value = "berth-host")]
    host_program: PathBuf,
    /// For hosts without NetworkManager: call the host program with --kernel.
    #[arg(long, env = "BERTH_HOST_KERNEL")]
    host_kernel: bool,
    /// Seconds that one call of the host program may take; a change that is not committed by then is rolled back.
    #[arg(long, env = "BERTH_HOST_TIMEOUT", default_value_t = 120, value_parser = clap::value_parser!(u64).range(1..))]
    host_timeout: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum Apply {
    /// By this agent, with the host program.
    #[default]
    Host,
    /// By kubernetes-nmstate, from a concrete policy that this agent writes for its node.
    Policy,
    /// Not at all: nothing is allocated either; policies that can't be rendered are logged.
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
            let metrics = HandlerMetrics::default();
            metrics.register(host.registry);
            let handler = self.handler(&cluster, &host, metrics);
            let stop = host.stop.clone();
            host.tasks.spawn(async move { handler.run(stop).await });
        }
        Ok(Arc::new(ServingNodes))
    }
}

impl NodeFront {
    fn handler(&self, cluster: &Cluster, host: &Process<'_>, metrics: HandlerMetrics) -> Handler {
        let desks = NODE_IP_POOL_KIND.desks(cluster, host.desk_metrics.clone());
        let connection = &cluster.connection;
        let config = HandlerConfig {
            node: host.node.name.clone(),
            mode: self.mode,
            host: self.host.clone(),
            netns: None,
            timeout: connection.timeout,
            metrics,
        };
        Handler::new(connection, desks, config)
    }
}

/// Serves no calls: everything happens in the background.
#[derive(Debug)]
struct ServingNodes;

#[async_trait]
impl Serving for ServingNodes {}

/// The controller's flags for NodeIPPools.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Host interfaces")]
pub struct NodeLeaderArgs {
    /// Reconcile NodeIPPools and the policies that name them (deploy/nodes).
    #[arg(long, env = "BERTH_NODES")]
    nodes: bool,
    /// Seconds that no enactment must claim an address before it is released.
    #[arg(long, value_name = "SECONDS", env = "BERTH_NODES_GRACE", default_value_t = 60.0, value_parser = seconds)]
    nodes_grace: f64,
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds")?;
    match (0.0..=1e6).contains(&seconds) {
        true => Ok(seconds),
        false => Err("must be from 0 to 1000000 seconds".to_owned()),
    }
}

impl NodeLeaderArgs {
    /// The grace period, if the task is switched on.
    pub fn grace(&self) -> Option<Duration> {
        self.nodes
            .then(|| Duration::from_secs_f64(self.nodes_grace))
    }
}

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

    fn register(&self, registry: &mut Registry) {
        self.0.metrics().register(registry);
    }

    async fn follow(&self, stop: CancellationToken) {
        self.0.follow(stop).await;
    }

    async fn lead(&self, term: CancellationToken) {
        self.0.lead(term).await;
    }
}
