//! One answer for all requests within a second: a route that reads a store for unauthenticated clients reads it at most
//! that often.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Mutex;
use tokio::task::JoinError;

/// How long an answer is reused.
const RECENT: Duration = Duration::from_secs(1);

/// The last answer, if any. Copies share it.
#[derive(Debug)]
pub struct Recent<T>(Arc<Mutex<Option<(Instant, T)>>>);

impl<T> Default for Recent<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<T> Clone for Recent<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T: Clone + Send + 'static> Recent<T> {
    /// The answer of at most a second ago. One caller asks, the others wait for it. It completes even if that caller
    /// disconnects; otherwise clients that hang up could trigger any number of reads.
    pub async fn get(&self, ask: impl Future<Output = T> + Send + 'static) -> Result<T, JoinError> {
        let mut last = Arc::clone(&self.0).lock_owned().await;
        if let Some((at, answer)) = &*last
            && at.elapsed() < RECENT
        {
            return Ok(answer.clone());
        }
        let asked = tokio::spawn(async move {
            let answer = ask.await;
            *last = Some((Instant::now(), answer.clone()));
            answer
        });
        asked.await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test]
    async fn many_who_ask_at_once_cost_one_answer() {
        let (recent, asked) = (Recent::default(), Arc::new(AtomicUsize::new(0)));
        let ask = || {
            let asked = Arc::clone(&asked);
            recent.get(async move {
                tokio::task::yield_now().await;
                asked.fetch_add(1, Ordering::SeqCst)
            })
        };
        let answers = futures::future::join_all((0..1_000).map(|_| ask())).await;
        assert!(answers.into_iter().all(|answer| answer.unwrap() == 0));
    }

    #[tokio::test]
    async fn a_caller_who_hangs_up_does_not_have_it_asked_again() {
        let (recent, asked) = (Recent::default(), Arc::new(AtomicUsize::new(0)));
        let (go, gone) = tokio::sync::watch::channel(false);
        let ask = || {
            let (asked, mut gone) = (Arc::clone(&asked), gone.clone());
            recent.get(async move {
                asked.fetch_add(1, Ordering::SeqCst);
                let _ = gone.wait_for(|gone| *gone).await;
            })
        };
        for _ in 0..100 {
            // Polled once, which starts the request, and dropped.
            let _ = futures::poll!(std::pin::pin!(ask()));
            tokio::task::yield_now().await;
        }
        go.send(true).unwrap();
        ask().await.unwrap();
        assert_eq!(asked.load(Ordering::SeqCst), 1);
    }
}
