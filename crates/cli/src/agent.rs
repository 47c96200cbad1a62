//! `berth agent`: the node's daemon.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::bail;
use berth_agent::AgentConfig;
use berth_cni::wire::DEFAULT_SOCKET;
use berth_front::Node;
use berth_gather::GatherSettings;
use berth_listen::warn_if_readable_by_others;

use crate::cni::installed;
use crate::daemon;
use crate::fronts::FrontArgs;
use crate::logs::{self, LogFormat};
use crate::node::{ClusterArgs, NodeFileArgs};

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
    files: NodeFileArgs,
    #[arg(long, value_enum, default_value_t)]
    log_format: LogFormat,
    #[command(flatten)]
    gather: GatherArgs,
    #[command(flatten)]
    fronts: FrontArgs,
}

/// Where the claims of all nodes on a shared range meet.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Leader desk")]
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
        let of_pods = cluster.clone().filter(|_| !self.fronts.vms_only);
        let named = self.node.clone();
        let name = match self.files.name(self.node, &[]) {
            None if of_pods.is_some() => bail!(
                "this node's name is unknown, and what it does in its cluster goes by it: name it with --node or NODENAME"
            ),
            name => name.unwrap_or_default(),
        };
        let node = Node {
            leader_desk: self.gather.settings(&name),
            name,
            database,
            cluster: of_pods,
            runtime: self.socket.parent().map(PathBuf::from),
            installed: installed()?.map(|found| found.path),
        };
        let flat_places = self.files.flat_places();
        let fronts = self
            .fronts
            .list(&node, named.as_deref(), cluster, flat_places)?;
        let config = AgentConfig {
            socket: self.socket,
            listen: self.listen,
            node,
            fronts,
        };
        daemon::run(async move {
            let told = daemon::told()?;
            berth_agent::serve(config, told).await?;
            Ok(())
        })
    }
}
