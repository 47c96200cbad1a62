//! `berth controller`: cuts ranges into node slices, for the whole cluster. Run two: one leads, one is ready to.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use berth_controller::{
    Controller, ControllerConfig, DeskArgs, LeaderDesk, SliceTask, SliceTaskSettings, Tasks,
};
use berth_desk::{DeskMetrics, DeskSettings};
use berth_front::Kind;
use berth_listen::warn_if_readable_by_others;
use berth_nodes::front::UpkeepTask;
use berth_nodes::upkeep::UpkeepConfig;
use berth_pods::garbage::{CollectTask, GarbageSettings};
use berth_pods::node::GarbageArgs;

use crate::daemon;
use crate::logs::{self, LogFormat};
use crate::node::{ClusterArgs, NodeFileArgs};

#[derive(Debug, clap::Args)]
pub struct ControllerArgs {
    #[command(flatten)]
    cluster: ClusterArgs,
    /// This process among its replicas [default: $POD_NAME, else the machine's name, and a number of its own].
    #[arg(long, env = "BERTH_IDENTITY")]
    identity: Option<String>,
    #[command(flatten)]
    desk: DeskArgs,
    /// Free what pods of lost nodes left in plain pools, where agents may not (deploy/controller/policies.yaml).
    #[arg(long, env = "BERTH_COLLECT")]
    collect: bool,
    #[command(flatten)]
    garbage: GarbageArgs,
    /// Look after NodeIPPools and the policies that name them (deploy/nodes).
    #[arg(long, env = "BERTH_NODES")]
    nodes: bool,
    /// Seconds that no enactment must claim a host's address before it is released.
    #[arg(long, env = "BERTH_NODES_GRACE", default_value_t = 60.0, value_parser = seconds)]
    nodes_grace: f64,
    #[command(flatten)]
    files: NodeFileArgs,
    /// Seconds that a leader which is gone may go unnoticed.
    #[arg(long, env = "BERTH_LEASE_DURATION", default_value_t = 15, value_parser = clap::value_parser!(u64).range(1..=3600))]
    lease_duration: u64,
    /// Stand for no election: this process always leads. Two that do meet, and do no harm.
    #[arg(long, env = "BERTH_NO_ELECTION")]
    no_election: bool,
    /// Seconds that a node must have been gone, and nobody have used its slice, before the slice is taken back.
    #[arg(long, env = "BERTH_SLICE_GRACE", default_value_t = 60.0, value_parser = seconds)]
    slice_grace: f64,
    /// Milliseconds after a change in which others that come with it are waited for.
    #[arg(long, env = "BERTH_GATHER_MS", default_value_t = 75, value_parser = clap::value_parser!(u64).range(0..=10_000))]
    gather_ms: u64,
    /// Seconds between two readings of everything.
    #[arg(long, env = "BERTH_RESYNC", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..))]
    resync: u64,
    /// Take network definitions whose configuration is on the nodes' disks for networks of other ranges. Without it,
    /// one of them leaves no range proved to be apart from the others.
    #[arg(long, env = "BERTH_IGNORE_ON_DISK_NETWORKS")]
    ignore_on_disk_networks: bool,
    /// Serve health, readiness and metrics on this address.
    #[arg(long, env = "BERTH_LISTEN")]
    listen: Option<SocketAddr>,
    #[arg(long, value_enum, default_value_t)]
    log_format: LogFormat,
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds")?;
    if (0.0..=1e6).contains(&seconds) {
        Ok(seconds)
    } else {
        Err("give seconds from 0 to 1000000".to_owned())
    }
}

impl ControllerArgs {
    pub fn run(self, kinds: &[Kind]) -> anyhow::Result<()> {
        logs::start("info", self.log_format);
        let desk = self.desk;
        let flat_places = self.files.flat_places();
        let garbage = self.collect.then(|| GarbageSettings {
            flat_places: flat_places.clone(),
            ..self.garbage.settings()
        });
        let name = self.identity.clone();
        let name = name.unwrap_or_else(|| identity(&self.files));
        let cluster = self.cluster.connect().unwrap_or_default();
        if let Some(path) = &cluster.kubeconfig {
            warn_if_readable_by_others("--kubeconfig", path);
        }
        let mut config = ControllerConfig {
            cluster,
            identity: name,
            notice: Default::default(),
            lease: (!self.no_election).then(|| Duration::from_secs(self.lease_duration)),
            listen: self.listen,
        };
        let settings = TaskSettings {
            kinds: kinds.to_vec(),
            slices: SliceTaskSettings {
                grace: Duration::from_secs_f64(self.slice_grace),
                gather: Duration::from_millis(self.gather_ms),
                resync: Duration::from_secs(self.resync),
                flat_places,
                unseen_is_apart: self.ignore_on_disk_networks,
            },
            garbage,
            nodes: self
                .nodes
                .then(|| Duration::from_secs_f64(self.nodes_grace)),
            resync: Duration::from_secs(self.resync),
        };
        daemon::run(async move {
            let told = daemon::told()?;
            let desk = desk.bind().await?;
            config.notice = desk
                .iter()
                .flat_map(|desk| desk.notice().annotations())
                .collect();
            let controller = Controller::open(config).await?;
            let tasks = settings.tasks(&controller, desk);
            controller.run(tasks, told).await?;
            Ok(())
        })
    }
}

/// What the tasks of a leader are told.
struct TaskSettings {
    kinds: Vec<Kind>,
    slices: SliceTaskSettings,
    /// None: agents collect by themselves.
    garbage: Option<GarbageSettings>,
    /// The grace period of hosts' addresses; none: NodeIPPools are not looked after.
    nodes: Option<Duration>,
    resync: Duration,
}

impl TaskSettings {
    /// The list of tasks: the one place that names them all.
    fn tasks(self, controller: &Controller, desk: Option<LeaderDesk>) -> Tasks {
        let (connection, leadership) = (controller.connection(), controller.leadership());
        let slices = SliceTask::new(&connection, &leadership, self.slices);
        let defines = slices.defines();
        let mut tasks: Tasks = vec![Arc::new(slices)];
        if let Some(desk) = desk {
            let routes = |settings: &DeskSettings, metrics: &DeskMetrics| {
                let route = |kind: &Kind| kind.route(&connection, settings, metrics);
                self.kinds.iter().map(route).collect()
            };
            let leads = leadership.clone();
            tasks.push(Arc::new(desk.task(&connection, leads, defines, routes)));
        }
        if let Some(grace) = self.nodes {
            let config = UpkeepConfig {
                grace,
                resync: self.resync,
                timeout: connection.timeout,
                ..UpkeepConfig::new(leadership.identity())
            };
            tasks.push(Arc::new(UpkeepTask::new(&connection, config)));
        }
        if let Some(settings) = self.garbage {
            let identity = leadership.identity().to_owned();
            let leads = move || leadership.is_leading();
            tasks.push(Arc::new(CollectTask::new(
                connection, identity, settings, leads,
            )));
        }
        tasks
    }
}

/// A name that no other process has: replicas of one machine must not take each other for themselves.
fn identity(files: &NodeFileArgs) -> String {
    let name = std::env::var("POD_NAME").ok();
    let name = name.filter(|name| !name.is_empty());
    let name = name.or_else(|| files.name(None, &[]));
    let name = name.unwrap_or_else(|| "controller".to_owned());
    let begun = jiff::Timestamp::now().as_nanosecond();
    format!("{name}_{:x}_{begun:x}", std::process::id())
}
