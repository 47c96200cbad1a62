//! The end of a recorded change: it is committed, or undone.
//!
//! An undo goes on whatever fails in it: first nmstate takes back what it can, then each link is compared with what it was and corrected
//! in the kernel. nmstate alone leaves an address on a link that was down before.

use std::thread;
use std::time::Duration;

use crate::checkpoint::{Locked, NAME, Record, Records};
use crate::clock::since_boot;
use crate::error::HostError;
use crate::worker::How;
use crate::{kernel, network_manager, worker};

/// How long nmstate may take to take a change back; what it leaves is corrected after it.
const REVERT_LIMIT: Duration = Duration::from_secs(20);
/// How often links are corrected: one that went down and up again has lost its IPv6 addresses.
const ROUNDS: usize = 3;
/// How often a guard checks whether it is still needed.
const GUARD_INTERVAL: Duration = Duration::from_millis(100);

/// Undoes a change and removes its record. A record whose change could not be undone stays.
pub fn undo(locked: &Locked<'_>, record: &Record) -> Result<(), HostError> {
    let how = How {
        kernel: true,
        no_verify: true,
        timeout: 1,
        ..How::default()
    };
    let target = kernel::target(&record.desired, &record.before)?;
    let mut trouble = worker::apply(&record.revert, &how, REVERT_LIMIT).err();
    let mut left = kernel::differences(&record.desired, &target)?;
    for _ in 0..ROUNDS {
        if left.is_empty() {
            break;
        }
        for difference in &left {
            trouble = difference.undo().err().or(trouble);
        }
        left = kernel::differences(&record.desired, &target)?;
    }
    if left.is_empty() {
        return locked.remove();
    }
    let left: Vec<String> = left.iter().map(ToString::to_string).collect();
    let cause = trouble.map_or_else(String::new, |trouble| trouble.to_string());
    Err(HostError::HalfWay {
        cause,
        left: left.join(", "),
    })
}

/// Undoes a change that failed; the error has both outcomes.
pub fn after(locked: &Locked<'_>, record: &Record, cause: &str) -> HostError {
    match undo(locked, record) {
        Ok(()) => HostError::RolledBack {
            cause: cause.to_owned(),
        },
        Err(HostError::HalfWay { left, .. }) => HostError::HalfWay {
            cause: cause.to_owned(),
            left,
        },
        Err(other) => HostError::HalfWay {
            cause: cause.to_owned(),
            left: other.to_string(),
        },
    }
}

pub fn commit(records: &Records, name: &str) -> Result<String, HostError> {
    if !is_ours(records, name) {
        return network_manager::commit(name);
    }
    let locked = records.lock()?;
    match locked.read()? {
        None => Err(too_late()),
        Some(record) if record.is_over() => {
            undo(&locked, &record)?;
            Err(too_late())
        }
        Some(_) => locked.remove().map(|()| NAME.to_owned()),
    }
}

fn too_late() -> HostError {
    HostError::Refused(format!(
        "the change `{NAME}` was not committed in time and is rolled back; apply it again"
    ))
}

pub fn rollback(records: &Records, name: &str) -> Result<String, HostError> {
    if !is_ours(records, name) {
        return network_manager::rollback(name);
    }
    let locked = records.lock()?;
    if let Some(record) = locked.read()? {
        undo(&locked, &record)?;
    }
    Ok(NAME.to_owned())
}

/// A change of this program, by its name or because there is one.
fn is_ours(records: &Records, name: &str) -> bool {
    name == NAME || (name.is_empty() && records.is_any())
}

/// Waits until the change is committed or undone, or its time is up: then undoes it.
pub fn guard(records: &Records) -> Result<(), HostError> {
    // While the apply runs it has the lock: the time is read without it.
    let Some(deadline) = records.deadline() else {
        return Ok(());
    };
    while records.is_any() {
        if since_boot() >= deadline {
            let locked = records.lock()?;
            // Read again under the lock: it may be another one by now.
            return match locked.read()? {
                Some(record) if record.is_over() => undo(&locked, &record),
                _ => Ok(()),
            };
        }
        thread::sleep(GUARD_INTERVAL);
    }
    Ok(())
}
