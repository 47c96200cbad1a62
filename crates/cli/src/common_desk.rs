//! The desk that the claims of all nodes on shared ranges meet in, beside `berth controller`.
//!
//! It listens from the start on and serves only while its process leads, so that a replica that takes over is there at once.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use anyhow::{Context, bail};
use berth_api::names;
use berth_controller::Leadership;
use berth_desk::{DeskMetrics, DeskSettings, Desks};
use berth_gather::{Admission, Counter, Guard, Identity, Notice, Route};
use berth_ledger::kube::Connection;
use berth_ledger::{KubeLedger, PoolKey};
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

#[derive(Debug, clap::Args)]
pub struct DeskArgs {
    /// Open the desk that the claims of all nodes meet in on this address (TLS). Without it nodes write shared pools
    /// themselves.
    #[arg(long, env = "BERTH_DESK_LISTEN")]
    desk_listen: Option<SocketAddr>,
    /// Where agents reach that desk, host:port; told on the Lease [default: $POD_IP and its port, else where it listens].
    #[arg(long, env = "BERTH_DESK_ADVERTISE")]
    desk_advertise: Option<String>,
}

/// A desk that listens and does not serve yet.
#[derive(Debug)]
pub struct CommonDesk {
    listener: TcpListener,
    identity: Identity,
    notice: Notice,
}

impl DeskArgs {
    /// The desk, if there is to be one.
    pub async fn bind(self) -> anyhow::Result<Option<CommonDesk>> {
        let Some(listen) = self.desk_listen else {
            return Ok(None);
        };
        let advertise = self.desk_advertise.filter(|address| !address.is_empty());
        let advertise = match advertise {
            None => pod_address(listen.port())?,
            told => told,
        };
        if advertise.is_none() && listen.ip().is_unspecified() {
            bail!(
                "--desk-listen {listen}: agents can't be told that address; give --desk-advertise host:port, or set POD_IP"
            );
        }
        let listener = TcpListener::bind(listen)
            .await
            .with_context(|| format!("--desk-listen {listen}"))?;
        let own = listener.local_addr()?.to_string();
        let identity = Identity::make()?;
        let notice = Notice::of(advertise.unwrap_or(own), &identity);
        Ok(Some(CommonDesk {
            listener,
            identity,
            notice,
        }))
    }
}

fn pod_address(port: u16) -> anyhow::Result<Option<String>> {
    match std::env::var("POD_IP") {
        Ok(ip) if !ip.is_empty() => {
            let ip: IpAddr = ip.parse().with_context(|| format!("POD_IP {ip:?}"))?;
            Ok(Some(SocketAddr::new(ip, port).to_string()))
        }
        _ => Ok(None),
    }
}

impl CommonDesk {
    pub fn notice(&self) -> &Notice {
        &self.notice
    }

    /// Serves until stopped: whereabouts' pools, and the kinds of `routes`, whose desks have these settings and metrics.
    pub fn serve(
        self,
        connection: &Connection,
        leadership: Leadership,
        defines: impl Fn(&PoolKey) -> bool + Send + Sync + 'static,
        routes: impl FnOnce(&DeskSettings, &DeskMetrics) -> Vec<Route>,
        registry: &mut Registry,
        stop: CancellationToken,
    ) -> impl Future<Output = ()> + Send + 'static {
        let metrics = DeskMetrics::default();
        metrics.register(registry);
        // The copies follow the watch: nodes that could not reach this desk, and whereabouts, write too.
        let settings = DeskSettings {
            watch: true,
            ..DeskSettings::default()
        };
        let routes = routes(&settings, &metrics);
        let ledger = Arc::new(KubeLedger::new(connection.clone()));
        let admits = admission(Arc::clone(&ledger), defines);
        let desks = Desks::new(ledger, settings, metrics);
        let guard = Guard::new(
            connection.client.clone(),
            &connection.namespace,
            connection.timeout,
        );
        let counter = Counter::new(desks, guard, move || leadership.is_leading(), admits);
        let counter = routes.into_iter().fold(counter, Counter::serving);
        async move {
            tracing::info!(address = self.notice.address, "the common desk is open");
            berth_gather::serve(self.listener, &self.identity, counter, stop).await;
        }
    }
}

/// A pool that a definition asks for, or that is there: agents of networks whose configuration is on the nodes' disks
/// make theirs themselves.
fn admission(
    ledger: Arc<KubeLedger>,
    defines: impl Fn(&PoolKey) -> bool + Send + Sync + 'static,
) -> Admission {
    let defines = Arc::new(defines);
    Arc::new(move |pool| {
        let (ledger, defines) = (Arc::clone(&ledger), Arc::clone(&defines));
        Box::pin(async move {
            names_its_range(&pool)
                && (defines(&pool) || matches!(ledger.exists(&pool).await, Ok(true)))
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
