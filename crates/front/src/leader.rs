//! Work of the one controller that leads.

use std::fmt;

use async_trait::async_trait;
use prometheus_client::registry::Registry;
use tokio_util::sync::CancellationToken;

/// One kind of work for the whole cluster. Every replica of the controller has all tasks; only the leader's work.
///
/// Correctness must not rest on leadership: a leader that was deposed without knowing it may still be in [`lead`].
///
/// [`lead`]: LeaderTask::lead
#[async_trait]
pub trait LeaderTask: fmt::Debug + Send + Sync + 'static {
    /// Its name in logs: `slices`.
    fn name(&self) -> &'static str;

    /// Registers its metrics; called once, before anything runs.
    fn register(&self, _registry: &mut Registry) {}

    /// Whether this replica could take over at once; if not, why.
    fn ready(&self) -> Result<(), String> {
        Ok(())
    }

    /// What every replica does, leader or not, until `stop`: watches that keep a follower warm, listeners.
    async fn follow(&self, stop: CancellationToken) {
        stop.cancelled().await;
    }

    /// One term of leadership. Returns soon after `term` is cancelled: the leader was deposed, or the process stops.
    async fn lead(&self, term: CancellationToken) {
        term.cancelled().await;
    }
}
