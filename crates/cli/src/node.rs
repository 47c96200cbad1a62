//! What a node knows of itself.

use std::fs;
use std::path::{Path, PathBuf};

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

/// Where installers leave the node's name for the plugin, in the order in which their flat files are looked for.
const NAMED_BY_INSTALLERS: [&str; 3] = [
    "/etc/kubernetes/cni/net.d/whereabouts.d/nodename",
    "/etc/cni/net.d/whereabouts.d/nodename",
    "/var/lib/rancher/k3s/agent/etc/cni/net.d/whereabouts.d/nodename",
];

/// What a machine calls itself: the name that its node has, unless its kubelet was told another one.
const NAMED_BY_MACHINE: [&str; 2] = ["/etc/hostname", "/proc/sys/kernel/hostname"];

/// What a machine without a name calls itself: not one to tell it from others by.
const NO_NAMES: [&str; 3] = ["localhost", "localhost.localdomain", "(none)"];

/// The node's name: as told, else `NODENAME`, else in a file `nodename` in one of `homes` or where installers leave it,
/// else the machine's.
pub fn name(told: Option<String>, homes: &[PathBuf]) -> Option<String> {
    let given = |text: String| {
        let text = text.trim().to_owned();
        (!text.is_empty()).then_some(text)
    };
    let read = |file: &Path| fs::read_to_string(file).ok().and_then(given);
    let of_machine = |file: &str| read(file.as_ref()).filter(|name| !NO_NAMES.contains(&&**name));
    told.and_then(given)
        .or_else(|| std::env::var("NODENAME").ok().and_then(given))
        .or_else(|| homes.iter().find_map(|home| read(&home.join("nodename"))))
        .or_else(|| {
            NAMED_BY_INSTALLERS
                .iter()
                .find_map(|file| read(file.as_ref()))
        })
        .or_else(|| NAMED_BY_MACHINE.iter().find_map(|file| of_machine(file)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_beside_the_flat_file_comes_before_the_machine_s_and_after_what_was_told() {
        let dir = tempfile::tempdir().unwrap();
        let homes = ["none", "odd", "whereabouts.d"].map(|home| dir.path().join(home));
        for (home, text) in homes.iter().zip([None, Some(" \n"), Some("worker-3\n")]) {
            if let Some(text) = text {
                fs::create_dir(home).unwrap();
                fs::write(home.join("nodename"), text).unwrap();
            }
        }
        assert_eq!(name(None, &homes).as_deref(), Some("worker-3"));
        let told = Some("told".to_owned());
        assert_eq!(name(told, &homes).as_deref(), Some("told"));
        assert_ne!(name(None, &[]).as_deref(), Some("localhost"));
    }
}
