//! One call without an agent: the same engine, in the process that the plugin starts.

use std::path::PathBuf;
use std::sync::Arc;

use berth_cni::wire::{Answer, Request};
use berth_desk::DeskMetrics;
use berth_ledger::kube::Connect;
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
    /// What says that this node was installed for a cluster, if anything does: it is then never served from its own file.
    pub installed: Option<PathBuf>,
}

/// Serves one call.
pub async fn once(config: OnceConfig, request: &Request) -> Answer {
    let stores = NodeStores::new(
        config.database,
        config.cluster,
        Lifetime::Call {
            node: config.node.clone(),
        },
        DeskMetrics::default(),
    )
    .with_installed(config.installed);
    let stores = Arc::new(stores);
    let mut front = Front::new(Arc::clone(&stores) as Arc<dyn Stores>, config.node);
    if let Some(places) = config.flat_places {
        front = front.with_flat_places(places);
    }
    let answer = front.answer(request).await;
    stores.finish().await;
    answer
}
