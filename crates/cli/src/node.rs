//! How a node finds its cluster, its flat file and its name.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use berth_kube::Connect;
use berth_kube::files::{self, CONFIGURATION_LIMIT, Owner};
use berth_pods::config::{NamedPaths, NodeFiles, flat};

/// The cluster that keeps a node's pools.
#[derive(Debug, Clone, clap::Args)]
pub struct ClusterArgs {
    /// Keep all pools in the cluster of this kubeconfig [default: the cluster that the process runs in, if
    /// any; else that of the node's flat file; else that of the network's own kubeconfig; else the node's database].
    #[arg(long, value_name = "FILE", env = "BERTH_KUBECONFIG")]
    kubeconfig: Option<PathBuf>,
    /// The namespace of pools and reservations [default: the kubeconfig context's, else kube-system].
    #[arg(long, env = "WHEREABOUTS_NAMESPACE")]
    namespace: Option<String>,
}

impl ClusterArgs {
    /// How to reach the cluster, if one is configured.
    pub fn connect(self) -> Option<Connect> {
        let in_cluster = std::env::var_os("KUBERNETES_SERVICE_HOST").is_some();
        (self.kubeconfig.is_some() || in_cluster).then(|| Connect {
            kubeconfig: self.kubeconfig,
            namespace: self.namespace,
            ..Connect::default()
        })
    }
}

/// The files with what the node's administrator or installer has set.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct NodeFileArgs {
    /// The node's flat file: the first existing file of this colon-separated list [default: whereabouts.conf where
    /// whereabouts searches it, such as /etc/cni/net.d/whereabouts.d].
    #[arg(long, value_name = "FILES", env = "BERTH_FLAT_FILES")]
    flat_files: Option<OsString>,
    /// The file with the node's name, if neither --node nor NODENAME is set: the first existing file of this
    /// colon-separated list [default: nodename next to the flat file, then /etc/hostname].
    #[arg(long, value_name = "FILES", env = "BERTH_NODENAME_FILES")]
    nodename_files: Option<OsString>,
}

impl NodeFileArgs {
    /// Where to search the flat file.
    pub fn flat_places(&self) -> Vec<PathBuf> {
        listed(self.flat_files.as_ref(), &flat::PLACES)
    }

    /// The kubeconfig that the flat file names: networks without their own use it.
    pub fn kubeconfig(&self) -> Option<PathBuf> {
        let files = NodeFiles::of_known_cluster(self.flat_places());
        // Every call that needs an unreadable file reports it.
        files.find(&NamedPaths::default()).ok()?.kubeconfig
    }

    /// The node's name: as configured, else `NODENAME`, else from a file `nodename` in one of `homes` or from one of
    /// the named files, else the machine's.
    pub fn name(&self, flag: Option<String>, homes: &[PathBuf]) -> Option<String> {
        let beside = homes.iter().map(|home| home.join("nodename"));
        let files = listed(self.nodename_files.as_ref(), &NODENAME_FILES);
        name(flag, beside.chain(files))
    }
}

/// The paths of a colon-separated list, none for an empty one; else these.
fn listed(named: Option<&OsString>, usual: &[&str]) -> Vec<PathBuf> {
    let Some(named) = named else {
        return usual.iter().map(PathBuf::from).collect();
    };
    let paths = std::env::split_paths(named);
    paths.filter(|path| path.is_absolute()).collect()
}

/// Where installers store the node's name for the plugin, in the order in which their flat files are searched, and
/// where a machine has its own: the name of its node, unless its kubelet is configured with another.
const NODENAME_FILES: [&str; 4] = [
    "/etc/kubernetes/cni/net.d/whereabouts.d/nodename",
    "/etc/cni/net.d/whereabouts.d/nodename",
    "/var/lib/rancher/k3s/agent/etc/cni/net.d/whereabouts.d/nodename",
    "/etc/hostname",
];

/// The kernel's name of the machine.
const NAMED_BY_KERNEL: &str = "/proc/sys/kernel/hostname";

/// Names of machines without a name: they identify nothing.
const NO_NAMES: [&str; 3] = ["localhost", "localhost.localdomain", "(none)"];

/// The node's name: as configured, else `NODENAME`, else the first of `files` that has one, else the kernel's.
fn name(flag: Option<String>, files: impl Iterator<Item = PathBuf>) -> Option<String> {
    let set = |text: String| {
        let text = text.trim().to_owned();
        (!text.is_empty()).then_some(text)
    };
    let read = |file: &Path| {
        let text = files::read(file, CONFIGURATION_LIMIT, Owner::Anybody);
        let name = text.ok().flatten().and_then(set);
        name.filter(|name| !NO_NAMES.contains(&&**name))
    };
    let mut files = files.chain([PathBuf::from(NAMED_BY_KERNEL)]);
    flag.and_then(set)
        .or_else(|| std::env::var("NODENAME").ok().and_then(set))
        .or_else(|| files.find_map(|file| read(&file)))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_name_beside_the_flat_file_comes_before_the_machine_s_and_after_the_configured_one() {
        let dir = tempfile::tempdir().unwrap();
        let homes = ["none", "odd", "whereabouts.d"].map(|home| dir.path().join(home));
        for (home, text) in homes.iter().zip([None, Some(" \n"), Some("worker-3\n")]) {
            if let Some(text) = text {
                fs::create_dir(home).unwrap();
                fs::write(home.join("nodename"), text).unwrap();
            }
        }
        let none = NodeFileArgs {
            nodename_files: Some(OsString::new()),
            ..NodeFileArgs::default()
        };
        assert_eq!(none.name(None, &homes).as_deref(), Some("worker-3"));
        let flag = Some("flag".to_owned());
        assert_eq!(none.name(flag, &homes).as_deref(), Some("flag"));
        assert_ne!(none.name(None, &[]).as_deref(), Some("localhost"));
    }

    #[test]
    fn berth_15_25_files_that_are_named_stand_instead_of_the_machine_s_own() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("nodename");
        fs::write(&file, "worker-4\n").unwrap();
        let named = NodeFileArgs {
            flat_files: Some("/a/whereabouts.conf:/b/whereabouts.conf".into()),
            nodename_files: Some(file.into_os_string()),
        };
        assert_eq!(named.name(None, &[]).as_deref(), Some("worker-4"));
        let places = ["/a/whereabouts.conf", "/b/whereabouts.conf"].map(PathBuf::from);
        assert_eq!(named.flat_places(), places);
        let none = NodeFileArgs {
            flat_files: Some(OsString::new()),
            ..NodeFileArgs::default()
        };
        assert!(none.flat_places().is_empty());
    }
}
