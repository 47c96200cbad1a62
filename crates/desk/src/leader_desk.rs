//! The leader's desk, which the desks of all nodes ask first where there is one.
//!
//! One writer that gathers the requests of all nodes commits them many times faster than many writers of one object
//! (docs/decisions/0001). Only speed rests on it: a desk that gets no answer serves its requests itself, and the
//! preconditions of every commit keep the two apart.
//!
//! A request that was sent and not answered may still be carried out, later than its sender thinks. That allocates no
//! address twice (I1). One owner may get a second address, which is released with the first: a release names the handle,
//! and frees all that is held under it.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use berth_core::{Answer, Request};
use berth_ledger::PoolKey;
use thiserror::Error;

/// Why the leader's desk gave no answers.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LeaderAway {
    /// It has received nothing: there is no leader, or it refuses.
    #[error("the leader's desk can't be asked: {0}")]
    NotReceived(String),
    /// It may have received the requests and carried them out.
    #[error("the leader's desk has not answered: {0}")]
    OutcomeUnknown(String),
}

#[async_trait]
pub trait LeaderDesk: fmt::Debug + Send + Sync + 'static {
    /// Sends requests in their order. One answer each, durable (I2); none where there is none for that request: its
    /// sender serves it itself.
    async fn put(
        &self,
        pool: &PoolKey,
        requests: &[Request],
        limit: Duration,
    ) -> Result<Vec<Option<Answer>>, LeaderAway>;
}
