//! The desk's task: the only one that touches its copy of the pool.

use std::cmp::Ordering;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use berth_core::{Answer, Moment};
use berth_ledger::{Backoff, LedgerError, PoolKey, Rejection, SharedLedger, Snapshot, Version};
use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt};
use tokio::sync::mpsc;

use crate::batch::{Planned, is_doubled, plan_tickets};
use crate::crowd::{Crowd, meeting};
use crate::debts::Debts;
use crate::{Asker, DeskError, DeskSettings, Errand, PoolMetrics, Ticket};

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
}

impl Worker {
    pub fn new(
        ledger: SharedLedger,
        pool: PoolKey,
        settings: DeskSettings,
        metrics: PoolMetrics,
        queue: mpsc::Receiver<Ticket>,
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
        }
    }

    pub async fn run(mut self) {
        let mut news = self.start_news().await;
        loop {
            let mut tickets = Vec::new();
            let limit = self.settings.batch.max(1);
            let wake = self.wake();
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
            self.ledger.pass_turn(&self.pool);
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
        let turn = self.ledger.turn(&self.pool, &base).await;
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
        match self.ledger.news(&self.pool).await {
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

    /// Serves tickets to their end: through the common desk, and here what that did not answer.
    async fn serve(&mut self, tickets: Vec<Ticket>) {
        let left = self.put_to_common(tickets).await;
        if !left.is_empty() || self.debts.is_due() {
            self.serve_here(left).await;
        }
    }

    /// A batch that the ledger refuses is halved, so that one request
    /// that can't be kept does not fail the others.
    async fn serve_here(&mut self, tickets: Vec<Ticket>) {
        if self.settings.common.is_some() {
            self.turn().await;
        }
        let mut batches = VecDeque::from([tickets]);
        while let Some(batch) = batches.pop_front() {
            if let Err((mut tickets, error)) = self.serve_batch(batch).await {
                if tickets.len() > 1 && is_about_content(&error) {
                    let second = tickets.split_off(tickets.len() / 2);
                    batches.push_front(second);
                    batches.push_front(tickets);
                } else {
                    let error = Arc::new(error);
                    for ticket in tickets {
                        let _ = ticket
                            .reply
                            .send(Err(DeskError::Ledger(Arc::clone(&error))));
                    }
                }
            }
        }
    }

    /// Asks the common desk, returns first: an owner's own repeat must not find what is about to be taken away.
    /// Gives back the tickets that it did not answer.
    async fn put_to_common(&mut self, tickets: Vec<Ticket>) -> Vec<Ticket> {
        let Some(common) = self.settings.common.clone() else {
            return tickets;
        };
        let tickets = self.drop_expired(tickets, None);
        let soonest = tickets.iter().map(|ticket| ticket.deadline).min();
        let left = soonest.map(|end| end.saturating_duration_since(Instant::now()));
        let limit = left.map_or(self.settings.common_patience, |left| {
            left.min(self.settings.common_patience)
        });
        let mut requests = self.debts.due().to_vec();
        requests.extend(tickets.iter().map(|ticket| ticket.request.clone()));
        if requests.is_empty() {
            return tickets;
        }
        // Whatever comes of it, others write this pool: a copy of before is worth nothing.
        self.copy = None;
        let answers = match common.put(&self.pool, &requests, limit).await {
            Ok(answers) if answers.len() == requests.len() => answers,
            Ok(answers) => {
                let (got, put) = (answers.len(), requests.len());
                tracing::warn!(pool = %self.pool, got, put, "the common desk answered another question");
                return tickets;
            }
            Err(away) => {
                self.metrics.alone.inc_by(tickets.len() as u64);
                tracing::debug!(pool = %self.pool, %away, "served here");
                return tickets;
            }
        };
        let mut answers = answers.into_iter();
        let due = self.debts.due().iter().zip(answers.by_ref());
        let unpaid = due.filter(|(_, answer)| answer.is_none());
        let unpaid = unpaid.map(|(request, _)| request.clone()).collect();
        self.debts.leave(unpaid);
        let mut unanswered = Vec::new();
        for (ticket, answer) in tickets.into_iter().zip(answers) {
            match answer {
                Some(answer) => {
                    self.metrics.common.inc();
                    self.answer(ticket, answer);
                }
                None => unanswered.push(ticket),
            }
        }
        self.metrics.alone.inc_by(unanswered.len() as u64);
        unanswered
    }

    async fn serve_batch(
        &mut self,
        mut tickets: Vec<Ticket>,
    ) -> Result<(), (Vec<Ticket>, LedgerError)> {
        let mut backoff = self.settings.retry.start();
        let mut conflicts = 0;
        let mut stale = false;
        let mut last: Option<Arc<LedgerError>> = None;
        loop {
            tickets = self.drop_expired(tickets, last.as_ref());
            if tickets.is_empty() && (!self.debts.is_due() || last.is_some()) {
                return Ok(());
            }
            if last.is_some() {
                self.turn().await;
            }
            let step = match self.read(stale || self.debts.is_due()).await {
                Ok(()) => self.plan_and_commit(tickets, conflicts).await,
                Err(error) => Err((tickets, error)),
            };
            match step {
                Ok(doubtful) if doubtful.is_empty() => return Ok(()),
                Ok(doubtful) => {
                    tickets = doubtful;
                    stale = true;
                }
                Err((kept, error)) => {
                    tickets = kept;
                    // What the plan did to the copy was not committed.
                    self.copy = None;
                    if !error.needs_reload() && !error.is_passing() {
                        self.abandon_returns(&error);
                        return Err((tickets, error));
                    }
                    if matches!(error, LedgerError::Conflict { .. }) {
                        conflicts += 1;
                        self.metrics.conflicts.inc();
                    } else {
                        self.metrics.retries.inc();
                    }
                    self.pause(&mut backoff, &error, &tickets).await;
                    last = Some(Arc::new(error));
                }
            }
        }
    }

    /// Waits before the next try. When the policy's tries are used up, the tickets wait out their
    /// deadlines at the longest pause: giving up earlier would only move the retry to the caller.
    async fn pause(&self, backoff: &mut Backoff, error: &LedgerError, tickets: &[Ticket]) {
        let retry_after = match error {
            LedgerError::Unavailable { retry_after, .. } => *retry_after,
            _ => None,
        };
        let pause = backoff
            .pause(retry_after)
            .unwrap_or(self.settings.retry.max)
            .max(self.crowd.draw());
        let latest = tickets.iter().map(|ticket| ticket.deadline).max();
        let left = latest.map(|end| end.saturating_duration_since(Instant::now()));
        tokio::time::sleep(pause.min(left.unwrap_or_default())).await;
    }

    /// Loads the pool if there is no copy; with `stale` makes sure that the copy is of now.
    async fn read(&mut self, stale: bool) -> Result<(), LedgerError> {
        let now = Instant::now();
        match &mut self.copy {
            Some((copy, read_at)) if stale => {
                if let Some(newer) = self.ledger.refresh(&self.pool, &copy.version).await? {
                    *copy = newer;
                }
                *read_at = now;
            }
            Some(_) => {}
            None => self.copy = Some((self.ledger.load(&self.pool).await?, now)),
        }
        Ok(())
    }

    /// Plans, commits and answers. Returns the tickets whose answer needs a fresher copy.
    async fn plan_and_commit(
        &mut self,
        tickets: Vec<Ticket>,
        conflicts: u32,
    ) -> Result<Vec<Ticket>, (Vec<Ticket>, LedgerError)> {
        let Some((copy, read_at)) = &mut self.copy else {
            return Ok(tickets);
        };
        let mut changes = berth_core::plan(&mut copy.pool, self.debts.due(), now()).changes;
        let planned = plan_tickets(&mut copy.pool, tickets, *read_at, conflicts, now());
        let Planned {
            changes: asked,
            pending,
            settled,
            doubtful,
        } = planned;
        changes.extend(asked);
        let base = copy.version.clone();
        if !changes.is_empty() {
            self.metrics.batch.observe(pending.len() as f64);
            self.metrics.commits.inc();
            let began = Instant::now();
            let committed = self.ledger.commit(&self.pool, &base, &changes).await;
            if self.settings.apart
                && let Some(meeting) = meeting(&committed)
            {
                self.crowd.learn(meeting, began.elapsed());
            }
            match committed {
                Ok(version) if version.is_merged() => {
                    self.debts.paid(&changes);
                    let again = self.after_others(pending).await;
                    for (ticket, answer) in settled {
                        self.answer(ticket, answer);
                    }
                    return Ok([doubtful, again].into_iter().flatten().collect());
                }
                Ok(version) => copy.version = version,
                Err(error) => {
                    let uncertain = matches!(error, LedgerError::Uncertain { .. });
                    let mut kept = doubtful;
                    kept.extend(settled.into_iter().map(|(ticket, _)| ticket));
                    let until = Instant::now() + self.ledger.in_doubt(&self.pool);
                    kept.extend(pending.into_iter().map(|(ticket, answer)| {
                        if uncertain && ticket.asker == Asker::Here {
                            tracing::debug!(pool = %self.pool, %error, ?answer, "it may come yet");
                            self.debts.doubt(&ticket.request, &answer, until);
                        }
                        ticket
                    }));
                    kept.sort_by_key(|ticket| ticket.arrived);
                    return Err((kept, error));
                }
            }
        }
        self.debts.paid(&changes);
        for (ticket, answer) in settled.into_iter().chain(pending) {
            self.answer(ticket, answer);
        }
        Ok(doubtful)
    }

    /// Others wrote between the read and the commit: the copy lacks that. A commit tests the address, not the
    /// owner, so one of them may have served the same owner elsewhere (I3): what was given here is then taken
    /// back, and the ticket planned again, which finds what the owner has. Answers the others.
    async fn after_others(&mut self, pending: Vec<(Ticket, Answer)>) -> Vec<Ticket> {
        self.copy = None;
        if let Err(error) = self.read(false).await {
            tracing::debug!(pool = %self.pool, %error, "what others wrote can't be seen");
        }
        let mut again = Vec::new();
        for (ticket, answer) in pending {
            let pool = self.copy.as_ref().map(|(copy, _)| &copy.pool);
            if pool.is_some_and(|pool| is_doubled(pool, &ticket.request, &answer)) {
                self.debts.owe(&ticket.request, &answer);
                again.push(ticket);
            } else {
                self.answer(ticket, answer);
            }
        }
        again
    }

    fn answer(&mut self, ticket: Ticket, answer: Answer) {
        if ticket.asker == Asker::Elsewhere {
            let _ = ticket.reply.send(Ok(answer));
            return;
        }
        let told = answer.clone();
        match ticket.reply.send(Ok(answer)) {
            Ok(()) => self.debts.settle(&ticket.request, &told),
            Err(_) => {
                tracing::debug!(pool = %self.pool, answer = ?told, "nobody heard it: it is taken back");
                self.debts.owe(&ticket.request, &told);
            }
        }
    }

    /// Tickets whose time is up, or whose caller has gone, are answered without being planned.
    fn drop_expired(
        &mut self,
        tickets: Vec<Ticket>,
        last: Option<&Arc<LedgerError>>,
    ) -> Vec<Ticket> {
        let now = Instant::now();
        let mut kept = Vec::with_capacity(tickets.len());
        for ticket in tickets {
            if ticket.deadline > now && !ticket.reply.is_closed() {
                kept.push(ticket);
                continue;
            }
            self.debts.give_up(&ticket.request);
            let limit = ticket.deadline.duration_since(ticket.arrived);
            let pool = self.pool.name.clone();
            let late = DeskError::Deadline {
                pool,
                limit,
                last: last.cloned(),
            };
            let _ = ticket.reply.send(Err(late));
        }
        kept
    }

    /// A ledger that refuses for good keeps the addresses until garbage collection has proof.
    fn abandon_returns(&mut self, error: &LedgerError) {
        let count = self.debts.write_off();
        if count > 0 {
            tracing::warn!(pool = %self.pool, %error, count, "addresses of cancelled requests stay held");
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

/// Refusals that concern what was to be written; a smaller write may pass.
const fn is_about_content(error: &LedgerError) -> bool {
    matches!(
        error,
        LedgerError::Full { .. }
            | LedgerError::Moved { .. }
            | LedgerError::Rejected {
                rejection: Rejection::Invalid { .. },
                ..
            }
    )
}

fn now() -> Moment {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    Moment(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
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
