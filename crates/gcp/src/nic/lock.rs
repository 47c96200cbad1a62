//! The node's lock around an update of its NIC: an agent and a plugin that runs without one must not work at once.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags, flock};

use super::error::NicError;

/// A lock file; upstream's is `/var/run/gcp-ipam.lock`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeLock(PathBuf);

impl NodeLock {
    pub fn new(path: impl Into<PathBuf>) -> NodeLock {
        NodeLock(path.into())
    }

    /// Waits for the lock; it is held until the file is dropped.
    pub async fn hold(&self) -> Result<File, NicError> {
        let path = self.0.clone();
        // Waiting may take as long as another process's update: not on a thread of the runtime.
        let held = tokio::task::spawn_blocking(move || lock(&path)).await;
        let held = held.unwrap_or_else(|_| Err(io::Error::other("the thread was cut off")));
        held.map_err(|error| NicError::Lock {
            path: self.0.display().to_string(),
            why: error.to_string(),
        })
    }
}

fn lock(path: &Path) -> io::Result<File> {
    let flags = i32::try_from(OFlags::NOFOLLOW.bits()).map_err(io::Error::other)?;
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .custom_flags(flags)
        .open(path)?;
    loop {
        match flock(&file, FlockOperation::LockExclusive) {
            Err(rustix::io::Errno::INTR) => {}
            done => return done.map(|()| file).map_err(Into::into),
        }
    }
}
