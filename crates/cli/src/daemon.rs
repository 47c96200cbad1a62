//! Shared by all long-running commands: a small runtime, and a signal to stop.

use anyhow::Context;
use tokio::signal::unix::{SignalKind, signal};

/// Runs `work` on a worker of the daemon's runtime: outside of it, every call would cost a wake-up.
pub fn run<T: Send + 'static>(
    work: impl Future<Output = anyhow::Result<T>> + Send + 'static,
) -> anyhow::Result<T> {
    // Two workers: a daemon waits for disks and servers, it does not compute.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        // Each thread has its own stack and heap, and all wait for one SQLite file.
        .max_blocking_threads(8)
        .enable_all()
        .build()
        .context("the runtime can't be started")?;
    runtime
        .block_on(runtime.spawn(work))
        .context("the daemon's work broke off")?
}

/// Completes on SIGTERM or SIGINT. Both are caught from this call on, not from the first await: a signal during startup
/// is not lost.
pub fn stop_signal() -> anyhow::Result<impl Future<Output = ()> + Send + 'static> {
    let mut terminate = signal(SignalKind::terminate()).context("wait for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("wait for SIGINT")?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}
