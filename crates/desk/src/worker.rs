//! The desk's task: the only one that touches its copy of the pool. Here: who is served when, and with whom.

mod commit;
mod serve;

use std::cmp::Ordering;
use std::sync::Arc;
use std::sync::atomic::{self, AtomicBool};
use std::time::Instant;

use berth_core::Answer;
use berth_ledger::{LedgerError, PoolKey, SharedLedger, Snapshot, Version};
use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt};
use tokio::sync::mpsc;

use crate::crowd::Crowd;
use crate::debts::Debts;
use crate::{DeskSettings, Errand, PoolMetrics, Ticket};

/// Turns of the runtime without a new request before a commit begins.
const QUIET_TURNS: u32 = 8;

type News = BoxStream<'static, Result<Version, LedgerError>>;

pub(crate) struct Worker {
    ledger: SharedLedger,
    pool: PoolKey,
    settings: DeskSettings,
    metrics: PoolMetrics,
    queue: mpsc::Receiver<Ticket>,
    /// The pool as this desk knows it, and when it was read. None: it has to be loaded.
    copy: Option<(Snapshot, Instant)>,
    debts: Debts,
    /// Releases that wait for commits whose outcome is unknown.
    deferred: Vec<Ticket>,
    crowd: Crowd,
    /// Told to who may close this desk: it waits for requests and owes nothing.
    settled: Arc<AtomicBool>,
}

impl Worker {
    pub fn new(
        ledger: SharedLedger,
        pool: PoolKey,
        settings: DeskSettings,
        metrics: PoolMetrics,
        queue: mpsc::Receiver<Ticket>,
        settled: Arc<AtomicBool>,
    ) -> Self {
        Self {
            ledger,
            pool,
            settings,
            metrics,
            queue,
            copy: None,
            debts: Debts::default(),
            deferred: Vec::new(),
            crowd: Crowd::default(),
            settled,
        }
    }

    fn tell_settled(&self, waits: bool) {
        let settled = waits && self.deferred.is_empty() && self.debts.is_empty();
        self.settled.store(settled, atomic::Ordering::Release);
    }

    pub async fn run(mut self) {
        let mut news = self.start_news().await;
        loop {
            let mut tickets = Vec::new();
            let limit = self.settings.batch.max(1);
            let wake = self.wake();
            self.tell_settled(true);
            tokio::select! {
                biased;
                count = self.queue.recv_many(&mut tickets, limit) => if count == 0 {
                    break;
                },
                heard = next(&mut news) => {
                    self.hear(heard);
                    continue;
                }
                () = at(wake) => {}
            }
            self.tell_settled(false);
            let mut tickets = self.ready(tickets);
            if tickets.is_empty() && !self.debts.is_due() {
                continue;
            }
            // With a common desk, nobody is waited for before that has not answered.
            if self.settings.common.is_none() && !self.turn().await {
                self.hold_back(&mut tickets, &mut news).await;
            }
            self.gather(&mut tickets).await;
            while let Some(heard) = next(&mut news).now_or_never() {
                self.hear(heard);
            }
            let tickets = self.ready(tickets);
            self.serve(tickets).await;
            if self.debts.is_due() {
                self.serve(Vec::new()).await;
            }
            self.debts.later(self.settings.retry.max);
            if let Some(contention) = self.ledger.contention(&self.pool) {
                contention.pass_turn(&self.pool);
            }
        }
        if self.debts.is_due() {
            self.serve(Vec::new()).await;
        }
    }

    /// Those that can be served now, of these and of those that had to wait.
    fn ready(&mut self, tickets: Vec<Ticket>) -> Vec<Ticket> {
        self.debts.ripen(Instant::now());
        let deferred = std::mem::take(&mut self.deferred);
        let mut ready = Vec::with_capacity(tickets.len());
        for ticket in deferred.into_iter().chain(tickets) {
            if self.must_wait(&ticket) {
                self.deferred.push(ticket);
            } else if ticket.errand == Errand::Settle {
                let _ = ticket.reply.send(Ok(Answer::Released(Vec::new())));
            } else {
                ready.push(ticket);
            }
        }
        ready
    }

    /// A release waits while a commit of the same holder is in doubt: it could be carried out after the answer that
    /// nothing is held. What is due leads every commit, so that only who commits nothing has to wait for it.
    fn must_wait(&self, ticket: &Ticket) -> bool {
        let settles = ticket.errand == Errand::Settle;
        self.debts.doubtful(&ticket.request) || settles && self.debts.owing(&ticket.request)
    }

    /// When to look again though nobody asks.
    fn wake(&self) -> Option<Instant> {
        let waits = |ticket: &Ticket| self.must_wait(ticket);
        if self.deferred.iter().all(waits) {
            self.debts.wake()
        } else {
            Some(Instant::now())
        }
    }

    /// Where writers take turns the plan waits for it: then it is made on the newest state, for all who
    /// have asked by then. Whether there are turns.
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
            // Read for a plan, and not for the answers of those who have asked meanwhile: `read_at` stays.
            *copy = newer;
        }
        turn.taken
    }

    /// Waits if others write the pool too, without turns; those who ask meanwhile join.
    async fn hold_back(&mut self, tickets: &mut Vec<Ticket>, news: &mut Option<News>) {
        let wait = self.crowd.draw();
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
                heard = next(news) => self.hear(heard),
            }
        }
    }

    /// Lets those who are about to ask do so. The answers of a commit wake everyone who waited for it;
    /// the first to ask again would get a commit of his own, and all the others wait for that one.
    /// Ends when a turn of the runtime brings nobody: a lone request waits microseconds.
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

    async fn start_news(&self) -> Option<News> {
        if !self.settings.watch {
            return None;
        }
        match self.ledger.watch_versions(&self.pool).await {
            Ok(stream) => Some(stream),
            Err(error) => {
                tracing::warn!(pool = %self.pool, %error, "can't hear of writes to the pool; its copy is loaded when it turns out to be old");
                None
            }
        }
    }

    /// A copy that others have outdated is read again when it is needed: planning on it would be safe (preconditions), but it
    /// costs a conflict, and after one the lowest address is no longer what is given. News may lag behind our own
    /// commits.
    fn hear(&mut self, heard: Option<Result<Version, LedgerError>>) {
        let (Some(Ok(heard)), Some((copy, _))) = (heard, &self.copy) else {
            return;
        };
        // Not to be compared: it vanished, or has just been made. Only the ledger knows.
        if !matches!(
            heard.order(&copy.version),
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

/// The next news; never, if there are none to be had.
async fn next(news: &mut Option<News>) -> Option<Result<Version, LedgerError>> {
    match news {
        Some(stream) => {
            let heard = stream.next().await;
            if heard.is_none() {
                *news = None;
            }
            heard
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
    async fn only_news_outdate_the_copy() {
        let (_queue, tickets) = mpsc::channel(1);
        let mut worker = Worker::new(
            Arc::new(MemoryLedger::new()),
            PoolKey::named("p"),
            DeskSettings::default(),
            DeskMetrics::default().of("p"),
            tickets,
            Arc::default(),
        );
        for (heard, kept) in [("9", true), ("10", true), ("11", false), ("absent", false)] {
            let copy = Snapshot {
                version: Version::new("10"),
                ..Snapshot::default()
            };
            worker.copy = Some((copy, Instant::now()));
            worker.hear(Some(Ok(Version::new(heard))));
            assert_eq!(worker.copy.is_some(), kept, "{heard}");
        }
    }
}
