//! Keeps an installation as it should be: a new token or CA reaches the kubeconfig within seconds, and what another
//! installer overwrote is written again (a whereabouts pod that restarts copies its own plugin over ours).
//!
//! Polls once a second instead of watching files: a projected volume is swapped by symlinks, a CA may be on any
//! file system, and reading two small files costs nothing.

use std::fs;
use std::future::Future;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use tokio::time::sleep;

use crate::error::InstallError;
use crate::install::{Settings, renew};
use crate::lock::{self, Lock};
use crate::manifest::Manifest;

const TICK: Duration = Duration::from_secs(1);
/// An error that lasts this long ends the process, so that the pod's state shows it. A token is replaced when it
/// has a fifth of its life before it (12 minutes of the usual hour): there is time for this.
const ERROR_LIMIT: Duration = Duration::from_secs(60);

/// What is read cheaply: two snapshots that are equal mean that nothing has changed.
#[derive(PartialEq, Eq)]
struct Snapshot {
    token: Option<Vec<u8>>,
    authority: Option<Vec<u8>>,
    files: Vec<Option<[i128; 5]>>,
}

impl Snapshot {
    fn of(settings: &Settings) -> Snapshot {
        let read = |path: &Path| fs::read(path).ok();
        let cluster = settings.cluster.as_ref();
        Snapshot {
            token: cluster.and_then(|cluster| read(&cluster.token_file)),
            authority: cluster.and_then(|cluster| read(&cluster.ca_file)),
            files: settings.places().iter().map(|path| stat(path)).collect(),
        }
    }
}

fn stat(path: &Path) -> Option<[i128; 5]> {
    let meta = fs::symlink_metadata(path).ok()?;
    let changed = i128::from(meta.ctime()) * 1_000_000_000 + i128::from(meta.ctime_nsec());
    Some([
        meta.dev().into(),
        meta.ino().into(),
        meta.len().into(),
        meta.mode().into(),
        changed,
    ])
}

/// Keeps an installation as it should be until `stop` completes. Ends with an error when that has failed for a minute,
/// or when the installation was removed.
pub async fn reconcile(
    settings: &Settings,
    stop: impl Future<Output = ()>,
) -> Result<(), InstallError> {
    let own = settings.layout.own();
    // Two processes with different settings would overwrite each other's files for ever.
    let _lock = Lock::take(&own.here, lock::TO_RECONCILE)?;
    let record = Manifest::path(&own);
    let mut stop = std::pin::pin!(stop);
    // The snapshot before a pass that found nothing to do: only that is known to be right.
    let mut unchanged: Option<Snapshot> = None;
    let mut failing: Option<(Instant, String)> = None;
    loop {
        tokio::select! {
            () = &mut stop => return Ok(()),
            () = sleep(TICK) => {}
        }
        if !record.exists() {
            return Err(InstallError::Gone { path: record });
        }
        let snapshot = Snapshot::of(settings);
        if unchanged.as_ref() == Some(&snapshot) {
            continue;
        }
        match renew(settings) {
            Ok(report) => {
                if failing.take().is_some() {
                    tracing::info!("the installation is up to date again");
                }
                for placed in report.written() {
                    tracing::info!(path = %placed.path.display(), "written");
                }
                unchanged = report.written().next().is_none().then_some(snapshot);
            }
            Err(error @ InstallError::Gone { .. }) => return Err(error),
            Err(error) => {
                let (since, last) = failing.get_or_insert((Instant::now(), String::new()));
                if since.elapsed() > ERROR_LIMIT {
                    return Err(error);
                }
                let text = error.to_string();
                if *last != text {
                    tracing::warn!(%error, "the installation can't be kept up to date; trying again");
                    *last = text;
                }
            }
        }
    }
}
