//! One installer at a time: a lock on the directory of CNI configurations itself, which leaves no file behind and
//! ends with the process that holds it.

use std::fs::{File, TryLockError};
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::error::InstallError;

/// Longer than copying the binaries takes on a slow disk.
const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Debug)]
pub(crate) struct Lock {
    _dir: File,
}

impl Lock {
    pub fn take(dir: &Path) -> Result<Lock, InstallError> {
        let file = File::open(dir).map_err(InstallError::write(dir))?;
        let begun = Instant::now();
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Lock { _dir: file }),
                Err(TryLockError::WouldBlock) if begun.elapsed() < PATIENCE => {
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
