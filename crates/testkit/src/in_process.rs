//! Something that runs in the test's own process until it is stopped: an agent, a controller, a collector.

use std::pin::Pin;

use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// Completes when it is time to stop.
pub type StopSignal = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Stops on request, or when it is dropped.
#[derive(Debug)]
pub struct InProcess {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl InProcess {
    /// Starts `serve` with a stop signal, on the current runtime.
    pub fn start<F>(serve: impl FnOnce(StopSignal) -> F) -> InProcess
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (stop, told) = oneshot::channel();
        let told = async move {
            let _ = told.await;
        };
        let task = tokio::spawn(serve(Box::pin(told)));
        InProcess { stop, task }
    }

    /// Signals it to stop and waits for its end. Panics if it has panicked.
    pub async fn stop(self) {
        // It may have ended by itself.
        let _ = self.stop.send(());
        if let Err(failed) = self.task.await {
            std::panic::resume_unwind(Box::new(failed.to_string()));
        }
    }
}
