//! Reads of one shard that all requests of the process share.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::pool::{PoolError, VmPool};

/// By the shard's name.
pub(super) type Reads<T> = Mutex<BTreeMap<String, Arc<SharedRead<T>>>>;

pub(super) fn shared<T>(reads: &Reads<T>, shard: &VmPool) -> Arc<SharedRead<T>> {
    let mut reads = reads.lock();
    Arc::clone(reads.entry(shard.name().to_owned()).or_default())
}

/// Reads of one shard, shared by all waiting requests: each read starts after the request.
#[derive(Debug)]
pub(super) struct SharedRead<T> {
    questions: AtomicU64,
    last: tokio::sync::Mutex<Option<(u64, T)>>,
}

impl<T> Default for SharedRead<T> {
    fn default() -> Self {
        Self {
            questions: AtomicU64::new(0),
            last: tokio::sync::Mutex::default(),
        }
    }
}

impl<T: Clone> SharedRead<T> {
    pub(super) async fn answer<F>(&self, read: impl FnOnce() -> F) -> Result<T, PoolError>
    where
        F: Future<Output = Result<T, PoolError>>,
    {
        let asked = self.questions.fetch_add(1, Ordering::SeqCst) + 1;
        let mut last = self.last.lock().await;
        if let Some((answers, found)) = &*last
            && *answers >= asked
        {
            return Ok(found.clone());
        }
        let answers = self.questions.load(Ordering::SeqCst);
        let found = read().await?;
        *last = Some((answers, found.clone()));
        Ok(found)
    }
}
