//! The fronts and leader tasks of this program: the only place that names them all.
//!
//! To add a front: a field in [`FrontArgs`] (and in [`CallArgs`], if it serves CNI calls), a line in `list`, its plugin
//! names in [`plugin_names`] and what the plugin reads in [`INSTALLED_TEXTS`], its kind of pools in [`KINDS`], and, if it has work for the leader, a line in
//! `controller.rs`.

use std::path::PathBuf;

use anyhow::bail;
use berth_front::{Front, Kind, Node};
use berth_gcp::front::{GcpArgs, IP_POOL_KIND};
use berth_install::{TextFile, templates};
use berth_kube::Connect;
use berth_nodes::front::{NODE_IP_POOL_KIND, NodeArgs};
use berth_pods::node::{PLUGINS, PodArgs, PodCallArgs};
use berth_vms::VmFlags;

/// The kinds of pools that fronts keep in their own objects, besides whereabouts' IPPools: for the leader desk and for
/// `berth pools`.
pub const KINDS: &[Kind] = &[NODE_IP_POOL_KIND, IP_POOL_KIND];

/// The names that the CNI plugin is installed under.
pub fn plugin_names() -> Vec<&'static str> {
    PLUGINS.to_vec()
}

/// What the plugin reads beside it, under the names that whereabouts has for it.
pub const INSTALLED_TEXTS: &[TextFile] = &[
    TextFile {
        name: "whereabouts.kubeconfig",
        text: |_, cluster| cluster.map(templates::kubeconfig),
    },
    TextFile {
        name: "whereabouts.conf",
        text: |settings, cluster| {
            let own = settings.layout.own();
            cluster.map(|_| templates::flat_file(&own.there, &settings.cron))
        },
    },
    TextFile {
        name: "nodename",
        text: |settings, _| settings.node.clone(),
    },
];

/// The flags of all fronts, as the agent has them.
#[derive(Debug, clap::Args)]
pub struct FrontArgs {
    #[command(flatten)]
    pods: PodArgs,
    /// Serve VM pools only, and not the cluster's pods: needs none of their rights.
    #[arg(long, help_heading = "VM pools")]
    pub vms_only: bool,
    #[command(flatten)]
    vms: VmFlags,
    #[command(flatten)]
    nodes: NodeArgs,
    #[command(flatten)]
    gcp: GcpArgs,
}

impl FrontArgs {
    /// The fronts that an agent serves. `cluster` is the configured one, even if `node` has none for pods.
    pub fn list(
        self,
        node: &Node,
        named: Option<&str>,
        cluster: Option<Connect>,
        flat_places: Vec<PathBuf>,
    ) -> anyhow::Result<Vec<Box<dyn Front>>> {
        let vms = self.vms.setup(named, cluster.clone(), &node.database)?;
        if self.vms_only && vms.is_none() {
            bail!(
                "--vms-only: no VM pools are set; name them with vm-pool-ips, pools-configmap or vm-settings"
            );
        }
        let mut fronts: Vec<Box<dyn Front>> = Vec::new();
        fronts.push(Box::new(self.pods.front(node, flat_places)));
        if !self.vms_only {
            fronts.push(Box::new(self.gcp.front()?));
        }
        if let Some(vms) = vms {
            fronts.push(Box::new(vms));
        }
        if let Some(nodes) = self.nodes.front(cluster) {
            fronts.push(Box::new(nodes));
        }
        Ok(fronts)
    }
}

/// The flags of the fronts that serve CNI calls, for `berth cni`.
#[derive(Debug, clap::Args)]
pub struct CallArgs {
    #[command(flatten)]
    pods: PodCallArgs,
    #[command(flatten)]
    gcp: GcpArgs,
}

impl CallArgs {
    pub fn list(
        self,
        node: &Node,
        flat_places: Vec<PathBuf>,
    ) -> anyhow::Result<Vec<Box<dyn Front>>> {
        Ok(vec![
            Box::new(self.pods.front(node, flat_places)),
            Box::new(self.gcp.front()?),
        ])
    }
}
