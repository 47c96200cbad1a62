//! The agent's life: open the store, listen, serve, stop.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use berth_desk::DeskMetrics;
use berth_front::{Clusters, Front, Host, Lifetime, Node, StartError};
use berth_listen::{Limits, Recent, Server, Transport, exposition};
use berth_node::LazyFile;
use futures::FutureExt;
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::fronts::Fronts;
use crate::metrics::Metrics;
use crate::routes::{AppState, on_network, on_socket};
use crate::socket::Socket;

/// How long everything that is under way may take to finish, together, once the agent has to stop. A pod's grace
/// period has to be longer: deploy/agent.
const STOP_LIMIT: Duration = Duration::from_secs(30);

/// Plugins that are answered at a time; more wait in the backlog. A node that comes up starts some hundred pods at once.
const SOCKET_CONNECTIONS: usize = 1024;

/// Bytes of requests held at a time: a CNI call has some kilobytes, a VM's user data some megabytes.
const SOCKET_BODIES: usize = 16 << 20;

/// How an agent is set up.
#[derive(Debug)]
pub struct AgentConfig {
    /// Where it listens for CNI calls.
    pub socket: PathBuf,
    /// Where health, readiness and metrics are served beside the socket, if anywhere.
    pub listen: Option<SocketAddr>,
    pub node: Node,
    /// What it serves.
    pub fronts: Vec<Box<dyn Front>>,
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
    #[error("the {front} front can't be started")]
    Front {
        front: &'static str,
        #[source]
        source: StartError,
    },
    #[error("two fronts answer to the CNI plugin name {plugin:?}")]
    SamePlugin { plugin: &'static str },
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
    // Fronts that run already stop if a later one can't be started.
    let _stopped_at_least_now = stop.clone().drop_guard();
    let background = TaskTracker::new();
    let clusters = Arc::new(Clusters::new(config.node.leader_desk.clone()));
    let file = Arc::new(LazyFile::of_agent(&config.node.database));
    let mut fronts = Fronts::default();
    for front in config.fronts {
        let host = Host {
            node: &config.node,
            file: Arc::clone(&file),
            lifetime: Lifetime::Daemon,
            clusters: Arc::clone(&clusters),
            registry: &mut registry,
            desk_metrics: desk_metrics.clone(),
            stop: stop.clone(),
            tasks: background.clone(),
        };
        fronts.start(front, host).await?;
    }
    let fronts = Arc::new(fronts);
    let state = AppState {
        fronts: Arc::clone(&fronts),
        metrics,
        registry: Arc::new(registry),
        readiness: Recent::default(),
        calls: TaskTracker::new(),
    };
    let network = listen(config.listen, &state, &stop).await?;
    let (socket, listener) = Socket::bind(&config.socket)?;
    tracing::info!(socket = %config.socket.display(), node = %config.node.name, fronts = ?fronts.names(), "the agent serves");

    let signal = stop.clone();
    let stopper = tokio::spawn(async move {
        shutdown.await;
        signal.cancel();
    });
    let server = Server {
        name: "agent socket",
        transport: Transport::Unix(listener),
        routes: on_socket(state.clone()).merge(fronts.routes()),
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
    stopper.abort();
    state.calls.close();
    background.close();
    // Calls whose plugin is gone are no connection's any more.
    let finished = async {
        tokio::join!(state.calls.wait(), background.wait());
        fronts.finish().await;
    };
    tokio::select! {
        () = finished => {}
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

/// Completes when the time for stopping is over.
async fn overdue(stop: CancellationToken) {
    stop.cancelled().await;
    tokio::time::sleep(STOP_LIMIT).await;
}

async fn listen(
    address: Option<SocketAddr>,
    state: &AppState,
    stop: &CancellationToken,
) -> Result<Option<tokio::task::JoinHandle<()>>, AgentError> {
    let Some(address) = address else {
        return Ok(None);
    };
    let listener = TcpListener::bind(address)
        .await
        .map_err(|source| AgentError::Listen { address, source })?;
    let server = Server {
        name: "agent health and metrics",
        transport: Transport::Tcp(listener),
        routes: on_network(state.clone()),
        limits: Limits::default(),
    };
    Ok(Some(tokio::spawn(server.run(stop.clone()))))
}
