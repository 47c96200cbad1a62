//! Starts the fleet from its settings.
//!
//! Guarantees: errors of the settings show before anything is served; a state that can't be reached is waited for,
//! not replaced, and delays no other front; the state is repaired, and VMs that this node had before a reboot are
//! deallocated, before the first new one is allocated.

use std::sync::Arc;
use std::time::Duration;

use berth_desk::DeskMetrics;
use berth_kube::Connect;
use berth_ledger::configmap::ConfigMapLedger;
use berth_ledger::{LedgerError, SqliteLedger};
use berth_node::{BootMarker, Since};
use prometheus_client::registry::Registry;
use thiserror::Error;
use tokio_util::sync::CancellationToken;

use crate::http::{TcpError, serve_tcp};
use crate::reload::{Reload, Sizes};
use crate::settings::{LedgerChoice, Readiness, RecoverAtStart, Settings};
use crate::vm::{SshVms, VmError};
use crate::{Fleet, Recovery, Store, VmMetrics};

/// The longest pause between two attempts to read the state at start.
const MAX_BACKOFF: Duration = Duration::from_secs(10);

#[derive(Debug, Error)]
pub enum StartError {
    #[error("the VMs can't be reached with these settings")]
    Access(#[source] VmError),
    #[error("the VM pools' state can't be opened")]
    Store(#[source] LedgerError),
    #[error("vm-ledger configmap needs a way to the API server")]
    NoClient,
    #[error(transparent)]
    Tcp(#[from] TcpError),
}

/// The parameters of the front.
#[derive(Clone)]
pub struct Setup {
    pub settings: Settings,
    /// Reads the settings again after an edit of their file.
    pub reload: Reload,
    /// The boot of the node in which its VMs were last reconciled.
    pub boot: BootMarker,
    /// The connection to the API server. Its namespace is not used: the settings have their own.
    pub cluster: Connect,
}

impl std::fmt::Debug for Setup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut debug = f.debug_struct("Setup");
        debug
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

/// Starts the front, which ends with `end`. Returns before the state was read: until then every request is answered
/// with [`PoolError::Starting`].
pub async fn start(
    setup: Setup,
    desk_metrics: DeskMetrics,
    registry: &mut Registry,
    end: CancellationToken,
) -> Result<Fleet, StartError> {
    let Setup {
        settings,
        reload,
        boot,
        mut cluster,
    } = setup;
    cluster.timeout = settings.retry.timeout;
    let vms = SshVms::new(settings.access.clone());
    if settings.cleanup.is_some() || settings.readiness == Readiness::Ssh {
        vms.check_access().await.map_err(StartError::Access)?;
    }
    if settings.readiness != Readiness::Ssh {
        tracing::warn!(
            "vm-readiness is not ssh: a VM that still has user data of another pod is not recognised"
        );
    }
    let needs_cluster =
        settings.ledger == LedgerChoice::ConfigMap || settings.pools_configmap.is_some();
    let client = match needs_cluster {
        true => {
            let opened = cluster.open().await;
            let opened = opened.map_err(|error| StartError::Store(error.into()))?;
            Some(opened.client)
        }
        false => None,
    };
    let store = match (&settings.ledger, &client) {
        (LedgerChoice::Sqlite(path), _) => {
            let ledger = SqliteLedger::open(path).map_err(StartError::Store)?;
            Store::Local(Arc::new(ledger))
        }
        (LedgerChoice::ConfigMap, client) => {
            let client = client.clone().ok_or(StartError::NoClient)?;
            let ledger = ConfigMapLedger::new(client, &settings.namespace, settings.retry.timeout)
                .of_node(&settings.node)
                .with_retries(settings.retry.retries);
            Store::ConfigMap(Arc::new(ledger))
        }
    };
    let metrics = VmMetrics::default();
    metrics.register(registry);
    let fleet = Fleet::new(&settings, store, Arc::new(vms), metrics, desk_metrics);
    fleet.close("the state was not read yet".into());
    if let Some(tcp) = &settings.tcp {
        serve_tcp(fleet.clone(), tcp, end.clone()).await?;
    }
    let sizes = Sizes::new(fleet.clone(), Arc::new(settings), client);
    tokio::spawn(live(fleet.clone(), sizes, reload, boot, end));
    Ok(fleet)
}

/// Opens the pools, then follows the settings and runs the fleet until `end`.
async fn live(
    fleet: Fleet,
    sizes: Sizes,
    reload: Reload,
    boot: BootMarker,
    end: CancellationToken,
) {
    let at_start = recovery(sizes.settings().recover_at_start, boot.since());
    fleet.start_with(at_start);
    let opened = end.run_until_cancelled(open(&fleet, &sizes)).await;
    if opened.is_none() {
        return;
    }
    // Only after the VMs of the former boot were recorded as deallocated.
    fleet.note_boot(&boot);
    fleet.reopen();
    tokio::spawn(sizes.clone().follow_file(reload, end.clone()));
    tokio::spawn(sizes.follow_configmap(end.clone()));
    fleet.run(boot, end).await;
}

/// Reads which pools there are, then opens and recovers them; tries until it succeeds. The problem may be repaired
/// from outside, and is shown meanwhile.
async fn open(fleet: &Fleet, sizes: &Sizes) {
    let mut pause = Duration::from_millis(200);
    loop {
        match sizes.open().await {
            Ok(()) => return,
            Err(error) => {
                tracing::warn!(%error, again_in = ?pause, "the VM pools can't be opened yet");
                fleet.close(error.to_string());
            }
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(MAX_BACKOFF);
    }
}

/// A restart of Berth is not a restart of the pods: their VMs are deallocated only if the node was rebooted, or if
/// the settings say that the pods die with this process.
const fn recovery(at_start: RecoverAtStart, since: Since) -> Recovery {
    match (at_start, since) {
        (RecoverAtStart::Always, _) | (RecoverAtStart::Boot, Since::Rebooted) => {
            Recovery::AfterReboot
        }
        (RecoverAtStart::Boot, Since::Unknown) => Recovery::UnknownBoot,
        (RecoverAtStart::Boot, Since::SameBoot) | (RecoverAtStart::Never, _) => Recovery::AtStart,
    }
}
