//! Changes with NetworkManager, which keeps the checkpoint itself and rolls it back when its time is up.

use std::time::Duration;

use nmstate::NetworkState;

use crate::error::HostError;
use crate::worker::{self, How};

/// How long an apply may take: nmstate extends the checkpoint at each of its tries.
fn limit(how: &How) -> Duration {
    Duration::from_secs(how.timeout.into()).saturating_mul(2)
}

pub fn apply(desired: &NetworkState, how: &How) -> Result<String, HostError> {
    let applied = worker::apply(desired, how, limit(how));
    if let Err(HostError::Hung(_)) = &applied {
        // At the latest NetworkManager does it itself, when the checkpoint's time is up.
        let _ = NetworkState::checkpoint_rollback("");
    }
    applied
}

pub fn commit(checkpoint: &str) -> Result<String, HostError> {
    NetworkState::checkpoint_commit(checkpoint)?;
    Ok(checkpoint.to_owned())
}

pub fn rollback(checkpoint: &str) -> Result<String, HostError> {
    NetworkState::checkpoint_rollback(checkpoint)?;
    Ok(checkpoint.to_owned())
}
