//! From settings to a fleet that serves.
//!
//! Promises: what is wrong with the settings shows before anything is served; a state that can't be
//! reached is waited for, not replaced; this node's former VMs are taken back before the first new
//! one is given.

use std::sync::Arc;
use std::time::Duration;

use berth_desk::DeskMetrics;
use berth_ledger::configmap::ConfigMapLedger;
use berth_ledger::{LedgerError, SqliteLedger};
use kube::Client;
use prometheus_client::registry::Registry;
use thiserror::Error;
use tokio_util::sync::CancellationToken;

use crate::http::{TcpError, serve_tcp};
use crate::settings::{LedgerChoice, Readiness, Settings};
use crate::sizing::{Reload, Sizes};
use crate::vm::{SshVms, VmError};
use crate::{Fleet, PoolError, Store, VmMetrics};

/// The longest pause between two tries to reach the state at start.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug, Error)]
pub enum StartError {
    #[error("the VMs can't be reached with these settings")]
    Access(#[source] VmError),
    #[error("there is no way to the API server")]
    Client(#[source] kube::Error),
    #[error("the state can't be opened")]
    Store(#[source] LedgerError),
    #[error("the pools can't be opened")]
    Pools(#[source] PoolError),
    #[error(transparent)]
    Tcp(#[from] TcpError),
    #[error("pools-configmap needs vm-ledger configmap, or a way to the API server")]
    PoolsConfigMap(#[source] kube::Error),
}

/// Opens the pools and keeps them until `end`. `reload` reads the settings again after an edit of
/// their file.
pub async fn start(
    settings: Settings,
    reload: Reload,
    desk_metrics: DeskMetrics,
    registry: &mut Registry,
    end: CancellationToken,
) -> Result<Fleet, StartError> {
    let vms = SshVms::new(settings.access.clone());
    if settings.cleanup.is_some() || settings.readiness == Readiness::Ssh {
        vms.check_access().await.map_err(StartError::Access)?;
    }
    let (store, client) = match &settings.ledger {
        LedgerChoice::ConfigMap => {
            let client = Client::try_default().await.map_err(StartError::Client)?;
            let timeout = settings.retry.timeout;
            let ledger = ConfigMapLedger::new(client.clone(), &settings.namespace, timeout);
            (Store::ConfigMap(Arc::new(ledger)), Some(client))
        }
        LedgerChoice::Sqlite(path) => {
            let ledger = SqliteLedger::open(path).map_err(StartError::Store)?;
            (Store::Local(Arc::new(ledger)), None)
        }
    };
    let metrics = VmMetrics::default();
    metrics.register(registry);
    let fleet = Fleet::new(&settings, store, Arc::new(vms), metrics, desk_metrics);
    open(&fleet, &settings, &end).await?;

    let settings = Arc::new(settings);
    let sizes = Sizes::new(fleet.clone(), &settings);
    if let Some(path) = settings.file.clone() {
        tokio::spawn(sizes.clone().follow_file(path, reload, end.clone()));
    }
    if let Some(name) = settings.pools_configmap.clone() {
        let client = match client {
            Some(client) => client,
            None => Client::try_default()
                .await
                .map_err(StartError::PoolsConfigMap)?,
        };
        tokio::spawn(sizes.follow_configmap(client, Arc::clone(&settings), name, end.clone()));
    }
    if let Some(tcp) = &settings.tcp {
        serve_tcp(fleet.clone(), tcp, end.clone()).await?;
    }
    tokio::spawn(fleet.clone().run(end));
    Ok(fleet)
}

/// The first look at the state, and recovery. An API server that is away is waited for.
async fn open(
    fleet: &Fleet,
    settings: &Settings,
    end: &CancellationToken,
) -> Result<(), StartError> {
    let mut pause = Duration::from_millis(200);
    loop {
        let opened = async {
            fleet.resize(&settings.pools).await?;
            if settings.recover_at_start {
                fleet.recover(None, true).await?;
            }
            Ok::<(), PoolError>(())
        };
        let error = match opened.await {
            Ok(()) => return Ok(()),
            Err(error) => error,
        };
        let passing = error
            .ledger()
            .is_some_and(|e| e.is_passing() || e.needs_reload());
        if !passing || end.is_cancelled() {
            return Err(StartError::Pools(error));
        }
        tracing::warn!(%error, again_in = ?pause, "the state can't be reached yet");
        let _ = end.run_until_cancelled(tokio::time::sleep(pause)).await;
        pause = (pause * 2).min(PATIENCE);
    }
}
