//! `berth agent`: the node's daemon.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::bail;
use berth_agent::{AgentConfig, GarbageSettings, GatherSettings, Patience, SliceSettings};
use berth_cni::wire::DEFAULT_SOCKET;
use berth_listen::warn_if_readable_by_others;

use crate::cni::installed;
use crate::daemon;
use crate::logs::{self, LogFormat};
use crate::node::{ClusterArgs, DefinitionArgs, NodeFileArgs, ResultArgs};
use crate::vm_flags::VmFlags;

#[derive(Debug, clap::Args)]
pub struct AgentArgs {
    /// Where the CNI plugin finds the agent.
    #[arg(long, env = "BERTH_SOCKET", default_value = DEFAULT_SOCKET)]
    socket: PathBuf,
    /// The node's name [default: $NODENAME, then the machine's].
    #[arg(long)]
    node: Option<String>,
    /// Serve health, readiness and metrics on this address too.
    #[arg(long)]
    listen: Option<SocketAddr>,
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    definitions: DefinitionArgs,
    #[command(flatten)]
    garbage: GarbageArgs,
    #[command(flatten)]
    slices: SliceArgs,
    #[command(flatten)]
    results: ResultArgs,
    #[command(flatten)]
    files: NodeFileArgs,
    #[command(flatten)]
    gather: GatherArgs,
    /// Keep VM pools and leave the cluster's pods alone: no right to anything of theirs is needed.
    #[arg(long)]
    vms_only: bool,
    #[arg(long, value_enum, default_value_t)]
    log_format: LogFormat,
    #[command(flatten)]
    vms: VmFlags,
}

/// When addresses of pods that are gone are freed.
#[derive(Debug, clap::Args)]
pub(crate) struct GarbageArgs {
    /// Seconds that a pod must have been gone before its addresses are freed.
    #[arg(long, env = "BERTH_GARBAGE_GRACE", default_value_t = 30)]
    garbage_grace: u64,
    /// The same for pods whose node was deleted.
    #[arg(long, env = "BERTH_GARBAGE_NODE_GRACE", default_value_t = 120)]
    garbage_node_grace: u64,
    /// About how many seconds lie between two looks at all pools of the cluster, by whichever agent.
    #[arg(long, env = "BERTH_GARBAGE_INTERVAL", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..))]
    garbage_interval: u64,
}

/// How the node keeps its slices.
#[derive(Debug, clap::Args)]
struct SliceArgs {
    /// Milliseconds for which changes of slices are gathered before they are published together.
    #[arg(long, env = "BERTH_SLICE_GATHER_MS", default_value_t = 200)]
    slice_gather_ms: u64,
    /// Seconds for which their publication is put off at most while the API server is slow to answer claims.
    #[arg(long, env = "BERTH_SLICE_PUBLISH_WITHIN", default_value_t = 120)]
    slice_publish_within: u64,
    /// About how many seconds lie between two comparisons of slices with the cluster's objects.
    #[arg(long, env = "BERTH_SLICE_LOOK", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..))]
    slice_look: u64,
    /// Seconds for which a slice that the node claimed must have been empty before it is given back.
    #[arg(long, env = "BERTH_SLICE_IDLE", default_value_t = 600)]
    slice_idle: u64,
    /// How many addresses a node holds beyond what it uses, in hundredths of a slice.
    #[arg(long, env = "BERTH_SLICE_RESERVE", default_value_t = 25)]
    slice_reserve: u32,
}

impl SliceArgs {
    fn settings(&self) -> SliceSettings {
        SliceSettings {
            gather: Duration::from_millis(self.slice_gather_ms),
            publish_within: Duration::from_secs(self.slice_publish_within),
            look: Duration::from_secs(self.slice_look),
            idle: Duration::from_secs(self.slice_idle),
            reserve: self.slice_reserve.into(),
            ..SliceSettings::default()
        }
    }
}

impl GarbageArgs {
    pub(crate) fn settings(&self) -> GarbageSettings {
        GarbageSettings {
            patience: Patience {
                grace: Duration::from_secs(self.garbage_grace),
                node_grace: Duration::from_secs(self.garbage_node_grace),
            },
            interval: Duration::from_secs(self.garbage_interval),
            ..GarbageSettings::default()
        }
    }
}

/// Where the claims of all nodes on a shared range meet.
#[derive(Debug, clap::Args)]
struct GatherArgs {
    /// A token for the leader's desk (audience desk.berth.dev), as the kubelet projects it. Without one this node writes
    /// shared pools itself.
    #[arg(long, env = "BERTH_DESK_TOKEN_FILE")]
    desk_token_file: Option<PathBuf>,
    /// The Lease that tells who leads.
    #[arg(long, env = "BERTH_DESK_LEASE", default_value = "berth-controller")]
    desk_lease: String,
}

impl GatherArgs {
    fn settings(self, node: &str) -> Option<GatherSettings> {
        let file = self.desk_token_file?;
        warn_if_readable_by_others("--desk-token-file", &file);
        Some(GatherSettings {
            lease: self.desk_lease,
            ..GatherSettings::new(node, file)
        })
    }
}

impl AgentArgs {
    pub fn run(self, database: PathBuf) -> anyhow::Result<()> {
        logs::start("info", self.log_format);
        let cluster = self.cluster.connect();
        if let Some(path) = cluster
            .as_ref()
            .and_then(|cluster| cluster.kubeconfig.as_ref())
        {
            warn_if_readable_by_others("--kubeconfig", path);
        }
        if let Some(path) = self.files.kubeconfig() {
            warn_if_readable_by_others("the flat file's kubernetes.kubeconfig", &path);
        }
        let vms = self
            .vms
            .setup(self.node.as_deref(), cluster.clone(), &database)?;
        if self.vms_only && vms.is_none() {
            bail!(
                "--vms-only: no VM pools are set; name them with vm-pool-ips, pools-configmap or vm-settings"
            );
        }
        let cluster = cluster.filter(|_| !self.vms_only);
        let node = match self.files.name(self.node, &[]) {
            None if cluster.is_some() => bail!(
                "this node's name is unknown, and what it does in its cluster goes by it: name it with --node or NODENAME"
            ),
            node => node.unwrap_or_default(),
        };
        let runtime = self.socket.parent().map(PathBuf::from);
        let config = AgentConfig {
            socket: self.socket,
            database,
            gather: self.gather.settings(&node),
            node,
            cluster,
            listen: self.listen,
            flat_places: Some(self.files.flat_places()),
            installed: installed()?.map(|found| found.path),
            definition_paths: self.definitions.paths(),
            garbage: self.garbage.settings(),
            slices: SliceSettings {
                result_caches: self.results.directories(),
                runtime,
                ..self.slices.settings()
            },
            vms,
        };
        daemon::run(async move {
            let told = daemon::told()?;
            berth_agent::serve(config, told).await?;
            Ok(())
        })
    }
}
