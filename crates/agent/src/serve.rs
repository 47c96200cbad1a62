//! The agent's life: open the store, listen, serve, stop.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use berth_desk::DeskMetrics;
use berth_gather::GatherSettings;
use berth_ledger::LedgerError;
use berth_ledger::kube::Connect;
use berth_listen::{Limits, Recent, Server, Transport, exposition};
use berth_pods::garbage::{GarbageMetrics, GarbageSettings};
use berth_pods::{Front, Stores};
use berth_slices::{SliceMetrics, SliceSettings};
use futures::FutureExt;
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::collectors::Collectors;
use crate::metrics::Metrics;
use crate::once::node_files;
use crate::routes::{Desk, on_network, on_socket};
use crate::socket::Socket;
use crate::stores::{Lifetime, NodeStores};

/// Where the VM pools are on the socket.
const VMS_PATH: &str = "/v1/vms";

/// How long everything that is under way may take to finish, together, once the agent is told to stop. A pod's grace
/// period has to be longer: deploy/agent.
const STOP_LIMIT: Duration = Duration::from_secs(30);

/// Plugins that are answered at a time; more wait in the backlog. A node that comes up starts some hundred pods at once.
const SOCKET_CONNECTIONS: usize = 1024;

/// Bytes of requests held at a time: a CNI call has some kilobytes, a VM's user data some megabytes.
const SOCKET_BODIES: usize = 16 << 20;

/// How an agent is set up.
#[derive(Debug, Clone)]
pub struct AgentConfig {
    /// Where it listens for CNI calls.
    pub socket: PathBuf,
    /// The node's own store.
    pub database: PathBuf,
    /// The node's name in its cluster, or the machine's; empty where it is unknown, which no node of a cluster may be.
    pub node: String,
    /// The cluster that keeps all pools; none: the one that a network names, or this machine.
    pub cluster: Option<Connect>,
    /// Where health, readiness and metrics are served beside the socket, if anywhere.
    pub listen: Option<SocketAddr>,
    /// Where the flat file is looked for; none for the places that whereabouts has.
    pub flat_places: Option<Vec<PathBuf>>,
    /// What `berth install` left of its having been told a cluster, if it did.
    pub installed: Option<PathBuf>,
    /// Below which a network may name files, where nothing says that this node is in a cluster; none for the directories of
    /// CNI configurations.
    pub definition_paths: Option<Vec<PathBuf>>,
    /// How addresses of pods that are gone are collected.
    pub garbage: GarbageSettings,
    /// How the claims of this node reach the leader's desk; none: this node writes shared pools itself.
    pub gather: Option<GatherSettings>,
    /// How this node keeps its slices.
    pub slices: SliceSettings,
    /// The VM pools, if this node has any.
    pub vms: Option<berth_vms::Setup>,
}

/// Why an agent does not run.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    #[error("another agent listens on {}", socket.display())]
    Running { socket: PathBuf },
    #[error("{} can't be made", path.display())]
    Bind {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{address} can't be listened on")]
    Listen {
        address: SocketAddr,
        #[source]
        source: io::Error,
    },
    #[error("the store can't be opened")]
    Store(#[source] LedgerError),
    #[error("the VM pools can't be served")]
    Vms(#[from] berth_vms::StartError),
}

/// Runs an agent until `shutdown` completes, then finishes what is under way.
pub async fn serve(
    config: AgentConfig,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> Result<(), AgentError> {
    let mut registry = Registry::default();
    exposition::register_build_info(&mut registry);
    let metrics = Metrics::register(&mut registry);
    let desk_metrics = DeskMetrics::default();
    desk_metrics.register(&mut registry);
    let stop = CancellationToken::new();
    let collectors = Collectors {
        node: config.node.clone(),
        settings: garbage(&config),
        metrics: GarbageMetrics::default(),
        slice_settings: config.slices.clone(),
        slice_metrics: SliceMetrics::default(),
        stop: stop.clone(),
        tasks: TaskTracker::new(),
    };
    collectors.metrics.register(&mut registry);
    collectors.slice_metrics.register(&mut registry);
    let collecting = collectors.tasks.clone();
    let stores = Arc::new(
        NodeStores::new(
            config.database.clone(),
            config.cluster.clone(),
            Lifetime::Daemon(Box::new(collectors)),
            desk_metrics.clone(),
        )
        .with_gather(config.gather.clone())
        .with_installed(config.installed.clone()),
    );
    stores.open().await.map_err(AgentError::Store)?;
    let files = node_files(config.flat_places.clone(), config.definition_paths.clone());
    let files = files.with_known_cluster(stores.is_cluster_known());
    let front = Front::new(Arc::clone(&stores) as Arc<dyn Stores>, &config.node).with_files(files);
    let fleet = match config.vms.clone() {
        Some(setup) => {
            Some(berth_vms::start(setup, desk_metrics, &mut registry, stop.clone()).await?)
        }
        None => None,
    };
    let vms = fleet.clone().map_or_else(Router::new, |fleet| {
        Router::new().nest(VMS_PATH, berth_vms::router(fleet))
    });
    let desk = Desk {
        front: Arc::new(front),
        stores,
        metrics,
        registry: Arc::new(registry),
        readiness: Recent::default(),
        calls: TaskTracker::new(),
        vms: fleet,
    };
    let network = listen(&config, &desk, &stop).await?;
    let (socket, listener) = Socket::bind(&config.socket)?;
    tracing::info!(socket = %config.socket.display(), node = %config.node, "the agent serves");

    let signal = stop.clone();
    let told = tokio::spawn(async move {
        shutdown.await;
        signal.cancel();
    });
    let server = Server {
        name: "agent socket",
        transport: Transport::Unix(listener),
        routes: on_socket(desk.clone()).merge(vms),
        limits: Limits {
            connections: SOCKET_CONNECTIONS,
            body_bytes: SOCKET_BODIES,
            ..Limits::default()
        },
    };
    let overdue = overdue(stop.clone()).shared();
    tokio::select! {
        () = server.run(stop.clone()) => {}
        () = overdue.clone() => {}
    }
    stop.cancel();
    told.abort();
    desk.calls.close();
    collecting.close();
    // Calls whose plugin is gone are no connection's any more.
    let finished = async { tokio::join!(desk.calls.wait(), collecting.wait()) };
    tokio::select! {
        _ = finished => {}
        () = overdue => {
            tracing::warn!("calls are still under way after {} s; stopping all the same", STOP_LIMIT.as_secs());
        }
    }
    drop(socket);
    if let Some(network) = network {
        network.abort();
    }
    tracing::info!("the agent has stopped");
    Ok(())
}

/// The collectors read the networks as the front does.
fn garbage(config: &AgentConfig) -> GarbageSettings {
    let mut settings = config.garbage.clone();
    if let Some(places) = &config.flat_places {
        settings.flat_places.clone_from(places);
    }
    settings
}

/// Completes when the time for stopping is over.
async fn overdue(stop: CancellationToken) {
    stop.cancelled().await;
    tokio::time::sleep(STOP_LIMIT).await;
}

async fn listen(
    config: &AgentConfig,
    desk: &Desk,
    stop: &CancellationToken,
) -> Result<Option<tokio::task::JoinHandle<()>>, AgentError> {
    let Some(address) = config.listen else {
        return Ok(None);
    };
    let listener = TcpListener::bind(address)
        .await
        .map_err(|source| AgentError::Listen { address, source })?;
    let server = Server {
        name: "agent health and metrics",
        transport: Transport::Tcp(listener),
        routes: on_network(desk.clone()),
        limits: Limits::default(),
    };
    Ok(Some(tokio::spawn(server.run(stop.clone()))))
}
