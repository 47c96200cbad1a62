//! The flags of the pods front.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use berth_front::Node;
use berth_slices::SliceSettings;

use super::PodFront;
use crate::garbage::{GarbageSettings, Patience};

/// Where the container runtime and Multus have libcni keep the results of this node's attachments.
const RESULT_CACHES: [&str; 2] = ["/var/lib/cni/results", "/var/lib/cni/multus/results"];

/// What an agent is told of pods.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Pods")]
pub struct PodArgs {
    #[command(flatten)]
    call: PodCallArgs,
    #[command(flatten)]
    garbage: GarbageArgs,
    #[command(flatten)]
    slices: SliceArgs,
}

impl PodArgs {
    /// The front, which looks for the flat file in those places.
    pub fn front(self, node: &Node, flat_places: Vec<PathBuf>) -> PodFront {
        let front = self.call.front(node, flat_places);
        PodFront {
            garbage: self.garbage.settings(),
            slices: SliceSettings {
                result_caches: front.slices.result_caches,
                runtime: front.slices.runtime,
                ..self.slices.settings()
            },
            ..front
        }
    }
}

/// What a single CNI call is told of pods, too.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Pods")]
pub struct PodCallArgs {
    /// Directories, between colons, below which a network definition may name files (kubernetes.kubeconfig,
    /// configuration_path) on a machine that is in no cluster; they must be root's. On a node of a cluster it names
    /// none [default: the directories of CNI configurations, such as /etc/cni/net.d].
    #[arg(long, value_name = "DIRS", env = "BERTH_DEFINITION_PATHS")]
    definition_paths: Option<OsString>,
    /// Where libcni keeps the results of this node's attachments: read when a node's database may be older than what it has
    /// allocated. May be given several times; separated by commas in the variable.
    #[arg(long, env = "BERTH_RESULT_CACHE", value_delimiter = ',', value_name = "DIR", default_values = RESULT_CACHES)]
    result_cache: Vec<PathBuf>,
}

impl PodCallArgs {
    /// The front for one call, which looks for the flat file in those places.
    pub fn front(&self, node: &Node, flat_places: Vec<PathBuf>) -> PodFront {
        let caches = self.result_cache.iter();
        let named = caches.filter(|path| !path.as_os_str().is_empty());
        PodFront {
            flat_places: Some(flat_places),
            definition_paths: self.definition_paths(),
            slices: SliceSettings {
                result_caches: named.cloned().collect(),
                runtime: node.runtime.clone(),
                ..SliceSettings::default()
            },
            ..PodFront::default()
        }
    }

    fn definition_paths(&self) -> Option<Vec<PathBuf>> {
        let paths = std::env::split_paths(self.definition_paths.as_ref()?);
        Some(paths.filter(|path| path.is_absolute()).collect())
    }
}

/// When addresses of pods that are gone are freed.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Pods")]
pub struct GarbageArgs {
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
#[command(next_help_heading = "Pods")]
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
    pub fn settings(&self) -> GarbageSettings {
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
