//! Calls for one container are served one at a time, in the order in which they came.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

type Locks = Mutex<HashMap<String, Arc<AsyncMutex<()>>>>;

#[derive(Debug, Default)]
pub(super) struct KeyedLock(Arc<Locks>);

/// Held while a call is served.
#[derive(Debug)]
pub(super) struct Held {
    key: String,
    guard: Option<OwnedMutexGuard<()>>,
    locks: Arc<Locks>,
}

impl KeyedLock {
    pub(super) async fn hold(&self, key: &str) -> Held {
        let lock = Arc::clone(self.0.lock().entry(key.to_owned()).or_default());
        Held {
            key: key.to_owned(),
            guard: Some(lock.lock_owned().await),
            locks: Arc::clone(&self.0),
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.guard = None;
        let mut locks = self.locks.lock();
        // Each waiting call has a clone: the last one removes the lock.
        if locks
            .get(&self.key)
            .is_some_and(|lock| Arc::strong_count(lock) == 1)
        {
            locks.remove(&self.key);
        }
    }
}
