//! The controller's life: connect, stand for election, watch, work, stop.

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use berth_api::slices::CONTROLLER_LEASE;
use berth_ledger::kube::slicepools::SlicePools;
use berth_ledger::kube::{Connect, Connection};
use berth_ledger::{KubeLedger, LedgerError, PoolKey};
use berth_listen::{Limits, Server, Transport, exposition};
use berth_pods::garbage::witness::Witness;
use berth_pods::policy::Policies;
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::election::{Candidate, Election, Leadership};
use crate::events::Recorder;
use crate::look::Looker;
use crate::lost::LostClaims;
use crate::metrics::Metrics;
use crate::published::NetworksMap;
use crate::seen::Seen;
use crate::tend::{Ended, Tender};
use crate::vanished;
use crate::work::Work;

/// How a controller is set up.
#[derive(Clone, Debug)]
pub struct ControllerConfig {
    pub cluster: Connect,
    /// This process, among its replicas.
    pub identity: String,
    /// What it tells on the Lease while it leads, such as where agents reach it: annotations `berth.dev/...`.
    pub notice: BTreeMap<String, String>,
    /// How long a leader that is gone goes unnoticed; none: no election, this process always leads.
    pub lease: Option<Duration>,
    /// How long a node, or what a change would drop, must have been unused before it is taken (I4, I8).
    pub grace: Duration,
    /// How long after a change the others that come with it are waited for.
    pub gather: Duration,
    /// How often everything is read anew.
    pub resync: Duration,
    /// Where health, readiness and metrics are served, if anywhere.
    pub listen: Option<SocketAddr>,
    /// Where the flat file is looked for.
    pub flat_places: Vec<PathBuf>,
    /// Definitions whose configuration is on the nodes' disks are taken for networks of other ranges.
    pub unseen_is_apart: bool,
}

/// Why a controller does not run.
#[derive(Debug, thiserror::Error)]
pub enum ControllerError {
    #[error("the cluster can't be reached")]
    Connect(#[source] LedgerError),
    #[error("{address} can't be listened on")]
    Listen {
        address: SocketAddr,
        #[source]
        source: io::Error,
    },
}

/// A controller that is about to run. What else a leader does gets its connection and its leadership here.
#[derive(Debug)]
pub struct Controller {
    config: ControllerConfig,
    connection: Connection,
    leadership: Leadership,
    election: Option<Election>,
    seen: Arc<Seen>,
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
            seen: Arc::default(),
        })
    }

    pub fn leadership(&self) -> Leadership {
        self.leadership.clone()
    }

    /// Whether some network definition that was seen asks for that pool.
    pub fn defines(&self) -> impl Fn(&PoolKey) -> bool + Send + Sync + 'static {
        let seen = Arc::clone(&self.seen);
        move |pool| seen.defines(pool)
    }

    pub fn connection(&self) -> Connection {
        self.connection.clone()
    }

    /// Runs until `shutdown` completes, then gives the Lease back. `registry` is what `/metrics` shows.
    pub async fn run(
        self,
        mut registry: Registry,
        shutdown: impl Future<Output = ()>,
    ) -> Result<(), ControllerError> {
        let Controller {
            config,
            connection,
            leadership,
            election,
            seen,
        } = self;
        let client = connection.client.clone();
        let metrics = Metrics::default();
        metrics.register(&mut registry);
        exposition::register_build_info(&mut registry);
        let stop = CancellationToken::new();
        let election = election.map(|election| tokio::spawn(election.run(stop.clone())));
        let pools = SlicePools::new(&connection);
        let listener = listen(&config, registry, &seen, &leadership, &stop).await?;
        let leads = leadership.clone();
        let claims = KubeLedger::new(connection.clone());
        let work = Work {
            seen: Arc::clone(&seen),
            leadership,
            tender: Tender {
                pools: pools.clone(),
                looker: Looker {
                    witness: Witness::new(client.clone(), connection.timeout),
                    ledger: KubeLedger::new(connection.clone()),
                },
                grace: config.grace,
                metrics,
                ended: Ended::default(),
            },
            recorder: Recorder::new(client.clone(), &config.identity, connection.timeout),
            networks: NetworksMap::new(client.clone(), &connection.namespace, connection.timeout),
            gather: config.gather,
            resync: config.resync,
            unseen_is_apart: config.unseen_is_apart,
            memories: BTreeMap::new(),
            claims: LostClaims::default(),
            sweep: false,
            begun: Instant::now(),
        };
        tracing::info!(
            identity = config.identity,
            namespace = connection.namespace,
            "the controller runs"
        );
        let policies = Policies::new(&connection);
        let watches = async {
            tokio::join!(
                seen.follow_policy(&policies),
                seen.follow_nodes(client.clone()),
                seen.follow_definitions(client.clone(), &config.flat_places),
                seen.follow_pools(&pools),
                vanished::call_nodes(&claims, &seen, &leads),
            );
        };
        tokio::select! {
            () = shutdown => {}
            () = watches => {}
            () = work.run(stop.clone()) => {}
        }
        stop.cancel();
        if let Some(election) = election {
            let _ = election.await;
        }
        if let Some(listener) = listener {
            let _ = listener.await;
        }
        tracing::info!("the controller has stopped");
        Ok(())
    }
}

/// Runs a controller and nothing beside it.
pub async fn serve(
    config: ControllerConfig,
    shutdown: impl Future<Output = ()>,
) -> Result<(), ControllerError> {
    let controller = Controller::open(config).await?;
    controller.run(Registry::default(), shutdown).await
}

#[derive(Clone)]
struct Desk {
    registry: Arc<Registry>,
    seen: Arc<Seen>,
    leadership: Leadership,
}

async fn listen(
    config: &ControllerConfig,
    registry: Registry,
    seen: &Arc<Seen>,
    leadership: &Leadership,
    stop: &CancellationToken,
) -> Result<Option<tokio::task::JoinHandle<()>>, ControllerError> {
    let Some(address) = config.listen else {
        return Ok(None);
    };
    let listener = TcpListener::bind(address)
        .await
        .map_err(|source| ControllerError::Listen { address, source })?;
    let desk = Desk {
        registry: Arc::new(registry),
        seen: Arc::clone(seen),
        leadership: leadership.clone(),
    };
    let routes = Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/leader", get(leader))
        .route("/metrics", get(metrics))
        .with_state(desk);
    let server = Server {
        name: "controller health and metrics",
        transport: Transport::Tcp(listener),
        routes,
        limits: Limits::default(),
    };
    Ok(Some(tokio::spawn(server.run(stop.clone()))))
}

/// Ready when it could take over at once: leader or not, it knows what there is.
async fn ready(State(desk): State<Desk>) -> Response {
    if desk.seen.is_complete() {
        return "ready\n".into_response();
    }
    let told =
        "nodes, network definitions, NodeSlicePools or the RangePolicy were not listed yet\n";
    (StatusCode::SERVICE_UNAVAILABLE, told).into_response()
}

/// Who leads, for people.
async fn leader(State(desk): State<Desk>) -> Response {
    let leader = desk.leadership.leader().unwrap_or_default();
    axum::Json(serde_json::json!({
        "identity": leader.identity,
        "notice": leader.notice,
        "this": desk.leadership.is_leading(),
        "term": desk.leadership.term(),
    }))
    .into_response()
}

async fn metrics(State(desk): State<Desk>, headers: HeaderMap) -> Response {
    exposition::respond(&desk.registry, &headers)
}
