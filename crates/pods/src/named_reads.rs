//! Reads the files that network definitions name: a few at a time, each with a time limit.
//!
//! A file on a filesystem that hangs holds its thread until the machine is restarted. The threads for such work are few, and
//! the node's own ledger needs them: definitions never hold more than [`AT_A_TIME`].

use std::sync::Arc;
use std::time::Duration;

use berth_cni::{CniError, Code};
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// Fewer than the blocking threads of a daemon (8).
const AT_A_TIME: usize = 4;

/// How long a call waits for its files.
const LIMIT: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(crate) struct NamedReads {
    room: Arc<Semaphore>,
    limit: Duration,
}

impl Default for NamedReads {
    fn default() -> NamedReads {
        NamedReads {
            room: Arc::new(Semaphore::new(AT_A_TIME)),
            limit: LIMIT,
        }
    }
}

impl NamedReads {
    /// What `read` returns. One that takes too long keeps its thread and its room for as long as it takes.
    pub async fn run<T: Send + 'static>(
        &self,
        read: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, CniError> {
        let room = Arc::clone(&self.room);
        let served = async {
            let room = room.acquire_owned().await.ok();
            let read = tokio::task::spawn_blocking(move || {
                let _room = room;
                read()
            });
            read.await
        };
        match timeout(self.limit, served).await {
            Ok(Ok(read)) => Ok(read),
            Ok(Err(error)) => Err(CniError::new(
                Code::Internal,
                format!("the files that the network names were not read: {error}"),
            )),
            Err(_) => Err(CniError::new(
                Code::TryLater,
                format!(
                    "the files that the network names were not read within {} s",
                    self.limit.as_secs()
                ),
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn files_that_hang_leave_threads_to_others() {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .max_blocking_threads(8)
            .enable_all()
            .build()
            .unwrap();
        let (end, ended) = mpsc::channel::<()>();
        let ended = Arc::new(std::sync::Mutex::new(ended));
        runtime.block_on(async {
            let reads = Arc::new(NamedReads {
                limit: Duration::from_millis(50),
                ..NamedReads::default()
            });
            for _ in 0..20 {
                let ended = Arc::clone(&ended);
                let hangs = move || drop(ended.lock().map(|ended| ended.recv()));
                let refused = reads.run(hangs).await.unwrap_err();
                assert_eq!(refused.code, Code::TryLater);
            }
            // The ledger's.
            let other = tokio::task::spawn_blocking(|| 7);
            let other = timeout(Duration::from_secs(20), other).await;
            assert_eq!(other.unwrap().unwrap(), 7);
        });
        drop(end);
    }

    #[tokio::test]
    async fn what_is_read_is_returned() {
        assert_eq!(NamedReads::default().run(|| 7).await.unwrap(), 7);
    }
}
