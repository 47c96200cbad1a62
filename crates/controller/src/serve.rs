//! The life of the controller: connect, stand for election, run its tasks, stop.
//!
//! Every replica runs each task's `follow`; the leader also runs its `lead`, once a term.

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use berth_api::slices::CONTROLLER_LEASE;
use berth_front::LeaderTask;
use berth_kube::election::{Candidate, Election, Leadership};
use berth_kube::{Connect, Connection, KubeError};
use berth_listen::{Limits, Server, Transport, exposition};
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// What a leader does, each task for the whole cluster.
pub type Tasks = Vec<Arc<dyn LeaderTask>>;

/// How a controller is set up.
#[derive(Clone, Debug)]
pub struct ControllerConfig {
    pub cluster: Connect,
    /// The name of this replica.
    pub identity: String,
    /// What it announces on the Lease while it leads, such as its address: annotations `berth.dev/...`.
    pub notice: BTreeMap<String, String>,
    /// How long until a dead leader is replaced; `None`: no election, this process always leads.
    pub lease: Option<Duration>,
    /// Where health, readiness and metrics are served, if at all.
    pub listen: Option<SocketAddr>,
}

/// Why a controller does not run.
#[derive(Debug, thiserror::Error)]
pub enum ControllerError {
    #[error("the cluster can't be reached")]
    Connect(#[source] KubeError),
    #[error("{address} can't be listened on")]
    Listen {
        address: SocketAddr,
        #[source]
        source: io::Error,
    },
    /// A process without one of its tasks would look healthy: it ends and is restarted.
    #[error("the task {0} ended by itself")]
    Task(&'static str),
}

/// A controller that is about to run. Tasks get its connection and leadership from here.
#[derive(Debug)]
pub struct Controller {
    config: ControllerConfig,
    connection: Connection,
    leadership: Leadership,
    election: Option<Election>,
}

impl Controller {
    /// Reads the credentials. Does not talk to the server yet.
    pub async fn open(config: ControllerConfig) -> Result<Controller, ControllerError> {
        let connection = config
            .cluster
            .open()
            .await
            .map_err(ControllerError::Connect)?;
        let (leadership, election) = match config.lease {
            Some(duration) => {
                let candidate = Candidate {
                    lease: CONTROLLER_LEASE.to_owned(),
                    identity: config.identity.clone(),
                    notice: config.notice.clone(),
                    duration,
                };
                let client = connection.client.clone();
                let (election, leadership) =
                    Election::new(client, &connection.namespace, candidate);
                (leadership, Some(election))
            }
            None => {
                let sole = Leadership::sole(&config.identity, config.notice.clone());
                (sole, None)
            }
        };
        Ok(Controller {
            config,
            connection,
            leadership,
            election,
        })
    }

    pub fn leadership(&self) -> Leadership {
        self.leadership.clone()
    }

    pub fn connection(&self) -> Connection {
        self.connection.clone()
    }

    /// Runs until `shutdown` completes, then releases the Lease.
    pub async fn run(
        self,
        tasks: Tasks,
        shutdown: impl Future<Output = ()>,
    ) -> Result<(), ControllerError> {
        let mut registry = Registry::default();
        exposition::register_build_info(&mut registry);
        let leading = Gauge::default();
        registry
            .sub_registry_with_prefix("berth_controller")
            .register("leading", "1 while this process leads", leading.clone());
        for task in &tasks {
            task.register(&mut registry);
        }
        let stop = CancellationToken::new();
        let state = AppState {
            registry: Arc::new(registry),
            tasks: tasks.clone().into(),
            leadership: self.leadership.clone(),
        };
        let listener = listen(self.config.listen, state, &stop).await?;
        let election = self
            .election
            .map(|election| tokio::spawn(election.run(stop.clone())));
        let mut running = JoinSet::new();
        running.spawn(report_leading(
            leading,
            self.leadership.clone(),
            stop.clone(),
        ));
        let names: Vec<&'static str> = tasks.iter().map(|task| task.name()).collect();
        for task in tasks {
            let name = task.name();
            let (followed, until) = (Arc::clone(&task), stop.clone());
            running.spawn(async move {
                followed.follow(until).await;
                name
            });
            running.spawn(terms(task, self.leadership.clone(), stop.clone()));
        }
        tracing::info!(
            identity = self.config.identity,
            namespace = self.connection.namespace,
            tasks = ?names,
            "the controller runs"
        );
        let ended = tokio::select! {
            () = shutdown => Ok(()),
            Some(ended) = running.join_next() => {
                Err(ControllerError::Task(ended.unwrap_or("that panicked")))
            }
        };
        stop.cancel();
        while running.join_next().await.is_some() {}
        if let Some(election) = election {
            let _ = election.await;
        }
        if let Some(listener) = listener {
            let _ = listener.await;
        }
        tracing::info!("the controller has stopped");
        ended
    }
}

/// Runs a task's `lead`, term after term, until stopped.
async fn terms(
    task: Arc<dyn LeaderTask>,
    mut leadership: Leadership,
    stop: CancellationToken,
) -> &'static str {
    loop {
        tokio::select! {
            // First: a controller that stops may still lead, and must not start another term.
            biased;
            () = stop.cancelled() => return task.name(),
            () = leadership.until_leading() => {}
        }
        let term = stop.child_token();
        let mut watched = leadership.clone();
        let deposed = async {
            tokio::select! {
                () = stop.cancelled() => {}
                () = watched.until_deposed() => {}
            }
            term.cancel();
        };
        tokio::join!(task.lead(term.clone()), deposed);
    }
}

async fn report_leading(
    leading: Gauge,
    mut leadership: Leadership,
    stop: CancellationToken,
) -> &'static str {
    let reporting = async {
        loop {
            leadership.until_leading().await;
            leading.set(1);
            leadership.until_deposed().await;
            leading.set(0);
        }
    };
    stop.run_until_cancelled(reporting).await;
    "leading"
}

#[derive(Clone)]
struct AppState {
    registry: Arc<Registry>,
    tasks: Arc<[Arc<dyn LeaderTask>]>,
    leadership: Leadership,
}

async fn listen(
    address: Option<SocketAddr>,
    state: AppState,
    stop: &CancellationToken,
) -> Result<Option<tokio::task::JoinHandle<()>>, ControllerError> {
    let Some(address) = address else {
        return Ok(None);
    };
    let listener = TcpListener::bind(address)
        .await
        .map_err(|source| ControllerError::Listen { address, source })?;
    let routes = Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/leader", get(leader))
        .route("/metrics", get(metrics))
        .with_state(state);
    let server = Server {
        name: "controller health and metrics",
        transport: Transport::Tcp(listener),
        routes,
        limits: Limits::default(),
    };
    Ok(Some(tokio::spawn(server.run(stop.clone()))))
}

/// Ready if it could take over at once: every task has its state, leader or not.
async fn ready(State(state): State<AppState>) -> Response {
    let waiting: Vec<String> = state
        .tasks
        .iter()
        .filter_map(|task| task.ready().err())
        .collect();
    match waiting.is_empty() {
        true => "ready\n".into_response(),
        false => (
            StatusCode::SERVICE_UNAVAILABLE,
            format!("{}\n", waiting.join("; ")),
        )
            .into_response(),
    }
}

/// Who leads, for people.
async fn leader(State(state): State<AppState>) -> Response {
    let leader = state.leadership.leader().unwrap_or_default();
    axum::Json(serde_json::json!({
        "identity": leader.identity,
        "notice": leader.notice,
        "this": state.leadership.is_leading(),
        "term": state.leadership.term(),
    }))
    .into_response()
}

async fn metrics(State(state): State<AppState>, headers: HeaderMap) -> Response {
    exposition::respond(&state.registry, &headers)
}
