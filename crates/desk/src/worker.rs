//! The desk's task: the only one that touches its copy of the pool. Here: which tickets are served when, and together.

mod commit;
mod serve;

use std::cmp::Ordering;
use std::sync::Arc;
use std::sync::atomic::{self, AtomicBool};
use std::time::{Duration, Instant};

use berth_ledger::{LedgerError, PoolKey, SharedLedger, Snapshot, Version};
use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt};
use tokio::sync::mpsc;

use crate::contention_backoff::ContentionBackoff;
use crate::undo_queue::UndoQueue;
use crate::{DeskSettings, PoolMetrics, Ticket};

/// Turns of the runtime without a new request before a commit begins.
const QUIET_TURNS: u32 = 8;

type Versions = BoxStream<'static, Result<Version, LedgerError>>;

pub(crate) struct Worker {
    ledger: SharedLedger,
    pool: PoolKey,
    settings: DeskSettings,
    metrics: PoolMetrics,
    queue: mpsc::Receiver<Ticket>,
    /// The pool as this desk knows it, and when it was read. None: it has to be loaded.
    copy: Option<(Snapshot, Instant)>,
    undo: UndoQueue,
    /// Releases and finds that wait for commits whose outcome is unknown.
    deferred: Vec<Ticket>,
    backoff: ContentionBackoff,
    /// When the last commit ended.
    committed: Option<Instant>,
    /// Read by the registry, which may close this desk: it waits for requests and has nothing to undo.
    idle: Arc<AtomicBool>,
}

impl Worker {
    pub fn new(
        ledger: SharedLedger,
        pool: PoolKey,
        settings: DeskSettings,
        metrics: PoolMetrics,
        queue: mpsc::Receiver<Ticket>,
        idle: Arc<AtomicBool>,
    ) -> Self {
        Self {
            ledger,
            pool,
            settings,
            metrics,
            queue,
            copy: None,
            undo: UndoQueue::default(),
            deferred: Vec::new(),
            backoff: ContentionBackoff::default(),
            committed: None,
            idle,
        }
    }

    fn set_idle(&self, waits: bool) {
        let idle = waits && self.deferred.is_empty() && self.undo.is_empty();
        self.idle.store(idle, atomic::Ordering::Release);
    }

    pub async fn run(mut self) {
        let mut versions = self.start_watch().await;
        loop {
            let mut tickets = Vec::new();
            let limit = self.settings.batch.max(1);
            let wake = self.wake();
            self.set_idle(true);
            tokio::select! {
                biased;
                count = self.queue.recv_many(&mut tickets, limit) => if count == 0 {
                    break;
                },
                seen = next(&mut versions) => {
                    self.outdate(seen);
                    continue;
                }
                () = at(wake) => {}
            }
            self.set_idle(false);
            let mut tickets = self.ready(tickets).await;
            if tickets.is_empty() && !self.undo.has_pending() {
                continue;
            }
            self.linger(&mut tickets, &mut versions).await;
            // Where there is a leader, its desk is asked first: this one waits for no turn before that has not answered.
            if self.settings.leader.is_none() && !self.turn().await {
                self.hold_back(&mut tickets, &mut versions).await;
            }
            self.gather(&mut tickets).await;
            while let Some(seen) = next(&mut versions).now_or_never() {
                self.outdate(seen);
            }
            let tickets = self.ready(tickets).await;
            self.serve(tickets).await;
            if self.undo.has_pending() {
                self.serve(Vec::new()).await;
            }
            self.undo.retry_after(self.settings.retry.max);
            if let Some(contention) = self.ledger.contention(&self.pool) {
                contention.pass_turn(&self.pool);
            }
        }
        if self.undo.has_pending() {
            self.serve(Vec::new()).await;
        }
    }

    /// Those that can be served now, of these and of those that had to wait. Finds are answered here: they commit nothing,
    /// and wait for no turn.
    async fn ready(&mut self, tickets: Vec<Ticket>) -> Vec<Ticket> {
        self.undo.expire_doubts(Instant::now());
        let deferred = std::mem::take(&mut self.deferred);
        let mut ready = Vec::with_capacity(tickets.len());
        let mut finds = Vec::new();
        for ticket in deferred.into_iter().chain(tickets) {
            if self.must_wait(&ticket) {
                self.deferred.push(ticket);
            } else if ticket.is_find() {
                finds.push(ticket);
            } else {
                ready.push(ticket);
            }
        }
        if !finds.is_empty() {
            self.answer_finds(finds).await;
        }
        ready
    }

    /// A release or a find waits while a commit of the same holder is in doubt: it could be carried out after the answer
    /// that nothing is held. What is to be undone leads every commit, so that only a find has to wait for it.
    fn must_wait(&self, ticket: &Ticket) -> bool {
        self.undo.is_doubtful(&ticket.request)
            || ticket.is_find() && self.undo.concerns(&ticket.request)
    }

    /// When to go on without a request.
    fn wake(&self) -> Option<Instant> {
        let waits = |ticket: &Ticket| self.must_wait(ticket);
        if self.deferred.iter().all(waits) {
            self.undo.next_wake()
        } else {
            Some(Instant::now())
        }
    }

    /// Where writers take turns the plan waits for one: then it is made on the newest state, for all requests that came
    /// until then. Whether there are turns.
    async fn turn(&mut self) -> bool {
        let base = match &self.copy {
            Some((copy, _)) => copy.version.clone(),
            None => Version::default(),
        };
        let Some(contention) = self.ledger.contention(&self.pool) else {
            return false;
        };
        let turn = contention.turn(&self.pool, &base).await;
        if let (Some(newer), Some((copy, _))) = (turn.newer, &mut self.copy) {
            // Read for a plan, and not for the answers of requests that came meanwhile: `read_at` stays.
            *copy = newer;
        }
        turn.taken
    }

    /// Waits if others write the pool too, without turns; requests that come meanwhile join.
    async fn hold_back(&mut self, tickets: &mut Vec<Ticket>, versions: &mut Option<Versions>) {
        let wait = self.backoff.draw();
        self.wait(wait, tickets, versions).await;
    }

    /// Waits until the last commit is long enough ago; requests that come meanwhile join.
    async fn linger(&mut self, tickets: &mut Vec<Ticket>, versions: &mut Option<Versions>) {
        if let Some(committed) = self.committed {
            let left = self.settings.linger.saturating_sub(committed.elapsed());
            self.wait(left, tickets, versions).await;
        }
    }

    async fn wait(
        &mut self,
        wait: Duration,
        tickets: &mut Vec<Ticket>,
        versions: &mut Option<Versions>,
    ) {
        if wait.is_zero() {
            return;
        }
        let limit = self.settings.batch.max(1);
        let end = tokio::time::sleep(wait);
        tokio::pin!(end);
        loop {
            tokio::select! {
                () = &mut end => return,
                count = self.queue.recv_many(tickets, limit) => {
                    if count == 0 || tickets.len() >= limit {
                        return;
                    }
                }
                seen = next(versions) => self.outdate(seen),
            }
        }
    }

    /// Collects requests that are about to come. The answers of a commit wake all callers that waited for it; the first
    /// one to ask again would get a commit of its own, and all the others wait for that one. Ends when the runtime has
    /// run its tasks without a new request: a lone request waits microseconds.
    async fn gather(&mut self, tickets: &mut Vec<Ticket>) {
        let limit = self.settings.batch.max(1);
        let mut quiet = 0;
        while tickets.len() < limit && quiet < QUIET_TURNS {
            tokio::task::yield_now().await;
            let before = tickets.len();
            while tickets.len() < limit
                && let Ok(ticket) = self.queue.try_recv()
            {
                tickets.push(ticket);
            }
            quiet = if tickets.len() == before {
                quiet + 1
            } else {
                0
            };
        }
    }

    async fn start_watch(&self) -> Option<Versions> {
        if !self.settings.watch {
            return None;
        }
        match self.ledger.watch_versions(&self.pool).await {
            Ok(stream) => Some(stream),
            Err(error) => {
                tracing::warn!(pool = %self.pool, %error, "the pool can't be watched; its copy is loaded when it turns out to be old");
                None
            }
        }
    }

    /// A copy that others have outdated is read again when it is needed: planning on it would be safe (preconditions), but it
    /// costs a conflict, and after one the lowest address is no longer what is allocated. The watch may lag behind our own
    /// commits.
    fn outdate(&mut self, seen: Option<Result<Version, LedgerError>>) {
        let (Some(Ok(seen)), Some((copy, _))) = (seen, &self.copy) else {
            return;
        };
        // Not to be compared: it vanished, or has just been made. Only the ledger knows.
        if !matches!(
            seen.order(&copy.version),
            Some(Ordering::Less | Ordering::Equal)
        ) {
            self.copy = None;
        }
    }
}

/// At that time; never, if there is none.
async fn at(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time.into()).await,
        None => std::future::pending().await,
    }
}

/// The next version; never, if the pool is not watched.
async fn next(versions: &mut Option<Versions>) -> Option<Result<Version, LedgerError>> {
    match versions {
        Some(stream) => {
            let seen = stream.next().await;
            if seen.is_none() {
                *versions = None;
            }
            seen
        }
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use berth_ledger::MemoryLedger;

    use super::*;
    use crate::DeskMetrics;

    #[tokio::test]
    async fn only_a_newer_version_outdates_the_copy() {
        let (_queue, tickets) = mpsc::channel(1);
        let mut worker = Worker::new(
            Arc::new(MemoryLedger::new()),
            PoolKey::named("p"),
            DeskSettings::default(),
            DeskMetrics::default().of("p"),
            tickets,
            Arc::default(),
        );
        for (seen, kept) in [("9", true), ("10", true), ("11", false), ("absent", false)] {
            let copy = Snapshot {
                version: Version::new("10"),
                ..Snapshot::default()
            };
            worker.copy = Some((copy, Instant::now()));
            worker.outdate(Some(Ok(Version::new(seen))));
            assert_eq!(worker.copy.is_some(), kept, "{seen}");
        }
    }
}
