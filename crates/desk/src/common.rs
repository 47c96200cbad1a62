//! The desk that many processes share: what a pool's own desk asks first, where there is one.
//!
//! One writer that gathers everybody's requests commits them many times faster than many writers of one object
//! (docs/decisions/0001). Nothing rests on it but speed: whoever gets no answer serves its requests itself, and the
//! preconditions of every commit keep the two apart.
//!
//! A request that was put here and not answered may still be carried out, later than its sender thinks. That
//! gives no address twice (I1). It may give one owner a second address, which goes with the owner's release: that
//! names the handle, and frees all that is held under it.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use berth_core::{Answer, Request};
use berth_ledger::PoolKey;
use thiserror::Error;

/// Why a common desk gave no answers.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Away {
    /// It has got nothing: nobody is there, or refuses.
    #[error("the common desk can't be asked: {0}")]
    Unheard(String),
    /// It may have got the requests and carried them out.
    #[error("the common desk has not answered: {0}")]
    Unsure(String),
}

#[async_trait]
pub trait CommonDesk: fmt::Debug + Send + Sync + 'static {
    /// Puts requests in their order. One answer each, durable (I2); none where there is none for that request: its
    /// sender serves it itself.
    async fn put(
        &self,
        pool: &PoolKey,
        requests: &[Request],
        limit: Duration,
    ) -> Result<Vec<Option<Answer>>, Away>;
}
