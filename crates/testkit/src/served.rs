//! What serves in the test's own process until it is told to stop: an agent, a controller, a collector.

use std::pin::Pin;

use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// Comes when it is time to stop.
pub type Told = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Stops when told, or when it is dropped.
#[derive(Debug)]
pub struct Served {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Served {
    /// Starts what `serve` makes of the word to stop, on the runtime of the caller.
    pub fn start<F>(serve: impl FnOnce(Told) -> F) -> Served
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (stop, told) = oneshot::channel();
        let told = async move {
            let _ = told.await;
        };
        let task = tokio::spawn(serve(Box::pin(told)));
        Served { stop, task }
    }

    /// Tells it to stop, and waits for its end. Where it has panicked, this panics.
    pub async fn stop(self) {
        // One that has ended by itself hears nothing.
        let _ = self.stop.send(());
        if let Err(failed) = self.task.await {
            std::panic::resume_unwind(Box::new(failed.to_string()));
        }
    }
}
