//! What every long-running command needs: a small runtime, and to hear that it shall stop.

use anyhow::Context;
use tokio::signal::unix::{SignalKind, signal};

/// Runs `work` on a daemon's runtime: on its workers, for what runs beside them is woken by one of them for every call.
pub fn run<T: Send + 'static>(
    work: impl Future<Output = anyhow::Result<T>> + Send + 'static,
) -> anyhow::Result<T> {
    // Two workers: a daemon waits for disks and servers, it does not compute.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        // Each has a stack and a heap of its own, and they wait for one SQLite file.
        .max_blocking_threads(8)
        .enable_all()
        .build()
        .context("the runtime can't be started")?;
    runtime
        .block_on(runtime.spawn(work))
        .context("the daemon's work broke off")?
}

/// Ends when SIGTERM or SIGINT comes. Both are caught from the call on, not from the first await: a stop that comes
/// while the daemon starts is not lost.
pub fn told() -> anyhow::Result<impl Future<Output = ()> + Send + 'static> {
    let mut terminate = signal(SignalKind::terminate()).context("wait for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("wait for SIGINT")?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}
