//! The pods front as a node runs it: which store keeps a network's pools, the collectors of garbage, readiness, and
//! `POST /v1/release` on the agent's socket.

mod cluster_marker;
mod collectors;
mod flags;
mod release;
mod stores;

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::routing::post;
use berth_cni::wire::{Answer, MAX_BODY, Request};
use berth_front::{Front, Host, Readiness, Serving, StartError};
use berth_ledger::LedgerError;
use berth_slices::{SliceMetrics, SliceSettings};
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::Stores;
use crate::config::{NodeFiles, flat};
use crate::front;
use crate::garbage::{GarbageMetrics, GarbageSettings};
use collectors::Collectors;
pub use flags::{GarbageArgs, PodArgs, PodCallArgs};
pub use release::{RELEASE_PATH, ReleaseAnswer, ReleaseFailure, ReleaseReason, ReleaseRequest};
use stores::{Lifetime, NodeStores, Served};

pub use berth_networks::PLUGINS;

/// The pods front, set up.
#[derive(Debug, Clone, Default)]
pub struct PodFront {
    /// Where the flat file is searched; none for whereabouts' own places.
    pub flat_places: Option<Vec<PathBuf>>,
    /// Below which a network may name files, where nothing says that this node is in a cluster; none for the directories of
    /// CNI configurations.
    pub definition_paths: Option<Vec<PathBuf>>,
    /// How addresses of pods that are gone are collected.
    pub garbage: GarbageSettings,
    /// How this node keeps its slices.
    pub slices: SliceSettings,
}

#[derive(Debug, thiserror::Error)]
#[error("the store can't be opened")]
struct Unopened(#[source] LedgerError);

#[async_trait]
impl Front for PodFront {
    fn name(&self) -> &'static str {
        "pods"
    }

    fn plugins(&self) -> &'static [&'static str] {
        PLUGINS
    }

    async fn start(self: Box<Self>, host: Host<'_>) -> Result<Arc<dyn Serving>, StartError> {
        let degraded = register_degraded(host.registry);
        let node = host.node;
        let daemon = host.lifetime == berth_front::Lifetime::Daemon;
        let lifetime = match daemon {
            true => Lifetime::Daemon(Box::new(self.collectors(
                host.stop,
                host.tasks,
                node,
                host.registry,
            ))),
            false => Lifetime::Call {
                node: node.name.clone(),
                result_caches: self.slices.result_caches.clone(),
                runtime: self.slices.runtime.clone(),
            },
        };
        let stores = NodeStores::new(host.file, node.cluster.clone(), lifetime, host.desk_metrics)
            .with_clusters(host.clusters)
            .with_installed(node.installed.clone());
        let stores = Arc::new(stores);
        if daemon {
            stores.open().await.map_err(Unopened)?;
        }
        let files = node_files(self.flat_places, self.definition_paths)
            .with_known_cluster(stores.is_cluster_known());
        let front = front::Front::new(Arc::clone(&stores) as Arc<dyn Stores>, &node.name);
        Ok(Arc::new(ServingPods {
            front: front.with_files(files),
            stores,
            degraded,
        }))
    }
}

impl PodFront {
    fn collectors(
        &self,
        stop: tokio_util::sync::CancellationToken,
        tasks: tokio_util::task::TaskTracker,
        node: &berth_front::Node,
        registry: &mut Registry,
    ) -> Collectors {
        let mut settings = self.garbage.clone();
        // The collectors read the networks as the front does.
        if let Some(places) = &self.flat_places {
            settings.flat_places.clone_from(places);
        }
        let collectors = Collectors {
            node: node.name.clone(),
            settings,
            metrics: GarbageMetrics::default(),
            slice_settings: self.slices.clone(),
            slice_metrics: SliceMetrics::default(),
            stop,
            tasks,
        };
        collectors.metrics.register(registry);
        collectors.slice_metrics.register(registry);
        collectors
    }
}

/// Where the node's files are searched.
fn node_files(places: Option<Vec<PathBuf>>, directories: Option<Vec<PathBuf>>) -> NodeFiles {
    let usual = |paths: &[&str]| paths.iter().map(PathBuf::from).collect();
    NodeFiles::new(
        places.unwrap_or_else(|| usual(&flat::PLACES)),
        directories.unwrap_or_else(|| usual(&flat::DIRECTORIES)),
    )
}

fn register_degraded(registry: &mut Registry) -> Gauge {
    let degraded = Gauge::default();
    registry.sub_registry_with_prefix("berth_agent").register(
        "degraded",
        "1 if the API server could not be reached when readiness was last asked for",
        degraded.clone(),
    );
    degraded
}

/// The pods front while it serves.
#[derive(Debug)]
struct ServingPods {
    front: front::Front,
    stores: Arc<NodeStores>,
    /// As the last probe of readiness found it.
    degraded: Gauge,
}

#[async_trait]
impl Serving for ServingPods {
    async fn call(&self, request: &Request) -> Answer {
        self.front.answer(request).await
    }

    fn routes(&self) -> Router {
        Router::new()
            .route(RELEASE_PATH, post(release::release))
            .layer(DefaultBodyLimit::max(MAX_BODY))
            .with_state(Arc::clone(&self.stores))
    }

    /// Ready as long as it can allocate something: a node whose slices serve while the API server is away must not be taken
    /// for one that does not serve. The answer and a metric say what it can't do.
    async fn ready(&self) -> Readiness {
        let served = self.stores.ready().await;
        let whole = matches!(served, Ok(Served::Whole));
        self.degraded.set(i64::from(!whole));
        match served {
            Ok(Served::Whole) => Readiness::Ready,
            Ok(Served::Slices { ranges, why }) => Readiness::Degraded(format!(
                "{ranges} ranges are served from this node's slices; shared pools, reservations and new slices wait: {why}"
            )),
            Err(error) => Readiness::NotReady(error.to_string()),
        }
    }

    async fn finish(&self) {
        self.stores.finish().await;
    }
}
