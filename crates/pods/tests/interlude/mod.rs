//! A ledger in whose pauses others act: before or after the next call of a kind, once.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use berth_core::Record;
use berth_ledger::{
    ClaimKey, DelegatingLedger, DelegatingRecords, Ledger, LedgerError, PoolKey, Records,
    SharedRecordLedger,
};

/// A call of the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// A read of the holder of a name.
    Get,
    /// The deletion of a named record.
    Delete,
}

type Act = Pin<Box<dyn Future<Output = ()> + Send>>;

pub struct Interlude {
    below: SharedRecordLedger,
    before: Mutex<BTreeMap<Step, Act>>,
    after: Mutex<BTreeMap<Step, Act>>,
    removed: AtomicUsize,
}

impl fmt::Debug for Interlude {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Interlude").finish_non_exhaustive()
    }
}

impl Interlude {
    pub fn over(below: SharedRecordLedger) -> Interlude {
        Interlude {
            below,
            before: Mutex::default(),
            after: Mutex::default(),
            removed: AtomicUsize::new(0),
        }
    }

    pub fn before(&self, step: Step, act: impl Future<Output = ()> + Send + 'static) {
        self.before.lock().unwrap().insert(step, Box::pin(act));
    }

    pub fn after(&self, step: Step, act: impl Future<Output = ()> + Send + 'static) {
        self.after.lock().unwrap().insert(step, Box::pin(act));
    }

    /// Whether everything that was to happen has.
    pub fn is_over(&self) -> bool {
        self.before.lock().unwrap().is_empty() && self.after.lock().unwrap().is_empty()
    }

    /// How often a claim was ended.
    pub fn removed(&self) -> usize {
        self.removed.load(Ordering::SeqCst)
    }

    async fn amid<T>(&self, step: Step, call: impl Future<Output = T>) -> T {
        let act = self.before.lock().unwrap().remove(&step);
        if let Some(act) = act {
            act.await;
        }
        let done = call.await;
        let act = self.after.lock().unwrap().remove(&step);
        if let Some(act) = act {
            act.await;
        }
        done
    }
}

#[async_trait]
impl DelegatingLedger for Interlude {
    fn below(&self, _pool: Option<&PoolKey>) -> &dyn Ledger {
        &*self.below
    }
}

#[async_trait]
impl DelegatingRecords for Interlude {
    fn records_below(&self) -> &dyn Records {
        &*self.below
    }

    async fn delete(&self, key: &ClaimKey, expected: &Record) -> Result<(), LedgerError> {
        let removed = self
            .amid(Step::Delete, self.below.delete(key, expected))
            .await;
        if removed.is_ok() {
            self.removed.fetch_add(1, Ordering::SeqCst);
        }
        removed
    }

    async fn get(&self, key: &ClaimKey) -> Result<Option<Record>, LedgerError> {
        self.amid(Step::Get, self.below.get(key)).await
    }
}
