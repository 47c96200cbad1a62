//! The flags of the pods front.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use berth_collector::GracePeriods;
use berth_front::Node;
use berth_slices::SliceSettings;

use super::PodFront;
use crate::garbage::GarbageSettings;

/// Where the container runtime and Multus have libcni keep the results of this node's attachments.
const RESULT_CACHES: [&str; 2] = ["/var/lib/cni/results", "/var/lib/cni/multus/results"];

/// The agent's settings for pods.
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
    /// The front, which searches the flat file in those places.
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

/// The settings for pods that a single CNI call has too.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Pods")]
pub struct PodCallArgs {
    /// Colon-separated directories below which a network definition may name files (kubernetes.kubeconfig,
    /// configuration_path) on a machine in no cluster; root must own them. On a node of a cluster it may name none
    /// [default: the directories of CNI configurations, such as /etc/cni/net.d].
    #[arg(long, value_name = "DIRS", env = "BERTH_DEFINITION_PATHS")]
    definition_paths: Option<OsString>,
    /// Where libcni keeps the results of this node's attachments: read if the node's database may be outdated. Can be
    /// repeated; comma-separated in the variable.
    #[arg(long, env = "BERTH_RESULT_CACHE", value_delimiter = ',', value_name = "DIR", default_values = RESULT_CACHES)]
    result_cache: Vec<PathBuf>,
}

impl PodCallArgs {
    /// The front for one call, which searches the flat file in those places.
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

/// When addresses of pods that are gone are released.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Pods")]
pub struct GarbageArgs {
    /// Seconds that a pod must be gone before its addresses are released.
    #[arg(long, env = "BERTH_GARBAGE_GRACE", default_value_t = 30)]
    garbage_grace: u64,
    /// The same for pods whose node was deleted.
    #[arg(long, env = "BERTH_GARBAGE_NODE_GRACE", default_value_t = 120)]
    garbage_node_grace: u64,
    /// About how many seconds between two sweeps of all pools of the cluster, by any agent.
    #[arg(long, env = "BERTH_GARBAGE_INTERVAL", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..))]
    garbage_interval: u64,
}

/// The node's slices.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Pods")]
struct SliceArgs {
    /// Milliseconds to collect changes of slices before they are published together.
    #[arg(long, env = "BERTH_SLICE_GATHER_MS", default_value_t = 200)]
    slice_gather_ms: u64,
    /// Seconds by which publications are delayed at most while the API server is slow.
    #[arg(long, env = "BERTH_SLICE_PUBLISH_WITHIN", default_value_t = 120)]
    slice_publish_within: u64,
    /// Resync period, in seconds, for slices that whereabouts' controller assigned; ten times that for others.
    #[arg(long, env = "BERTH_SLICE_LOOK", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..))]
    slice_look: u64,
    /// Seconds that a claimed slice must be empty before it is returned.
    #[arg(long, env = "BERTH_SLICE_IDLE", default_value_t = 600)]
    slice_idle: u64,
    /// How many addresses a node holds in reserve, in percent of a slice.
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
            grace: GracePeriods {
                pod: Duration::from_secs(self.garbage_grace),
                node: Duration::from_secs(self.garbage_node_grace),
            },
            interval: Duration::from_secs(self.garbage_interval),
            ..GarbageSettings::default()
        }
    }
}
