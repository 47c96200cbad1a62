//! `berth agent`: the node's daemon.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Context;
use berth_agent::AgentConfig;
use berth_cni::wire::DEFAULT_SOCKET;
use tokio::signal::unix::{SignalKind, signal};

use crate::logs::{self, LogFormat};
use crate::node::{self, ClusterArgs};
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
    #[arg(long, value_enum, default_value_t)]
    log_format: LogFormat,
    #[command(flatten)]
    vms: VmFlags,
}

impl AgentArgs {
    pub fn run(self, database: PathBuf) -> anyhow::Result<()> {
        logs::start("info", self.log_format);
        let cluster = self.cluster.connect();
        let vms = self.vms.setup(self.node.as_deref(), cluster.clone())?;
        let config = AgentConfig {
            socket: self.socket,
            database,
            node: node::name(self.node),
            cluster,
            listen: self.listen,
            flat_places: None,
            vms,
        };
        // Two workers: the agent waits for disks and servers, it does not compute.
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .context("the runtime can't be started")?;
        runtime.block_on(async {
            let mut terminate = signal(SignalKind::terminate())?;
            let mut interrupt = signal(SignalKind::interrupt())?;
            let told = async move {
                tokio::select! {
                    _ = terminate.recv() => {}
                    _ = interrupt.recv() => {}
                }
            };
            berth_agent::serve(config, told).await?;
            Ok(())
        })
    }
}
