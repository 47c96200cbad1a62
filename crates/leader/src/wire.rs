//! What agent and leader say to each other.
//!
//! A leader that is older than the agent answers 404 or 400, and the agent goes on alone: an upgrade needs no order.

use berth_core::{Answer, Request};
use berth_ledger::PoolKey;
use serde::{Deserialize, Serialize};

use crate::answers::fault;
use crate::bounds::fit;
use crate::{Owners, PoolKind};

/// The version is part of the path: a form that old leaders can't read gets a new one. So is the kind of pool, unless it is
/// whereabouts': a leader that does not know a kind answers 404, and rights are checked before the body is read.
pub(crate) const PATH: &str = "/v1/desk";

/// The path of the batches of one kind.
pub(crate) fn path(kind: &PoolKind) -> String {
    match *kind == PoolKind::IP_POOLS {
        true => PATH.to_owned(),
        false => format!("{PATH}/{}", kind.name()),
    }
}

/// The longest body that is read. A batch of 1,024 claims with its ranges takes half of it.
pub(crate) const MAX_BODY: usize = 4 << 20;

/// Requests for one pool, in their order.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Batch {
    /// The node that asks. Its token has to say the same.
    pub node: String,
    pub pool: PoolKey,
    /// How long the agent waits.
    pub limit_ms: u64,
    pub requests: Vec<Request>,
}

/// One answer per request; none where the agent has to see to it itself.
#[derive(Debug, Serialize, Deserialize)]
pub struct Replies {
    pub answers: Vec<Option<Answer>>,
}

impl Batch {
    /// Why the leader refuses the whole batch, judged by its content alone.
    pub fn fault(&self) -> Option<String> {
        fit(self, Owners::Pods, None)
            .err()
            .map(|unfit| unfit.to_string())
    }
}

impl Replies {
    /// Why these are no answers to the requests.
    pub fn fault(&self, requests: &[Request]) -> Option<String> {
        fault(requests, &self.answers)
    }
}
