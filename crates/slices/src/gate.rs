//! Who changes what is held: one at a time in a process, by what it has looked at since it has the gate.
//!
//! Another process of the node has a gate of its own, and looks at the same claims. What is taken on rests on such looks, so
//! what others have written is counted: whoever takes a slice on does not, if that was anything since (I8).

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::{Mutex, MutexGuard};

#[derive(Debug, Default)]
pub(crate) struct Gate {
    lock: Mutex<()>,
    /// What others wrote, as far as it was noticed.
    others: AtomicU64,
    /// As it was when the gate was taken.
    before: AtomicU64,
}

impl Gate {
    pub async fn lock(&self) -> MutexGuard<'_, ()> {
        let lock = self.lock.lock().await;
        let others = self.others.load(Ordering::Acquire);
        self.before.store(others, Ordering::Release);
        lock
    }

    /// Another process has changed what is held.
    pub fn note_other(&self) {
        self.others.fetch_add(1, Ordering::AcqRel);
    }

    /// Whether none was noticed to, since the gate was taken. It must be held.
    pub fn is_undisturbed(&self) -> bool {
        self.others.load(Ordering::Acquire) == self.before.load(Ordering::Acquire)
    }
}
