//! One desk per pool and process: requests that wait go into one commit.
//!
//! ```text
//!   requests ->| queue |-> plan all that wait -> one commit -> answer all
//!                  ^ arrive while a commit is under way; the next one takes them together
//! ```
//!
//! Guarantees:
//! - a request is answered only when the answer is durable (I2): after the commit, or, if nothing had to be
//!   changed, from a state that was read after the request arrived;
//! - after a conflict the pool is loaded and planned again, with a random choice that separates the writers that collided;
//! - the queue is bounded, every request has a deadline, and one whose caller gave up leaves nothing behind: what it was
//!   granted is released before anything else is planned, and what may yet be granted when that is known;
//! - one request that a ledger refuses does not fail the others of its batch;
//! - where there is a leader's desk, it is asked first; what it does not answer is served here.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod batch;
mod contention_backoff;
mod leader_desk;
mod metrics;
mod registry;
mod ticket;
mod undo_queue;
mod worker;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use berth_core::plan::{Scope, Selector};
use berth_core::{Address, Answer, Handle, Record, Release, Request};
use berth_ledger::{LedgerError, PoolKey, RetryPolicy, SharedLedger};
use thiserror::Error;
use tokio::sync::{mpsc, oneshot};

pub use leader_desk::{LeaderAway, LeaderDesk};
pub use metrics::{DeskMetrics, PoolMetrics};
pub use registry::Desks;
pub(crate) use ticket::{Origin, Reply, Route, Ticket};

#[derive(Clone, Debug)]
pub struct DeskSettings {
    /// How many requests may wait.
    pub queue: usize,
    /// How many go into one commit.
    pub batch: usize,
    pub retry: RetryPolicy,
    /// The least time between two commits: requests that arrive meanwhile go into the next one. A request that finds the desk idle is
    /// committed at once.
    pub linger: Duration,
    /// Whether it watches the pool for writes of others, and reads it before it plans on a copy that they outdated. Without
    /// a watch the copy is loaded when it turns out to be old.
    pub watch: bool,
    /// Whether it delays its commits after conflicts with other writers of the pool. For ledgers without a write queue.
    pub hold_back: bool,
    /// The leader's desk, if there is one.
    pub leader: Option<Arc<dyn LeaderDesk>>,
    /// How long an answer of the leader's desk is waited for before the request is served here.
    pub leader_timeout: Duration,
}

impl Default for DeskSettings {
    fn default() -> Self {
        Self {
            queue: 4096,
            batch: 1024,
            retry: RetryPolicy::default(),
            linger: Duration::ZERO,
            watch: false,
            hold_back: false,
            leader: None,
            leader_timeout: Duration::from_secs(5),
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

/// A handle to a pool's desk. Clones share it; the last one to go ends it, after what waits.
#[derive(Clone, Debug)]
pub struct Desk {
    pool: PoolKey,
    queue: mpsc::Sender<Ticket>,
    timeout: Duration,
    metrics: PoolMetrics,
    /// The worker waits for requests and has nothing to undo.
    idle: Arc<AtomicBool>,
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
        let idle = Arc::<AtomicBool>::default();
        let worker = worker::Worker::new(
            ledger,
            pool.clone(),
            settings.clone(),
            metrics.clone(),
            tickets,
            Arc::clone(&idle),
        );
        tokio::spawn(worker.run());
        Self {
            pool,
            queue,
            timeout: settings.retry.timeout,
            metrics,
            idle,
        }
    }

    /// Whether it waits for requests and has nothing to undo.
    pub(crate) fn is_idle(&self) -> bool {
        self.idle.load(Ordering::Acquire)
    }

    /// Whether there is no other handle to this desk, nothing waits in it, and it has nothing to undo.
    pub(crate) fn is_unused(&self) -> bool {
        // In this order: with no other sender, nothing more can come into the queue.
        self.queue.strong_count() == 1
            && self.queue.capacity() == self.queue.max_capacity()
            && self.is_idle()
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
        let (reply, answer) = oneshot::channel();
        let ticket = Ticket::new(request, limit, Reply::Answer(reply));
        let waiting = self.enqueue(ticket, answer)?;
        self.wait(waiting).await
    }

    /// The same without the leader's desk, for records of other nodes: that takes those from their own node alone.
    pub async fn submit_here(&self, request: Request) -> Result<Answer, DeskError> {
        let (reply, answer) = oneshot::channel();
        let ticket = Ticket {
            route: Route::Here,
            ..Ticket::new(request, self.timeout, Reply::Answer(reply))
        };
        let waiting = self.enqueue(ticket, answer)?;
        self.wait(waiting).await
    }

    /// What is held under the handle: read after the call, when no commit for that handle that this desk has started is
    /// under way or in doubt. Nothing that was started here before can change it later.
    pub async fn find(&self, handle: &Handle) -> Result<Vec<(Address, Record)>, DeskError> {
        let release = Request::Release(Release {
            selector: Selector::Handle {
                handle: handle.clone(),
                part: None,
            },
            cooldown: Duration::ZERO,
        });
        let (reply, found) = oneshot::channel();
        let ticket = Ticket::new(release, self.timeout, Reply::Found(reply));
        let waiting = self.enqueue(ticket, found)?;
        self.wait(waiting).await
    }

    /// Puts requests of another process in their order and waits for their answers. What is granted stays granted, whether
    /// the answer is received or not: that process may see it in the ledger.
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
        let enqueue = |request| {
            let (reply, answer) = oneshot::channel();
            let ticket = Ticket {
                origin: Origin::OtherProcess,
                scope: scope.clone(),
                ..Ticket::new(request, limit, Reply::Answer(reply))
            };
            self.enqueue(ticket, answer)
        };
        let waiting: Vec<_> = requests.into_iter().map(enqueue).collect();
        let mut answers = Vec::with_capacity(waiting.len());
        for ticket in waiting {
            answers.push(match ticket {
                Ok(ticket) => self.wait(ticket).await,
                Err(error) => Err(error),
            });
        }
        answers
    }

    fn enqueue<T>(
        &self,
        ticket: Ticket,
        answer: oneshot::Receiver<Result<T, DeskError>>,
    ) -> Result<Waiting<T>, DeskError> {
        let pool = || self.pool.name.clone();
        let waiting = Waiting {
            answer,
            arrived: ticket.arrived,
            deadline: ticket.deadline,
        };
        self.metrics.requests.inc();
        self.queue.try_send(ticket).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => DeskError::Busy {
                pool: pool(),
                waiting: self.queue.max_capacity(),
            },
            mpsc::error::TrySendError::Closed(_) => DeskError::Closed { pool: pool() },
        })?;
        Ok(waiting)
    }

    async fn wait<T>(&self, waiting: Waiting<T>) -> Result<T, DeskError> {
        let Waiting {
            answer,
            arrived,
            deadline,
        } = waiting;
        // The worker keeps the deadline; the margin lets its better explained refusal win.
        let end = deadline + Duration::from_millis(250);
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
                limit: deadline.duration_since(arrived),
                last: None,
            }),
        }
    }
}

/// A request in the queue, as its caller sees it.
struct Waiting<T> {
    answer: oneshot::Receiver<Result<T, DeskError>>,
    arrived: Instant,
    deadline: Instant,
}
