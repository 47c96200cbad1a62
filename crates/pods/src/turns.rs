//! One call at a time for one owner.
//!
//! A runtime that gave up waiting may repeat an ADD while the first is still under way. Without a turn, the
//! first's rollback would free what the second has just answered with.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use berth_core::Owner;
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

type Gates = Mutex<HashMap<Owner, Arc<AsyncMutex<()>>>>;

#[derive(Debug, Default)]
pub(crate) struct Turns {
    gates: Arc<Gates>,
}

/// Held while an owner's call is served.
#[derive(Debug)]
pub(crate) struct Turn {
    owner: Owner,
    guard: Option<OwnedMutexGuard<()>>,
    gates: Arc<Gates>,
}

impl Turns {
    pub(crate) async fn take(&self, owner: &Owner) -> Turn {
        let gate = {
            let mut gates = self.gates.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(gates.entry(owner.clone()).or_default())
        };
        Turn {
            owner: owner.clone(),
            guard: Some(gate.lock_owned().await),
            gates: Arc::clone(&self.gates),
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.guard = None;
        let mut gates = self.gates.lock().unwrap_or_else(PoisonError::into_inner);
        // Whoever waits holds a clone: the last one out removes the gate.
        if gates
            .get(&self.owner)
            .is_some_and(|gate| Arc::strong_count(gate) == 1)
        {
            gates.remove(&self.owner);
        }
    }
}

#[cfg(test)]
mod tests {
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
