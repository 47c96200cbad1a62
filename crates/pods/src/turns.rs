//! One call at a time for one owner, and for one interface of a container; in the order in which they came.
//!
//! A runtime that gave up waiting may repeat an ADD while the first is still under way. Without a turn, the
//! first's rollback would free what the second has just answered with. Or it sends DEL: one that did not wait for the
//! ADD would free nothing, succeed, and what the ADD then gives nobody would free.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

type Gates<K> = Mutex<HashMap<K, Arc<AsyncMutex<()>>>>;

#[derive(Debug)]
pub(crate) struct Turns<K> {
    gates: Arc<Gates<K>>,
}

impl<K> Default for Turns<K> {
    fn default() -> Self {
        Turns {
            gates: Arc::default(),
        }
    }
}

/// Held while a call is served.
#[derive(Debug)]
pub(crate) struct Turn<K: Eq + Hash> {
    key: K,
    guard: Option<OwnedMutexGuard<()>>,
    gates: Arc<Gates<K>>,
}

impl<K: Clone + Eq + Hash> Turns<K> {
    pub(crate) async fn take(&self, key: &K) -> Turn<K> {
        let gate = {
            let mut gates = self.gates.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(gates.entry(key.clone()).or_default())
        };
        Turn {
            key: key.clone(),
            guard: Some(gate.lock_owned().await),
            gates: Arc::clone(&self.gates),
        }
    }
}

impl<K: Eq + Hash> Drop for Turn<K> {
    fn drop(&mut self) {
        self.guard = None;
        let mut gates = self.gates.lock().unwrap_or_else(PoisonError::into_inner);
        // Whoever waits holds a clone: the last one out removes the gate.
        if gates
            .get(&self.key)
            .is_some_and(|gate| Arc::strong_count(gate) == 1)
        {
            gates.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use berth_core::Owner;

    use super::*;

    #[tokio::test]
    async fn the_second_waits_for_the_first_and_nothing_is_left_behind() {
        let turns = Turns::default();
        let owner = Owner::new("ns/p", "net1");
        let first = turns.take(&owner).await;
        let second = turns.take(&owner);
        tokio::pin!(second);
        assert!(futures::poll!(second.as_mut()).is_pending());
        let other = turns.take(&Owner::new("ns/q", "net1")).await;
        drop(first);
        let second = second.await;
        drop((second, other));
        assert!(turns.gates.lock().unwrap().is_empty());
    }
}
