//! Serves one call at a time for one key, in the order of arrival.
//!
//! A runtime that stopped waiting may repeat an ADD while the first one still runs: without the lock, the rollback of
//! the first would release the address that the second has returned. A DEL that did not wait for its ADD would
//! release nothing and succeed, and the address that the ADD then allocates would leak.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

type Locks<K> = Mutex<HashMap<K, Arc<AsyncMutex<()>>>>;

/// A lock for each key that is in use.
#[derive(Debug)]
pub struct KeyedLock<K> {
    locks: Arc<Locks<K>>,
}

impl<K> Default for KeyedLock<K> {
    fn default() -> Self {
        KeyedLock {
            locks: Arc::default(),
        }
    }
}

/// Held while a call is served.
#[derive(Debug)]
#[must_use = "the lock is released when this is dropped"]
pub struct Held<K: Eq + Hash> {
    key: K,
    guard: Option<OwnedMutexGuard<()>>,
    locks: Arc<Locks<K>>,
}

impl<K: Clone + Eq + Hash> KeyedLock<K> {
    /// Waits for earlier calls. Dropping the future leaves the queue.
    pub async fn hold(&self, key: K) -> Held<K> {
        // Created first, so that a call that is dropped while it waits removes its key, too.
        let mut held = Held {
            key,
            guard: None,
            locks: Arc::clone(&self.locks),
        };
        let lock = Arc::clone(self.locks.lock().entry(held.key.clone()).or_default());
        held.guard = Some(lock.lock_owned().await);
        held
    }

    /// How many keys are in use.
    pub fn in_use(&self) -> usize {
        self.locks.lock().len()
    }
}

impl<K: Eq + Hash> Drop for Held<K> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_second_call_waits_for_the_first_and_the_key_is_removed() {
        let locks = KeyedLock::default();
        let first = locks.hold("one").await;
        let second = locks.hold("one");
        tokio::pin!(second);
        assert!(futures::poll!(second.as_mut()).is_pending());
        let other = locks.hold("two").await;
        drop(first);
        let second = second.await;
        drop((second, other));
        assert_eq!(locks.in_use(), 0);
    }

    #[tokio::test]
    async fn a_call_that_stopped_waiting_leaves_no_key() {
        let locks = KeyedLock::default();
        let first = locks.hold("one").await;
        {
            let second = locks.hold("one");
            tokio::pin!(second);
            assert!(futures::poll!(second.as_mut()).is_pending());
            drop(first);
        }
        assert_eq!(locks.in_use(), 0);
    }
}
