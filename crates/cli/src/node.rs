//! What a node knows of itself.

use std::fs;
use std::path::PathBuf;

use berth_ledger::kube::Connect;

/// The cluster that keeps a node's pools.
#[derive(Debug, Clone, clap::Args)]
pub struct ClusterArgs {
    /// Keep all pools in the cluster of this kubeconfig [default: the cluster that the process runs in, if
    /// any; else that of the network's own kubeconfig; else the node's database].
    #[arg(long, value_name = "FILE", env = "BERTH_KUBECONFIG")]
    kubeconfig: Option<PathBuf>,
    /// The namespace of pools and reservations [default: the kubeconfig context's, else kube-system].
    #[arg(long, env = "WHEREABOUTS_NAMESPACE")]
    namespace: Option<String>,
}

impl ClusterArgs {
    /// How to reach the cluster, if one was told.
    pub fn connect(self) -> Option<Connect> {
        let in_cluster = std::env::var_os("KUBERNETES_SERVICE_HOST").is_some();
        (self.kubeconfig.is_some() || in_cluster).then(|| Connect {
            kubeconfig: self.kubeconfig,
            namespace: self.namespace,
            ..Connect::default()
        })
    }
}

/// Where whereabouts' own install leaves the node's name for its plugin.
const NAME_FILES: [&str; 3] = [
    "/etc/kubernetes/cni/net.d/whereabouts.d/nodename",
    "/etc/cni/net.d/whereabouts.d/nodename",
    "/etc/hostname",
];

/// The node's name: as told, else `NODENAME`, else the file that whereabouts has it in, else the machine's.
pub fn name(told: Option<String>) -> String {
    let given = |text: String| {
        let text = text.trim().to_owned();
        (!text.is_empty()).then_some(text)
    };
    told.and_then(given)
        .or_else(|| std::env::var("NODENAME").ok().and_then(given))
        .or_else(|| {
            let mut found = NAME_FILES
                .iter()
                .filter_map(|file| fs::read_to_string(file).ok());
            found.find_map(given)
        })
        .unwrap_or_else(|| "localhost".to_owned())
}
