//! The leader desk as a task: it commits the requests of all nodes on shared ranges.
//!
//! It listens from the start and serves only while its process leads, so that a replica that takes over is ready at
//! once.

use std::io;
use std::net::{AddrParseError, IpAddr, SocketAddr};
use std::sync::Arc;

use async_trait::async_trait;
use berth_api::names;
use berth_desk::{DeskMetrics, DeskSettings, Desks};
use berth_front::LeaderTask;
use berth_kube::Connection;
use berth_kube::election::Leadership;
use berth_leader::{Admission, Authorizer, DeskServer, Endpoint, Route, TlsError, TlsIdentity};
use berth_ledger::PoolKey;
use berth_whereabouts::KubeLedger;
use berth_whereabouts::Writer;
use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Leader desk")]
pub struct DeskArgs {
    /// Serve the leader desk on this address (TLS). Without it, nodes write shared pools themselves.
    #[arg(long, env = "BERTH_DESK_LISTEN")]
    desk_listen: Option<SocketAddr>,
    /// The address, host:port, that the Lease announces to agents [default: $POD_IP and the port, else the listen
    /// address].
    #[arg(long, env = "BERTH_DESK_ADVERTISE")]
    desk_advertise: Option<String>,
}

/// Why there is no leader desk.
#[derive(Debug, thiserror::Error)]
pub enum DeskStartError {
    #[error(
        "--desk-listen {0}: agents can't reach that address; set --desk-advertise host:port, or POD_IP"
    )]
    NoAddress(SocketAddr),
    #[error("--desk-listen {address}")]
    Listen {
        address: SocketAddr,
        #[source]
        source: io::Error,
    },
    #[error("POD_IP {value:?}")]
    PodIp {
        value: String,
        #[source]
        source: AddrParseError,
    },
    #[error(transparent)]
    TlsIdentity(#[from] TlsError),
}

/// A desk that listens and does not serve yet.
#[derive(Debug)]
pub struct LeaderDesk {
    listener: TcpListener,
    identity: TlsIdentity,
    endpoint: Endpoint,
}

impl DeskArgs {
    /// The desk, if one is configured.
    pub async fn bind(self) -> Result<Option<LeaderDesk>, DeskStartError> {
        let Some(listen) = self.desk_listen else {
            return Ok(None);
        };
        let advertise = self.desk_advertise.filter(|address| !address.is_empty());
        let advertise = match advertise {
            None => pod_address(listen.port())?,
            advertised => advertised,
        };
        if advertise.is_none() && listen.ip().is_unspecified() {
            return Err(DeskStartError::NoAddress(listen));
        }
        let fail = |source| DeskStartError::Listen {
            address: listen,
            source,
        };
        let listener = TcpListener::bind(listen).await.map_err(fail)?;
        let own = listener.local_addr().map_err(fail)?.to_string();
        let identity = TlsIdentity::make()?;
        let endpoint = Endpoint::of(advertise.unwrap_or(own), &identity);
        Ok(Some(LeaderDesk {
            listener,
            identity,
            endpoint,
        }))
    }
}

fn pod_address(port: u16) -> Result<Option<String>, DeskStartError> {
    match std::env::var("POD_IP") {
        Ok(ip) if !ip.is_empty() => {
            let parsed = ip.parse();
            let ip: IpAddr =
                parsed.map_err(|source| DeskStartError::PodIp { value: ip, source })?;
            Ok(Some(SocketAddr::new(ip, port).to_string()))
        }
        _ => Ok(None),
    }
}

impl LeaderDesk {
    /// What the Lease announces to agents.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// The task: whereabouts' pools, where `defines` says which ones network definitions name, and the kinds of
    /// `routes`, whose desks have these settings and metrics.
    pub fn task(
        self,
        connection: &Connection,
        leadership: Leadership,
        defines: impl Fn(&PoolKey) -> bool + Send + Sync + 'static,
        routes: impl FnOnce(&DeskSettings, &DeskMetrics) -> Vec<Route>,
    ) -> LeaderDeskTask {
        let metrics = DeskMetrics::default();
        // The copies follow a watch: nodes that could not reach this desk, and whereabouts, write too.
        let settings = DeskSettings {
            watch: true,
            ..DeskSettings::default()
        };
        let routes = routes(&settings, &metrics);
        let ledger = Arc::new(KubeLedger::new(connection.clone()));
        let admits = admission(Arc::clone(&ledger), defines);
        let desks = Desks::new(ledger, settings, metrics.clone());
        let authorizer = Authorizer::new(
            connection.client.clone(),
            &connection.namespace,
            connection.timeout,
        );
        let server = DeskServer::new(desks, authorizer, move || leadership.is_leading(), admits);
        let server = routes.into_iter().fold(server, DeskServer::serving);
        LeaderDeskTask {
            bound: Mutex::new(Some(self)),
            server,
            metrics,
        }
    }
}

/// Serves the nodes' requests while its process leads.
#[derive(Debug)]
pub struct LeaderDeskTask {
    /// Until it serves.
    bound: Mutex<Option<LeaderDesk>>,
    server: DeskServer,
    metrics: DeskMetrics,
}

#[async_trait]
impl LeaderTask for LeaderDeskTask {
    fn name(&self) -> &'static str {
        "leader desk"
    }

    fn register(&self, registry: &mut Registry) {
        self.metrics.register(registry);
    }

    async fn follow(&self, stop: CancellationToken) {
        let bound = self.bound.lock().take();
        if let Some(desk) = bound {
            tracing::info!(address = desk.endpoint.address, "the leader desk listens");
            berth_leader::serve(desk.listener, &desk.identity, self.server.clone(), stop).await;
        }
    }
}

/// A pool that a definition names, or that exists: agents of networks whose configuration is on the nodes' disks create
/// theirs themselves. Never one that a node publishes, whatever a definition says: no policy keeps the leader's account
/// from writing another node's slice.
fn admission(
    ledger: Arc<KubeLedger>,
    defines: impl Fn(&PoolKey) -> bool + Send + Sync + 'static,
) -> Admission {
    let defines = Arc::new(defines);
    Arc::new(move |pool| {
        let (ledger, defines) = (Arc::clone(&ledger), Arc::clone(&defines));
        Box::pin(async move {
            names_its_range(&pool)
                && match ledger.writer(&pool).await {
                    Ok(Writer::Shared) => true,
                    Ok(Writer::None) => defines(&pool),
                    Ok(Writer::Publisher) | Err(_) => false,
                }
        })
    })
}

/// One pool has one key: a request with another range for the same name gets no second desk.
fn names_its_range(pool: &PoolKey) -> bool {
    pool.network.is_some_and(|range| {
        let plain = names::pool("", "", range);
        pool.name
            .strip_suffix(&plain)
            .is_some_and(|rest| rest.is_empty() || rest.ends_with('-'))
    })
}
