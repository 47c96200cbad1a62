//! `berth agent`: the node's daemon.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::bail;
use berth_agent::AgentConfig;
use berth_cni::wire::DEFAULT_SOCKET;
use berth_front::Node;
use berth_leader::LeaderSettings;
use berth_listen::warn_if_readable_by_others;

use crate::cni::installed;
use crate::daemon;
use crate::fronts::FrontArgs;
use crate::logs::{self, LogFormat};
use crate::node::{ClusterArgs, NodeFileArgs};

#[derive(Debug, clap::Args)]
pub struct AgentArgs {
    /// The socket on which the CNI plugin calls the agent.
    #[arg(long, env = "BERTH_SOCKET", default_value = DEFAULT_SOCKET)]
    socket: PathBuf,
    /// The node's name [default: $NODENAME, then the machine's].
    #[arg(long)]
    node: Option<String>,
    /// Also serve health, readiness and metrics on this TCP address.
    #[arg(long)]
    listen: Option<SocketAddr>,
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    files: NodeFileArgs,
    #[arg(long, value_enum, default_value_t)]
    log_format: LogFormat,
    #[command(flatten)]
    leader_desk: LeaderDeskArgs,
    #[command(flatten)]
    fronts: FrontArgs,
}

/// How this node reaches the leader desk, which commits the requests of all nodes on a shared range.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Leader desk")]
struct LeaderDeskArgs {
    /// A token for the leader desk (audience desk.berth.dev), as the kubelet projects it. Without one this node writes
    /// shared pools itself.
    #[arg(long, env = "BERTH_DESK_TOKEN_FILE")]
    desk_token_file: Option<PathBuf>,
    /// The Lease that names the leader.
    #[arg(long, env = "BERTH_DESK_LEASE", default_value = "berth-controller")]
    desk_lease: String,
}

impl LeaderDeskArgs {
    fn settings(self, node: &str) -> Option<LeaderSettings> {
        let file = self.desk_token_file?;
        warn_if_readable_by_others("--desk-token-file", &file);
        Some(LeaderSettings {
            lease: self.desk_lease,
            ..LeaderSettings::new(node, file)
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
        let of_pods = cluster.clone().filter(|_| !self.fronts.vms_only);
        let named = self.node.clone();
        let name = match self.files.name(self.node, &[]) {
            None if of_pods.is_some() => bail!(
                "this node's name is unknown, and what it does in its cluster goes by it: name it with --node or NODENAME"
            ),
            name => name.unwrap_or_default(),
        };
        let node = Node {
            leader_desk: self.leader_desk.settings(&name),
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
            let stopped = daemon::stop_signal()?;
            berth_agent::serve(config, stopped).await?;
            Ok(())
        })
    }
}
