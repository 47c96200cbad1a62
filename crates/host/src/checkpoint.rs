//! The record of a change that may have to be undone: written before the change, removed when it is committed or undone (I9).
//!
//! Guarantees: there is one at a time; it is written atomically; it is read and removed under a lock, which the kernel releases when the
//! process dies. It is kept where a reboot removes it, together with the change that it is about.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::PathBuf;
use std::time::Duration;

use nmstate::NetworkState;
use serde::{Deserialize, Serialize};

use crate::clock::since_boot;
use crate::error::HostError;
use crate::kernel::Links;

/// The name of the change, as `commit` and `rollback` take it.
pub const NAME: &str = "kernel";

/// A change and the way back.
#[derive(Debug, Serialize, Deserialize)]
pub struct Record {
    /// When it is undone, in milliseconds since boot.
    deadline: u64,
    pub desired: NetworkState,
    /// What takes the change back, as far as nmstate can say it.
    pub revert: NetworkState,
    /// The links of the change as they were.
    pub before: Links,
}

impl Record {
    pub fn new(
        desired: NetworkState,
        revert: NetworkState,
        before: Links,
        timeout: Duration,
    ) -> Record {
        let deadline = since_boot().saturating_add(timeout).as_millis();
        Record {
            deadline: u64::try_from(deadline).unwrap_or(u64::MAX),
            desired,
            revert,
            before,
        }
    }

    /// How long it can still be committed.
    pub fn left(&self) -> Duration {
        Duration::from_millis(self.deadline).saturating_sub(since_boot())
    }

    pub fn is_over(&self) -> bool {
        self.left().is_zero()
    }
}

/// The directory of the record.
#[derive(Debug)]
pub struct Records(PathBuf);

/// The record's lock; free again when it is dropped.
#[derive(Debug)]
pub struct Locked<'a> {
    records: &'a Records,
    _lock: File,
}

impl Records {
    pub const fn new(directory: PathBuf) -> Records {
        Records(directory)
    }

    pub fn directory(&self) -> &PathBuf {
        &self.0
    }

    /// Waits for the apply, commit or rollback that is under way.
    pub fn lock(&self) -> Result<Locked<'_>, HostError> {
        let what = format!("lock {}", self.0.display());
        let failed = || HostError::io(what.clone());
        fs::create_dir_all(&self.0).map_err(failed())?;
        let lock = File::create(self.0.join("lock")).map_err(failed())?;
        lock.lock().map_err(failed())?;
        Ok(Locked {
            records: self,
            _lock: lock,
        })
    }

    /// Whether there is a record, without waiting for the lock.
    pub fn is_any(&self) -> bool {
        self.file().exists()
    }

    /// When the change is undone, without waiting for the lock; none if there is none. A record is replaced whole.
    pub fn deadline(&self) -> Option<Duration> {
        let record: Record = serde_json::from_slice(&fs::read(self.file()).ok()?).ok()?;
        Some(Duration::from_millis(record.deadline))
    }

    fn file(&self) -> PathBuf {
        self.0.join("change.json")
    }
}

impl Locked<'_> {
    pub fn read(&self) -> Result<Option<Record>, HostError> {
        let file = self.records.file();
        match fs::read(&file) {
            Ok(bytes) => serde_json::from_slice(&bytes).map(Some).map_err(|error| {
                HostError::Input(format!(
                    "{}: the record of an uncommitted change can't be read: {error}; check the host's addresses, then remove the file",
                    file.display()
                ))
            }),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(HostError::io(file.display().to_string())(error)),
        }
    }

    pub fn write(&self, record: &Record) -> Result<(), HostError> {
        let (file, draft) = (self.records.file(), self.records.0.join("change.new"));
        let failed = || HostError::io(format!("record the way back in {}", file.display()));
        fs::write(&draft, serde_json::to_vec(record)?).map_err(failed())?;
        File::open(&draft)
            .and_then(|draft| draft.sync_all())
            .map_err(failed())?;
        fs::rename(&draft, &file).map_err(failed())
    }

    pub fn remove(&self) -> Result<(), HostError> {
        let file = self.records.file();
        fs::remove_file(&file).map_err(HostError::io(file.display().to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_back_and_ends() {
        let dir = tempfile::tempdir().unwrap();
        let records = Records::new(dir.path().join("run"));
        let locked = records.lock().unwrap();
        assert!(locked.read().unwrap().is_none());
        let state = NetworkState::new;
        let record = |timeout| Record::new(state(), state(), Links::default(), timeout);
        locked.write(&record(Duration::from_secs(60))).unwrap();
        let read = locked.read().unwrap().unwrap();
        assert!(!read.is_over() && read.left() <= Duration::from_secs(60));
        locked.write(&record(Duration::ZERO)).unwrap();
        assert!(locked.read().unwrap().unwrap().is_over());
        locked.remove().unwrap();
        assert!(!records.is_any());
    }
}
