//! The leader's desk as a task: the requests of all nodes on shared ranges meet in it.
//!
//! It listens from the start on and serves only while its process leads, so that a replica that takes over is there at once.

use std::io;
use std::net::{AddrParseError, IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use berth_api::names;
use berth_desk::{DeskMetrics, DeskSettings, Desks};
use berth_front::LeaderTask;
use berth_gather::{Admission, Counter, Guard, Identity, IdentityError, Notice, Route};
use berth_ledger::kube::{Connection, Writer};
use berth_ledger::{KubeLedger, PoolKey};
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::election::Leadership;

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Leader desk")]
pub struct DeskArgs {
    /// Open the desk that the claims of all nodes meet in on this address (TLS). Without it nodes write shared pools
    /// themselves.
    #[arg(long, env = "BERTH_DESK_LISTEN")]
    desk_listen: Option<SocketAddr>,
    /// Where agents reach that desk, host:port; told on the Lease [default: $POD_IP and its port, else where it listens].
    #[arg(long, env = "BERTH_DESK_ADVERTISE")]
    desk_advertise: Option<String>,
}

/// Why there is no leader desk.
#[derive(Debug, thiserror::Error)]
pub enum DeskStartError {
    #[error(
        "--desk-listen {0}: agents can't be told that address; give --desk-advertise host:port, or set POD_IP"
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
    Identity(#[from] IdentityError),
}

/// A desk that listens and does not serve yet.
#[derive(Debug)]
pub struct LeaderDesk {
    listener: TcpListener,
    identity: Identity,
    notice: Notice,
}

impl DeskArgs {
    /// The desk, if there is to be one.
    pub async fn bind(self) -> Result<Option<LeaderDesk>, DeskStartError> {
        let Some(listen) = self.desk_listen else {
            return Ok(None);
        };
        let advertise = self.desk_advertise.filter(|address| !address.is_empty());
        let advertise = match advertise {
            None => pod_address(listen.port())?,
            told => told,
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
        let identity = Identity::make()?;
        let notice = Notice::of(advertise.unwrap_or(own), &identity);
        Ok(Some(LeaderDesk {
            listener,
            identity,
            notice,
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
    /// What agents are told of it, on the Lease.
    pub fn notice(&self) -> &Notice {
        &self.notice
    }

    /// The task: whereabouts' pools, of which `defines` tells which ones network definitions ask for, and the kinds of `routes`, whose desks
    /// have these settings and metrics.
    pub fn task(
        self,
        connection: &Connection,
        leadership: Leadership,
        defines: impl Fn(&PoolKey) -> bool + Send + Sync + 'static,
        routes: impl FnOnce(&DeskSettings, &DeskMetrics) -> Vec<Route>,
    ) -> LeaderDeskTask {
        let metrics = DeskMetrics::default();
        // The copies follow the watch: nodes that could not reach this desk, and whereabouts, write too.
        let settings = DeskSettings {
            watch: true,
            ..DeskSettings::default()
        };
        let routes = routes(&settings, &metrics);
        let ledger = Arc::new(KubeLedger::new(connection.clone()));
        let admits = admission(Arc::clone(&ledger), defines);
        let desks = Desks::new(ledger, settings, metrics.clone());
        let guard = Guard::new(
            connection.client.clone(),
            &connection.namespace,
            connection.timeout,
        );
        let counter = Counter::new(desks, guard, move || leadership.is_leading(), admits);
        let counter = routes.into_iter().fold(counter, Counter::serving);
        LeaderDeskTask {
            bound: Mutex::new(Some(self)),
            counter,
            metrics,
        }
    }
}

/// Serves the nodes' requests while its process leads.
#[derive(Debug)]
pub struct LeaderDeskTask {
    /// Until it serves.
    bound: Mutex<Option<LeaderDesk>>,
    counter: Counter,
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
        let bound = self
            .bound
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(desk) = bound {
            tracing::info!(address = desk.notice.address, "the leader desk listens");
            berth_gather::serve(desk.listener, &desk.identity, self.counter.clone(), stop).await;
        }
    }
}

/// A pool that a definition asks for, or that is there: agents of networks whose configuration is on the nodes' disks
/// make theirs themselves. Never one that a node publishes, whatever a definition says: the leader's account is under no policy
/// that would keep it from writing another node's slice.
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

/// One pool has one key: whoever varies the range of a name gets no second desk.
fn names_its_range(pool: &PoolKey) -> bool {
    pool.network.is_some_and(|range| {
        let plain = names::pool("", "", range);
        pool.name
            .strip_suffix(&plain)
            .is_some_and(|rest| rest.is_empty() || rest.ends_with('-'))
    })
}
