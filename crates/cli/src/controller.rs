//! `berth controller`: the work that is done once per cluster, such as cutting ranges into node slices. Run two
//! replicas: one leads, the other is on standby.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use berth_controller::{
    Controller, ControllerConfig, DeskArgs, LeaderDesk, SliceTask, SliceTaskSettings, Tasks,
};
use berth_desk::{DeskMetrics, DeskSettings};
use berth_front::Kind;
use berth_gcp::front::{GcpLeaderArgs, GcpTask};
use berth_listen::warn_if_readable_by_others;
use berth_nodes::front::{NodeLeaderArgs, UpkeepTask};
use berth_nodes::upkeep::UpkeepConfig;
use berth_pods::garbage::{GarbageSettings, collect_task};
use berth_pods::node::GarbageArgs;

use crate::daemon;
use crate::logs::{self, LogFormat};
use crate::node::{ClusterArgs, NodeFileArgs};

#[derive(Debug, clap::Args)]
pub struct ControllerArgs {
    #[command(flatten)]
    cluster: ClusterArgs,
    /// The name of this replica [default: $POD_NAME, else the machine's name, and a unique number].
    #[arg(long, env = "BERTH_IDENTITY")]
    identity: Option<String>,
    #[command(flatten)]
    files: NodeFileArgs,
    /// Seconds until a leader that has died is replaced.
    #[arg(long, env = "BERTH_LEASE_DURATION", default_value_t = 15, value_parser = clap::value_parser!(u64).range(1..=3600))]
    lease_duration: u64,
    /// Skip the election: this process always leads. Two leaders do no harm.
    #[arg(long, env = "BERTH_NO_ELECTION")]
    no_election: bool,
    /// Seconds that a node must be gone, with its slice unused, before the slice is reclaimed.
    #[arg(long, env = "BERTH_SLICE_GRACE", default_value_t = 60.0, value_parser = seconds)]
    slice_grace: f64,
    /// Milliseconds to wait for further changes before a write.
    #[arg(long, env = "BERTH_GATHER_MS", default_value_t = 75, value_parser = clap::value_parser!(u64).range(0..=10_000))]
    gather_ms: u64,
    /// Seconds between two full resyncs.
    #[arg(long, env = "BERTH_RESYNC", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..))]
    resync: u64,
    /// Assume that network definitions whose configuration is on the nodes' disks use other ranges. Without it, one
    /// such definition prevents the proof that ranges are disjoint.
    #[arg(long, env = "BERTH_IGNORE_ON_DISK_NETWORKS")]
    ignore_on_disk_networks: bool,
    /// Serve health, readiness and metrics on this TCP address.
    #[arg(long, env = "BERTH_LISTEN")]
    listen: Option<SocketAddr>,
    #[arg(long, value_enum, default_value_t)]
    log_format: LogFormat,
    // Groups with a heading come last: a heading holds for all flags after it.
    #[command(flatten)]
    desk: DeskArgs,
    /// Release what pods of lost nodes held in plain pools, where agents may not (deploy/controller/policies.yaml).
    #[arg(long, env = "BERTH_COLLECT", help_heading = "Pods")]
    collect: bool,
    #[command(flatten)]
    garbage: GarbageArgs,
    #[command(flatten)]
    nodes: NodeLeaderArgs,
    #[command(flatten)]
    gcp: Box<GcpLeaderArgs>,
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
            nodes: self.nodes.grace(),
            resync: Duration::from_secs(self.resync),
            gcp: self.gcp.settings()?,
        };
        daemon::run(async move {
            let shutdown = daemon::stop_signal()?;
            let desk = desk.bind().await?;
            config.notice = desk
                .iter()
                .flat_map(|desk| desk.endpoint().annotations())
                .collect();
            let controller = Controller::open(config).await?;
            let tasks = settings.tasks(&controller, desk);
            controller.run(tasks, shutdown).await?;
            Ok(())
        })
    }
}

/// The settings of the leader's tasks.
struct TaskSettings {
    kinds: Vec<Kind>,
    slices: SliceTaskSettings,
    /// `None`: agents collect by themselves.
    garbage: Option<GarbageSettings>,
    /// The grace period of hosts' addresses; `None`: NodeIPPools are not reconciled.
    nodes: Option<Duration>,
    resync: Duration,
    /// `None`: only agents maintain addresses on Google Cloud.
    gcp: Option<berth_gcp::front::Settings>,
}

impl TaskSettings {
    /// The list of tasks: the only place that names them all.
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
        if let Some(settings) = self.gcp {
            let identity = leadership.identity();
            tasks.push(Arc::new(GcpTask::new(
                connection.clone(),
                identity,
                settings,
            )));
        }
        if let Some(settings) = self.garbage {
            let identity = leadership.identity().to_owned();
            let leads = move || leadership.is_leading();
            let task = collect_task(connection, &identity, &settings, leads);
            tasks.push(Arc::new(task));
        }
        tasks
    }
}

/// A unique name: replicas on one machine must not mistake each other for themselves.
fn identity(files: &NodeFileArgs) -> String {
    let name = std::env::var("POD_NAME").ok();
    let name = name.filter(|name| !name.is_empty());
    let name = name.or_else(|| files.name(None, &[]));
    let name = name.unwrap_or_else(|| "controller".to_owned());
    let started = jiff::Timestamp::now().as_nanosecond();
    format!("{name}_{:x}_{started:x}", std::process::id())
}
