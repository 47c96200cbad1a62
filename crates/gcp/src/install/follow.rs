//! Keeps a node's pod network switched while other programs rewrite, remove and re-create its configuration.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::sleep;

use super::CONFLISTS;
use super::conflist::{GCP_IPAM, HOST_LOCAL};
use super::file::{place_binary, switch};

/// Between two looks. Reading two small files is cheap, and unlike a watch it needs no care for a directory that is replaced;
/// a rewritten file is patched well within 2 s.
const PERIOD: Duration = Duration::from_millis(500);

/// The programs of a node: where each comes from and where it goes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Programs(pub Vec<(PathBuf, PathBuf)>);

/// What happened to a file; for the log and for tests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Followed {
    Switched(PathBuf),
    /// Left as it is; said once per reason.
    Left {
        path: PathBuf,
        why: String,
    },
    Reverted(PathBuf),
    /// A program that was removed is installed again.
    Placed(PathBuf),
    /// The directory has no configuration to switch; said once.
    Waiting(PathBuf),
}

/// Switches the configurations of `dir` to `gcp-ipam` whenever they are there, until `stop`; then back to `host-local`.
pub async fn follow(
    dir: &Path,
    programs: &Programs,
    stop: impl Future<Output = ()>,
    mut report: impl FnMut(Followed),
) {
    let mut known = Known::default();
    tokio::pin!(stop);
    loop {
        // A configuration that names a plugin which is not there would fail every pod of the node.
        if restore(programs, &mut known, &mut report) {
            look(dir, &mut known, &mut report);
        }
        tokio::select! {
            () = &mut stop => break,
            () = sleep(PERIOD) => {}
        }
    }
    revert(dir, report);
}

/// What was reported already.
#[derive(Default)]
struct Known {
    left: BTreeMap<PathBuf, String>,
    waiting: bool,
}

impl Known {
    fn leave(&mut self, path: PathBuf, why: String, report: &mut impl FnMut(Followed)) {
        if self.left.insert(path.clone(), why.clone()) != Some(why.clone()) {
            report(Followed::Left { path, why });
        }
    }
}

fn look(dir: &Path, known: &mut Known, report: &mut impl FnMut(Followed)) {
    let mut absent = 0;
    for path in paths(dir) {
        match switch(&path, GCP_IPAM) {
            Ok(switched) => {
                known.left.remove(&path);
                absent += usize::from(!switched && !path.exists());
                if switched {
                    report(Followed::Switched(path));
                }
            }
            Err(error) => known.leave(path, error.to_string(), report),
        }
    }
    let waiting = absent == CONFLISTS.len();
    if waiting && !std::mem::replace(&mut known.waiting, waiting) {
        report(Followed::Waiting(dir.to_owned()));
    }
    known.waiting = waiting;
}

/// Puts back a program that was removed; false while one is missing.
fn restore(programs: &Programs, known: &mut Known, report: &mut impl FnMut(Followed)) -> bool {
    let mut all = true;
    for (source, target) in &programs.0 {
        if target.exists() {
            continue;
        }
        match place_binary(source, target) {
            Ok(_) => {
                known.left.remove(target);
                report(Followed::Placed(target.clone()));
            }
            Err(error) => {
                all = false;
                known.leave(target.clone(), error.to_string(), report);
            }
        }
    }
    all
}

/// The way back; every file is tried, whatever the others say.
fn revert(dir: &Path, mut report: impl FnMut(Followed)) {
    for path in paths(dir) {
        match switch(&path, HOST_LOCAL) {
            Ok(true) => report(Followed::Reverted(path)),
            Ok(false) => {}
            Err(error) => report(Followed::Left {
                path,
                why: error.to_string(),
            }),
        }
    }
}

fn paths(dir: &Path) -> impl Iterator<Item = PathBuf> {
    CONFLISTS.iter().map(|name| dir.join(name))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::{Arc, Mutex};

    use tokio::sync::oneshot;
    use tokio::time::{Instant, timeout};

    use super::*;

    const TEXT: &str = r#"{"name":"gke","plugins":[{"type":"ptp","ipam":{"type":"host-local"}},{"type":"portmap"}]}"#;

    async fn until(what: impl Fn() -> bool) {
        let waited = async {
            while !what() {
                sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(Duration::from_secs(30), waited).await.unwrap();
    }

    #[tokio::test]
    async fn rewrites_removals_and_re_creations_are_followed_and_a_stop_reverts() {
        let dir = tempfile::tempdir().unwrap();
        let (ptp, containerd) = (dir.path().join(CONFLISTS[1]), dir.path().join(CONFLISTS[0]));
        fs::write(&ptp, TEXT).unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (stop, stopped) = oneshot::channel::<()>();
        let task = tokio::spawn({
            let (seen, dir) = (Arc::clone(&seen), dir.path().to_owned());
            async move {
                let stopped = async { drop(stopped.await) };
                let programs = Programs::default();
                follow(&dir, &programs, stopped, |event| {
                    seen.lock().unwrap().push(event)
                })
                .await;
            }
        });
        let is_switched =
            |path: &Path| fs::read_to_string(path).is_ok_and(|text| text.contains("gcp-ipam"));
        until(|| is_switched(&ptp)).await;
        // Rewritten in place, then removed and made again: within 2 s each.
        for _ in 0..2 {
            let begun = Instant::now();
            fs::write(&ptp, TEXT).unwrap();
            until(|| is_switched(&ptp)).await;
            assert!(
                begun.elapsed() < Duration::from_secs(10),
                "far beyond any schedule"
            );
        }
        fs::remove_file(&ptp).unwrap();
        fs::write(&containerd, TEXT).unwrap();
        until(|| is_switched(&containerd)).await;
        assert!(!ptp.exists(), "what its writer removed is not made again");
        // One that is not understood is left and said once.
        fs::write(&ptp, r#"{"plugins":[{"ipam":{"type":"metis"}}]}"#).unwrap();
        until(|| {
            seen.lock()
                .unwrap()
                .iter()
                .any(|event| matches!(event, Followed::Left { .. }))
        })
        .await;
        sleep(PERIOD * 3).await;
        let left = seen
            .lock()
            .unwrap()
            .iter()
            .filter(|event| matches!(event, Followed::Left { .. }))
            .count();
        assert_eq!(left, 1);
        stop.send(()).unwrap();
        task.await.unwrap();
        assert_eq!(fs::read_to_string(&containerd).unwrap(), TEXT);
        assert!(
            seen.lock()
                .unwrap()
                .contains(&Followed::Reverted(containerd))
        );
    }
}
