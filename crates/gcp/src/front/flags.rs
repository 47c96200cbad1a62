//! The flags of the gcp front.

use std::path::PathBuf;
use std::time::Duration;

use berth_collector::GracePeriods;
use clap::ValueEnum;

use super::node::GcpFront;
use super::settings::{LOCK, Select, Settings};
use crate::cloud::{Endpoints, InvalidEndpoint};
use crate::nic::warm::{InvalidTargets, Targets};

/// What an agent and a single call are set to.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Google Cloud (gcp-ipam)")]
pub struct GcpArgs {
    #[command(flatten)]
    cloud: CloudArgs,
    #[command(flatten)]
    sweep: SweepArgs,
    /// The lock around each update of this node's NIC, which agent and plugin share.
    #[arg(long, value_name = "FILE", env = "BERTH_GCP_LOCK", default_value = LOCK)]
    gcp_lock: PathBuf,
    /// Which pods get an address of an IPPool: all, or those that carry berth.dev/live-ip: "true" or whose namespace does.
    #[arg(long, value_enum, env = "BERTH_GCP_PODS", default_value_t = Pods::All)]
    gcp_pods: Pods,
    /// How many attached addresses the node keeps without a pod, so that an ADD needs no operation: fewer, and more are
    /// attached. 0 keeps none.
    #[arg(
        long,
        value_name = "COUNT",
        env = "BERTH_GCP_WARM_MIN",
        default_value_t = 0
    )]
    gcp_warm_min: usize,
    /// More than this, and the surplus is detached [default: --gcp-warm-min].
    #[arg(long, value_name = "COUNT", env = "BERTH_GCP_WARM_MAX")]
    gcp_warm_max: Option<usize>,
    /// Seconds that a pod must have been gone before its address is released.
    #[arg(
        long,
        value_name = "SECONDS",
        env = "BERTH_GCP_GRACE",
        default_value_t = 30
    )]
    gcp_grace: u64,
}

/// What the controller is set to.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Google Cloud")]
pub struct GcpLeaderArgs {
    /// Release addresses of nodes that are gone, and end moves that no agent carries on (deploy/gcp).
    #[arg(long, env = "BERTH_GCP")]
    gcp: bool,
    #[command(flatten)]
    cloud: CloudArgs,
    #[command(flatten)]
    sweep: SweepArgs,
    /// Seconds that a node must have been gone before addresses of its pods are released.
    #[arg(
        long,
        value_name = "SECONDS",
        env = "BERTH_GCP_NODE_GRACE",
        default_value_t = 120
    )]
    gcp_node_grace: u64,
}

/// Where Google's APIs are, and who asks them.
#[derive(Clone, Debug, clap::Args)]
struct CloudArgs {
    /// Where the Compute API is [default: https://compute.googleapis.com].
    #[arg(long, value_name = "URL", env = "BERTH_COMPUTE_ENDPOINT")]
    compute_endpoint: Option<String>,
    /// Where the Network Connectivity API is [default: https://networkconnectivity.googleapis.com].
    #[arg(long, value_name = "URL", env = "BERTH_NETWORKCONNECTIVITY_ENDPOINT")]
    networkconnectivity_endpoint: Option<String>,
    /// The metadata server, `host` or `host:port` [default: metadata.google.internal].
    #[arg(long, value_name = "HOST", env = "GCE_METADATA_HOST")]
    gcp_metadata_host: Option<String>,
    /// A service account's key file, instead of the VM's own account.
    #[arg(long, value_name = "FILE", env = "BERTH_GCP_KEY_FILE")]
    gcp_key_file: Option<PathBuf>,
}

/// When unfinished moves and allocations without an owner end.
#[derive(Clone, Debug, clap::Args)]
struct SweepArgs {
    /// Seconds for which a released address goes to no other pod.
    #[arg(
        long,
        value_name = "SECONDS",
        env = "BERTH_GCP_COOLDOWN",
        default_value_t = 30
    )]
    gcp_cooldown: u64,
    /// Seconds after which a move that is not completed goes back to its source, and an address that was kept for one is released.
    #[arg(long, value_name = "SECONDS", env = "BERTH_GCP_MOVE_TIMEOUT", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..))]
    gcp_move_timeout: u64,
    /// About how many seconds lie between two sweeps for unfinished moves and addresses of pods that are gone.
    #[arg(long, value_name = "SECONDS", env = "BERTH_GCP_SWEEP", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..))]
    gcp_sweep: u64,
}

/// A flag that says nothing usable.
#[derive(Debug, thiserror::Error)]
pub enum InvalidFlag {
    #[error(transparent)]
    Endpoint(#[from] InvalidEndpoint),
    #[error("--gcp-warm-min, --gcp-warm-max: {0}")]
    Warm(#[from] InvalidTargets),
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Pods {
    All,
    Labelled,
}

impl GcpArgs {
    pub fn front(self) -> Result<GcpFront, InvalidFlag> {
        let common = common(self.cloud, &self.sweep)?;
        let settings = Settings {
            lock: self.gcp_lock,
            select: match self.gcp_pods {
                Pods::All => Select::All,
                Pods::Labelled => Select::Labelled,
            },
            warm: Targets::new(
                self.gcp_warm_min,
                self.gcp_warm_max.unwrap_or(self.gcp_warm_min),
            )?,
            grace: GracePeriods {
                pod: Duration::from_secs(self.gcp_grace),
                ..common.grace
            },
            ..common
        };
        Ok(GcpFront { settings })
    }
}

impl GcpLeaderArgs {
    /// None: the controller has no such task.
    pub fn settings(self) -> Result<Option<Settings>, InvalidFlag> {
        let common = common(self.cloud, &self.sweep)?;
        let grace = GracePeriods {
            node: Duration::from_secs(self.gcp_node_grace),
            ..common.grace
        };
        Ok(self.gcp.then_some(Settings { grace, ..common }))
    }
}

fn common(cloud: CloudArgs, sweep: &SweepArgs) -> Result<Settings, InvalidFlag> {
    Ok(Settings {
        endpoints: Endpoints::new(
            cloud.compute_endpoint.as_deref(),
            cloud.networkconnectivity_endpoint.as_deref(),
        )?,
        metadata_host: cloud.gcp_metadata_host,
        key_file: cloud.gcp_key_file,
        cooldown: Duration::from_secs(sweep.gcp_cooldown),
        move_timeout: Duration::from_secs(sweep.gcp_move_timeout),
        sweep: Duration::from_secs(sweep.gcp_sweep),
        ..Settings::default()
    })
}
