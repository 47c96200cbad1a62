//! Taking Berth off a node: what it wrote goes, what was there before comes back.
//!
//! A file that was changed since stays, and so does what was kept of its name. One file that
//! can't be removed does not keep the others from it.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::atomic_write::{self, Found};
use crate::error::InstallError;
use crate::layout::Layout;
use crate::lock::{self, Lock};
use crate::manifest::{Entry, Manifest};

/// What became of a file of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Fate {
    Removed,
    /// What was there before Berth is there again.
    Restored,
    /// It was changed: left as it is.
    Changed,
    /// It was gone already.
    Absent,
}

/// A file that was ours. Paths are the host's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Removed {
    pub path: PathBuf,
    pub fate: Fate,
    /// What was kept of its name and is still there, because the file was changed.
    pub aside: Option<PathBuf>,
}

/// Removes an installation; none to remove is an empty list.
pub fn remove(layout: &Layout) -> Result<Vec<Removed>, InstallError> {
    let own = layout.own();
    let _lock = Lock::take(&layout.conf.here, lock::FOR_WORK)?;
    let record = Manifest::path(&own);
    let Some(mut manifest) = Manifest::load(&record)? else {
        return Ok(Vec::new());
    };
    let mut removed = Vec::new();
    let mut left = Vec::new();
    let mut failure: Option<InstallError> = None;
    // Programs were installed last and go first: no plugin is left without its kubeconfig.
    for entry in manifest.files.drain(..).rev() {
        match take_away(layout, &entry) {
            Ok(one) => removed.push(one),
            Err(error) => {
                tracing::error!(path = %entry.path.display(), %error, "a file can't be removed");
                left.push(entry);
                failure.get_or_insert(error);
            }
        }
    }
    if let Some(error) = failure {
        left.reverse();
        manifest.files = left;
        manifest.save(&record)?;
        return Err(error);
    }
    atomic_write::sweep(&own.here)?;
    atomic_write::unlink(&record)?;
    for dir in &manifest.directories {
        // Not empty: others have put their files there.
        let _ = fs::remove_dir(layout.here(dir));
    }
    Ok(removed)
}

fn take_away(layout: &Layout, entry: &Entry) -> Result<Removed, InstallError> {
    let here = layout.here(&entry.path);
    let kept = entry
        .aside
        .as_ref()
        .map(|aside| layout.here(&aside.path))
        .filter(|path| fs::symlink_metadata(path).is_ok());
    let found = atomic_write::read(&here)?;
    let removed_as = |fate, aside: Option<&Path>| Removed {
        path: entry.path.clone(),
        fate,
        aside: aside.and_then(|_| entry.aside.as_ref().map(|aside| aside.path.clone())),
    };
    let ours = matches!(&found, Found::File(digest) if entry.sha256.contains(digest));
    let back = match (&found, &entry.aside) {
        (Found::File(digest), Some(aside)) => aside.sha256.as_ref() == Some(digest),
        _ => false,
    };
    match (kept, ours || found == Found::Nothing) {
        (Some(kept), true) => {
            atomic_write::rename(&kept, &here)?;
            Ok(removed_as(Fate::Restored, None))
        }
        (None, true) if ours => {
            atomic_write::unlink(&here)?;
            Ok(removed_as(Fate::Removed, None))
        }
        (None, true) => Ok(removed_as(Fate::Absent, None)),
        // What was there before was put back already.
        (kept, false) if back => {
            if let Some(kept) = kept {
                atomic_write::unlink(&kept)?;
            }
            Ok(removed_as(Fate::Restored, None))
        }
        (kept, false) => Ok(removed_as(Fate::Changed, kept.as_deref())),
    }
}
