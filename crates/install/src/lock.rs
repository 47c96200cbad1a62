//! One installer at a time: a lock on the directory of CNI configurations itself, which leaves no file behind and
//! ends with the process that holds it.

use std::fs::{File, TryLockError};
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::error::InstallError;

/// Longer than copying the binaries takes on a slow disk.
pub(crate) const FOR_WORK: Duration = Duration::from_secs(20);
/// A process that reconciles holds its lock for its life; only one that is ending is worth waiting for.
pub(crate) const TO_RECONCILE: Duration = Duration::from_secs(3);

#[derive(Debug)]
pub(crate) struct Lock {
    _dir: File,
}

impl Lock {
    pub fn take(dir: &Path, limit: Duration) -> Result<Lock, InstallError> {
        let file = File::open(dir).map_err(InstallError::write(dir))?;
        let started = Instant::now();
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Lock { _dir: file }),
                Err(TryLockError::WouldBlock) if started.elapsed() < limit => {
                    sleep(Duration::from_millis(50));
                }
                Err(TryLockError::WouldBlock) => {
                    return Err(InstallError::Busy {
                        path: dir.to_owned(),
                    });
                }
                Err(TryLockError::Error(error)) => return Err(InstallError::write(dir)(error)),
            }
        }
    }
}
