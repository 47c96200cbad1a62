//! One desk per pool and process: requests that wait go into one commit.
//!
//! ```text
//!   requests ->| queue |-> plan all that wait -> one commit -> answer all
//!                  ^ arrive while a commit is under way; the next one takes them together
//! ```
//!
//! Promises:
//! - an answer is given only when it is durable (I2): after the commit, or, if nothing had to be
//!   changed, from a state that was read after the request arrived;
//! - a conflict is met by loading and planning again, with a draw that parts those who collided;
//! - the queue is bounded, every request has a deadline, and one that is given up leaves nothing
//!   behind: what it was granted is released before anything else is planned, and what may yet be granted when that is known;
//! - one request that a ledger refuses does not take down the others of its batch;
//! - where there is a common desk, it is asked first; whatever it does not answer is served here.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod batch;
mod common;
mod crowd;
mod debts;
mod metrics;
mod registry;
mod worker;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use berth_core::plan::{Scope, Selector};
use berth_core::{Address, Answer, Handle, Record, Release, Request};
use berth_ledger::{LedgerError, PoolKey, RetryPolicy, SharedLedger};
use thiserror::Error;
use tokio::sync::{mpsc, oneshot};

pub use common::{Away, CommonDesk};
pub use metrics::{DeskMetrics, PoolMetrics};
pub use registry::Desks;

#[derive(Clone, Debug)]
pub struct DeskSettings {
    /// How many requests may wait.
    pub queue: usize,
    /// How many go into one commit.
    pub batch: usize,
    pub retry: RetryPolicy,
    /// Whether it hears of others' writes to the pool, and reads it before it plans on a copy that they outdated. Without
    /// it the copy is loaded when it turns out to be old.
    pub watch: bool,
    /// Whether it holds back when it meets other writers of the pool. For ledgers whose writers do not take turns.
    pub apart: bool,
    /// The desk that the requests of all processes meet in, if there is one.
    pub common: Option<Arc<dyn CommonDesk>>,
    /// How long an answer of the common desk is waited for before the request is served here.
    pub common_patience: Duration,
}

impl Default for DeskSettings {
    fn default() -> Self {
        Self {
            queue: 4096,
            batch: 1024,
            retry: RetryPolicy::default(),
            watch: false,
            apart: false,
            common: None,
            common_patience: Duration::from_secs(5),
        }
    }
}

/// Why there is no answer. Nothing was kept of the request.
#[derive(Clone, Debug, Error)]
pub enum DeskError {
    #[error("{pool}: {waiting} requests wait already; try again later")]
    Busy { pool: String, waiting: usize },
    #[error("{pool}: no answer within {} s{}", .limit.as_secs_f32(), because(.last.as_deref()))]
    Deadline {
        pool: String,
        limit: Duration,
        last: Option<Arc<LedgerError>>,
    },
    #[error(transparent)]
    Ledger(Arc<LedgerError>),
    #[error("{pool}: the desk is closed")]
    Closed { pool: String },
    /// The request is of one node, the entry of another.
    #[error("{pool}: {address} is held by {} on another node", .held.owner)]
    Foreign {
        pool: String,
        address: Address,
        held: Box<Record>,
    },
}

impl DeskError {
    /// The ledger's own error, where there is one.
    pub fn ledger(&self) -> Option<&LedgerError> {
        match self {
            Self::Ledger(error) => Some(error),
            Self::Deadline { last, .. } => last.as_deref(),
            _ => None,
        }
    }
}

fn because(last: Option<&LedgerError>) -> String {
    last.map(|error| format!(": {error}")).unwrap_or_default()
}

/// A request in the queue.
#[derive(Debug)]
pub(crate) struct Ticket {
    request: Request,
    arrived: Instant,
    deadline: Instant,
    reply: oneshot::Sender<Result<Answer, DeskError>>,
    /// Who asks if nobody hears the answer.
    asker: Asker,
    errand: Errand,
    /// What it may change; none for whatever it names.
    scope: Option<Scope>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Errand {
    Serve,
    /// Only to be told that what the request would release is not under way.
    Settle,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asker {
    /// A caller of this process: what it does not hear is taken back.
    Here,
    /// Another process. It may have found its grant in the ledger meanwhile and use it: what was granted stays,
    /// and goes with its holder.
    Elsewhere,
}

/// A handle to a pool's desk. Clones share it; the last one to go ends it, after what waits.
#[derive(Clone, Debug)]
pub struct Desk {
    pool: PoolKey,
    queue: mpsc::Sender<Ticket>,
    timeout: Duration,
    metrics: PoolMetrics,
    /// The worker waits for requests and owes nothing.
    settled: Arc<AtomicBool>,
}

impl Desk {
    /// Opens a desk; it runs as a task of the current runtime.
    pub fn open(
        ledger: SharedLedger,
        pool: PoolKey,
        settings: &DeskSettings,
        metrics: PoolMetrics,
    ) -> Self {
        let (queue, tickets) = mpsc::channel(settings.queue.max(1));
        let settled = Arc::<AtomicBool>::default();
        let worker = worker::Worker::new(
            ledger,
            pool.clone(),
            settings.clone(),
            metrics.clone(),
            tickets,
            Arc::clone(&settled),
        );
        tokio::spawn(worker.run());
        Self {
            pool,
            queue,
            timeout: settings.retry.timeout,
            metrics,
            settled,
        }
    }

    /// Whether it waits for requests and owes the pool nothing.
    pub(crate) fn is_settled(&self) -> bool {
        self.settled.load(Ordering::Acquire)
    }

    /// Whether nobody else has this desk, nothing waits in it, and it owes the pool nothing.
    pub(crate) fn is_unused(&self) -> bool {
        // In this order: with no other sender, nothing more can come into the queue.
        self.queue.strong_count() == 1
            && self.queue.capacity() == self.queue.max_capacity()
            && self.is_settled()
    }

    pub fn pool(&self) -> &PoolKey {
        &self.pool
    }

    pub fn metrics(&self) -> &PoolMetrics {
        &self.metrics
    }

    /// Puts a request and waits for its answer, as long as the settings allow. Dropping the future
    /// gives the request up.
    pub async fn submit(&self, request: Request) -> Result<Answer, DeskError> {
        self.submit_within(request, self.timeout).await
    }

    pub async fn submit_within(
        &self,
        request: Request,
        limit: Duration,
    ) -> Result<Answer, DeskError> {
        let waiting = self.enqueue(request, limit, Asker::Here, Errand::Serve, None)?;
        self.answer(waiting).await
    }

    /// Waits until no commit for that handle is under way or in doubt: what the ledger says of it then is not outrun by
    /// what this desk has begun before.
    pub async fn settle(&self, handle: &Handle) -> Result<(), DeskError> {
        let release = Request::Release(Release {
            selector: Selector::Handle {
                handle: handle.clone(),
                part: None,
            },
            rest: Duration::ZERO,
        });
        let waiting = self.enqueue(release, self.timeout, Asker::Here, Errand::Settle, None)?;
        self.answer(waiting).await.map(drop)
    }

    /// Puts requests of another process in their order and waits for their answers. What is granted stays
    /// granted, heard or not: that process may see it in the ledger.
    pub async fn submit_for(
        &self,
        requests: Vec<Request>,
        limit: Duration,
    ) -> Vec<Result<Answer, DeskError>> {
        self.submit_within_scope(requests, None, limit).await
    }

    /// The same for requests that may only change what is in that scope: others get [`DeskError::Foreign`].
    pub async fn submit_within_scope(
        &self,
        requests: Vec<Request>,
        scope: Option<Scope>,
        limit: Duration,
    ) -> Vec<Result<Answer, DeskError>> {
        let (asker, errand) = (Asker::Elsewhere, Errand::Serve);
        let enqueue = |request| self.enqueue(request, limit, asker, errand, scope.clone());
        let waiting: Vec<_> = requests.into_iter().map(enqueue).collect();
        let mut answers = Vec::with_capacity(waiting.len());
        for ticket in waiting {
            answers.push(match ticket {
                Ok(ticket) => self.answer(ticket).await,
                Err(error) => Err(error),
            });
        }
        answers
    }

    fn enqueue(
        &self,
        request: Request,
        limit: Duration,
        asker: Asker,
        errand: Errand,
        scope: Option<Scope>,
    ) -> Result<Waiting, DeskError> {
        let pool = || self.pool.name.clone();
        let arrived = Instant::now();
        let (reply, answer) = oneshot::channel();
        let ticket = Ticket {
            request,
            arrived,
            deadline: arrived + limit,
            reply,
            asker,
            errand,
            scope,
        };
        self.metrics.requests.inc();
        self.queue.try_send(ticket).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => DeskError::Busy {
                pool: pool(),
                waiting: self.queue.max_capacity(),
            },
            mpsc::error::TrySendError::Closed(_) => DeskError::Closed { pool: pool() },
        })?;
        Ok(Waiting {
            answer,
            arrived,
            limit,
        })
    }

    async fn answer(&self, waiting: Waiting) -> Result<Answer, DeskError> {
        let Waiting {
            answer,
            arrived,
            limit,
        } = waiting;
        // The worker keeps the deadline; the margin lets its better explained refusal win.
        let end = arrived + limit + Duration::from_millis(250);
        let outcome = tokio::time::timeout_at(end.into(), answer).await;
        self.metrics
            .seconds
            .observe(arrived.elapsed().as_secs_f64());
        let pool = || self.pool.name.clone();
        match outcome {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(DeskError::Closed { pool: pool() }),
            Err(_) => Err(DeskError::Deadline {
                pool: pool(),
                limit,
                last: None,
            }),
        }
    }
}

/// A request in the queue, as its caller sees it.
struct Waiting {
    answer: oneshot::Receiver<Result<Answer, DeskError>>,
    arrived: Instant,
    limit: Duration,
}
