//! One call without an agent: the same engine, in the process that the plugin starts.

use std::path::PathBuf;
use std::sync::Arc;

use berth_cni::wire::{Answer, Request};
use berth_desk::DeskMetrics;
use berth_ledger::kube::Connect;
use berth_pods::config::{NodeFiles, flat};
use berth_pods::{Front, Stores};

use crate::stores::{Lifetime, NodeStores};

/// Where a call without an agent finds its store.
#[derive(Debug, Clone)]
pub struct OnceConfig {
    pub database: PathBuf,
    /// The node's name in its cluster; empty where it is unknown.
    pub node: String,
    /// The cluster that keeps all pools; none: the one that the network names, or this machine.
    pub cluster: Option<Connect>,
    /// Where the flat file is looked for; none for the places that whereabouts has.
    pub flat_places: Option<Vec<PathBuf>>,
    /// Where libcni keeps the results of this node's attachments.
    pub result_caches: Vec<PathBuf>,
    /// The directory of the agent's socket: what this boot knows of the node's database is there.
    pub runtime: Option<PathBuf>,
    /// Below which a network may name files, where nothing says that this node is in a cluster; none for the directories of
    /// CNI configurations.
    pub definition_paths: Option<Vec<PathBuf>>,
    /// What says that this node was installed for a cluster, if anything does: it is then never served from its own file.
    pub installed: Option<PathBuf>,
}

/// The node's files, where they are looked for.
pub(crate) fn node_files(
    places: Option<Vec<PathBuf>>,
    directories: Option<Vec<PathBuf>>,
) -> NodeFiles {
    let usual = |paths: &[&str]| paths.iter().map(PathBuf::from).collect();
    NodeFiles::new(
        places.unwrap_or_else(|| usual(&flat::PLACES)),
        directories.unwrap_or_else(|| usual(&flat::DIRECTORIES)),
    )
}

/// Serves one call.
pub async fn once(config: OnceConfig, request: &Request) -> Answer {
    let stores = NodeStores::new(
        config.database,
        config.cluster,
        Lifetime::Call {
            node: config.node.clone(),
            result_caches: config.result_caches,
            runtime: config.runtime,
        },
        DeskMetrics::default(),
    )
    .with_installed(config.installed);
    let stores = Arc::new(stores);
    let files = node_files(config.flat_places, config.definition_paths);
    let files = files.with_known_cluster(stores.is_cluster_known());
    let front = Front::new(Arc::clone(&stores) as Arc<dyn Stores>, config.node).with_files(files);
    let answer = front.answer(request).await;
    stores.finish().await;
    answer
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use berth_cni::Environment;
    use berth_ledger::{SharedLedger, SqliteLedger};
    use berth_pods::Store;
    use serde_json::json;

    use super::*;

    fn mk_add(container: &str) -> Request {
        // Two addresses.
        let network = json!({
            "cniVersion": "1.0.0", "name": "blue", "type": "bridge",
            "ipam": { "type": "berth", "range": "10.0.0.0/30" },
        });
        let environment = Environment {
            command: "ADD".into(),
            container_id: container.into(),
            netns: "/run/netns/x".into(),
            ifname: "eth0".into(),
            path: "/opt/cni/bin".into(),
            ..Environment::default()
        };
        Request::new("berth", environment, network.to_string())
    }

    async fn call(database: &Path, container: &str) -> i32 {
        let config = OnceConfig {
            database: database.to_owned(),
            node: String::new(),
            cluster: None,
            flat_places: Some(Vec::new()),
            result_caches: Vec::new(),
            runtime: None,
            definition_paths: Some(Vec::new()),
            installed: None,
        };
        once(config, &mk_add(container)).await.exit
    }

    /// Containers of an older boot, which nobody deleted.
    async fn left(database: &Path, containers: &[&str]) {
        let ledger: SharedLedger = Arc::new(SqliteLedger::open(database).unwrap());
        let store = Arc::new(Store::standalone(ledger, DeskMetrics::default()));
        let front = Front::new(Arc::new(store), "")
            .with_boot("old")
            .with_flat_places(Vec::new());
        for container in containers {
            let answer = front.answer(&mk_add(container)).await;
            assert_eq!(answer.exit, 0, "{}", answer.stdout);
        }
    }

    #[tokio::test]
    async fn plugins_252_697_a_machine_without_an_agent_loses_no_address_to_a_reboot() {
        let dir = tempfile::tempdir().unwrap();
        let database = dir.path().join("berth.db");
        left(&database, &["old-1", "old-2"]).await;
        assert_eq!(call(&database, "new-1").await, 0);
        assert_eq!(call(&database, "new-2").await, 0);
        assert_ne!(call(&database, "new-3").await, 0, "both are in use");
    }
}
