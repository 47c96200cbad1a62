//! The desk's task: the only one that touches its copy of the pool.

use std::cmp::Ordering;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use berth_core::plan::Selector;
use berth_core::{Address, Answer, Moment, Pool, Release, Request};
use berth_ledger::{Backoff, LedgerError, PoolKey, Rejection, SharedLedger, Snapshot, Version};
use futures::StreamExt;
use futures::stream::BoxStream;
use tokio::sync::mpsc;

use crate::batch::{Planned, plan_tickets};
use crate::crowd::{Crowd, Meeting};
use crate::{Asker, DeskError, DeskSettings, PoolMetrics, Ticket};

/// Turns of the runtime without a new request before a commit begins.
const QUIET_TURNS: u32 = 8;

type Watch = BoxStream<'static, Result<Snapshot, LedgerError>>;

pub(crate) struct Worker {
    ledger: SharedLedger,
    pool: PoolKey,
    settings: DeskSettings,
    metrics: PoolMetrics,
    queue: mpsc::Receiver<Ticket>,
    /// The pool as this desk knows it, and when it was read. None: it has to be loaded.
    copy: Option<(Snapshot, Instant)>,
    /// Releases of what given-up requests were granted. They lead the next commit, so that an
    /// owner's own repeat never finds a grant that is about to be taken away.
    returns: Vec<Request>,
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
            returns: Vec::new(),
            crowd: Crowd::default(),
        }
    }

    pub async fn run(mut self) {
        let mut watch = self.start_watch().await;
        loop {
            let mut tickets = Vec::new();
            let limit = self.settings.batch.max(1);
            let arrived = tokio::select! {
                biased;
                count = self.queue.recv_many(&mut tickets, limit) => Some(count),
                seen = next(&mut watch) => {
                    if let Some(Ok(snapshot)) = seen {
                        self.adopt(snapshot);
                    }
                    None
                }
            };
            match arrived {
                None => continue,
                Some(0) => break,
                Some(_) => {
                    self.hold_back(&mut tickets, &mut watch).await;
                    self.turn().await;
                    self.gather(&mut tickets).await;
                    self.serve(tickets).await;
                }
            }
            if !self.returns.is_empty() {
                self.serve(Vec::new()).await;
            }
        }
    }

    /// Where writers take turns the plan waits for it: then it is made on the newest state, for all who
    /// have asked by then. As with a watch, `read_at` stays.
    async fn turn(&mut self) {
        let base = match &self.copy {
            Some((copy, _)) => copy.version.clone(),
            None => Version::default(),
        };
        let newer = self.ledger.turn(&self.pool, &base).await;
        if let (Some(newer), Some((copy, _))) = (newer, &mut self.copy) {
            *copy = newer;
        }
    }

    /// Waits if others write the pool too; those who ask meanwhile join, and the watch goes on.
    async fn hold_back(&mut self, tickets: &mut Vec<Ticket>, watch: &mut Option<Watch>) {
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
                seen = next(watch) => {
                    if let Some(Ok(snapshot)) = seen {
                        self.adopt(snapshot);
                    }
                }
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

    async fn start_watch(&self) -> Option<Watch> {
        if !self.settings.watch {
            return None;
        }
        match self.ledger.watch(&self.pool).await {
            Ok(stream) => Some(stream),
            Err(error) => {
                tracing::warn!(pool = %self.pool, %error, "can't watch the pool; its copy is loaded when needed");
                None
            }
        }
    }

    /// A watch may lag behind our own commits. An older copy would be safe (preconditions), but it
    /// costs a conflict, and after one the lowest address is no longer what is given. Even a newer
    /// one never makes an answer fresh: `read_at` stays.
    fn adopt(&mut self, snapshot: Snapshot) {
        let Some((copy, _)) = &mut self.copy else {
            return;
        };
        match snapshot.version.order(&copy.version) {
            Some(Ordering::Less) => {}
            Some(_) => *copy = snapshot,
            // It vanished, or has just been made: only the ledger knows.
            None => self.copy = None,
        }
    }

    /// Serves tickets to their end: through the common desk, and here what that did not answer.
    async fn serve(&mut self, tickets: Vec<Ticket>) {
        let left = self.put_to_common(tickets).await;
        if !left.is_empty() || !self.returns.is_empty() {
            self.serve_here(left).await;
        }
    }

    /// A batch that the ledger refuses is halved, so that one request
    /// that can't be kept does not fail the others.
    async fn serve_here(&mut self, tickets: Vec<Ticket>) {
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
        let mut requests = self.returns.clone();
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
        let returns = std::mem::take(&mut self.returns).into_iter();
        self.returns = returns
            .zip(answers.by_ref())
            .filter_map(|(request, answer)| answer.is_none().then_some(request))
            .collect();
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
            if tickets.is_empty() && (self.returns.is_empty() || last.is_some()) {
                return Ok(());
            }
            if last.is_some() {
                self.turn().await;
            }
            let step = match self.read(stale || !self.returns.is_empty()).await {
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
        let mut changes = berth_core::plan(&mut copy.pool, &self.returns, now()).changes;
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
                    self.returns.clear();
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
                    kept.extend(pending.into_iter().map(|(mut ticket, answer)| {
                        if uncertain && ticket.asker == Asker::Here {
                            ticket.unsure.extend(undoing(&ticket.request, &answer));
                        }
                        ticket
                    }));
                    kept.sort_by_key(|ticket| ticket.arrived);
                    return Err((kept, error));
                }
            }
        }
        self.returns.clear();
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
                self.returns.extend(undoing(&ticket.request, &answer));
                again.push(ticket);
            } else {
                self.answer(ticket, answer);
            }
        }
        again
    }

    fn answer(&mut self, ticket: Ticket, answer: Answer) {
        let request = ticket.request;
        if let Err(Ok(unheard)) = ticket.reply.send(Ok(answer))
            && ticket.asker == Asker::Here
        {
            self.returns.extend(undoing(&request, &unheard));
            self.returns.extend(ticket.unsure);
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
            self.returns.extend(ticket.unsure);
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
        if !self.returns.is_empty() {
            let count = self.returns.len();
            tracing::warn!(pool = %self.pool, %error, count, "addresses of cancelled requests stay held");
            self.returns.clear();
        }
    }
}

/// The next state of the watch; never, if there is none.
async fn next(watch: &mut Option<Watch>) -> Option<Result<Snapshot, LedgerError>> {
    match watch {
        Some(stream) => {
            let seen = stream.next().await;
            if seen.is_none() {
                *watch = None;
            }
            seen
        }
        None => std::future::pending().await,
    }
}

/// Whom a commit met; nothing where the server itself is in trouble.
fn meeting(committed: &Result<Version, LedgerError>) -> Option<Meeting> {
    match committed {
        Ok(version) if version.is_merged() => Some(Meeting::Others),
        Ok(_) => Some(Meeting::Nobody),
        Err(LedgerError::Conflict { .. }) => Some(Meeting::Outrun),
        Err(_) => None,
    }
}

/// Whether the owner holds another address that would have done for one that it was freshly granted.
fn is_doubled(pool: &Pool, request: &Request, answer: &Answer) -> bool {
    let (Request::Claim(claim), Answer::Granted(granted)) = (request, answer) else {
        return false;
    };
    let is_granted = |address: Address| granted.iter().any(|grant| grant.address == address);
    let others: Vec<Address> = pool
        .held_by(&claim.record.owner)
        .filter(|address| !is_granted(*address))
        .collect();
    claim.wants.iter().zip(granted).any(|(want, grant)| {
        let would_do = |address: &Address| want.space.contains(*address);
        grant.fresh && want.exact.is_none() && others.iter().any(would_do)
    })
}

/// What takes back the fresh grants of an answer that nobody heard.
fn undoing(request: &Request, unheard: &Answer) -> Vec<Request> {
    let (Request::Claim(claim), Answer::Granted(granted)) = (request, unheard) else {
        return Vec::new();
    };
    let fresh = granted.iter().filter(|grant| grant.fresh);
    fresh
        .map(|grant| {
            let holder = claim.record.clone();
            let selector = Selector::Address {
                address: grant.address,
                holder,
            };
            Request::Release(Release {
                selector,
                rest: Duration::ZERO,
            })
        })
        .collect()
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
    async fn a_lagging_watch_does_not_set_the_copy_back() {
        let (_queue, tickets) = mpsc::channel(1);
        let mut worker = Worker::new(
            Arc::new(MemoryLedger::new()),
            PoolKey::named("p"),
            DeskSettings::default(),
            DeskMetrics::default().of("p"),
            tickets,
        );
        let at = |version: &str| Snapshot {
            version: Version::new(version),
            ..Snapshot::default()
        };
        worker.copy = Some((at("10"), Instant::now()));
        for (seen, kept) in [("9", "10"), ("10", "10"), ("11", "11"), ("10", "11")] {
            worker.adopt(at(seen));
            assert_eq!(worker.copy.as_ref().unwrap().0.version.stored(), kept);
        }
        worker.adopt(at("absent"));
        assert!(worker.copy.is_none());
    }
}
