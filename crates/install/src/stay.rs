//! Looking after an installation: a new token or CA reaches the kubeconfig within seconds, and what another
//! installer overwrote is put back (a whereabouts pod that restarts copies its own plugin over ours).
//!
//! Looks once a second rather than waiting for notices: a projected volume is swapped by symlinks, a CA may be on any
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
/// Trouble that lasts this long ends the process, so that the pod's state shows it. A token is replaced when it
/// has a fifth of its life before it (12 minutes of the usual hour): there is time for this.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a look shows, cheaply: two looks that are equal mean that nothing has happened.
#[derive(PartialEq, Eq)]
struct Sight {
    token: Option<Vec<u8>>,
    authority: Option<Vec<u8>>,
    files: Vec<Option<[i128; 5]>>,
}

impl Sight {
    fn of(settings: &Settings) -> Sight {
        let read = |path: &Path| fs::read(path).ok();
        let cluster = settings.cluster.as_ref();
        Sight {
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
/// or when somebody removed it.
pub async fn stay(settings: &Settings, stop: impl Future<Output = ()>) -> Result<(), InstallError> {
    let own = settings.layout.own();
    // Two that look after the same files with different ideas of them would write by turns for ever.
    let _lock = Lock::take(&own.here, lock::TO_STAY)?;
    let record = Manifest::path(&own);
    let mut stop = std::pin::pin!(stop);
    // The last look before a pass that found nothing to do: only that is known to be right.
    let mut settled: Option<Sight> = None;
    let mut trouble: Option<(Instant, String)> = None;
    loop {
        tokio::select! {
            () = &mut stop => return Ok(()),
            () = sleep(TICK) => {}
        }
        if !record.exists() {
            return Err(InstallError::Gone { path: record });
        }
        let sight = Sight::of(settings);
        if settled.as_ref() == Some(&sight) {
            continue;
        }
        match renew(settings) {
            Ok(report) => {
                if trouble.take().is_some() {
                    tracing::info!("the installation is up to date again");
                }
                for placed in report.written() {
                    tracing::info!(path = %placed.path.display(), "written");
                }
                settled = report.written().next().is_none().then_some(sight);
            }
            Err(error @ InstallError::Gone { .. }) => return Err(error),
            Err(error) => {
                let (since, last) = trouble.get_or_insert((Instant::now(), String::new()));
                if since.elapsed() > PATIENCE {
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
