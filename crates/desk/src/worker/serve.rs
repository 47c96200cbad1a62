//! Tickets served to their end: through the leader's desk, else here, again and again until their time is up.
//!
//! Guarantees: every ticket gets an answer or a reason; a grant that its caller does not receive is undone.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use berth_core::plan::Selector;
use berth_core::{Answer, Handle, Release, Request};
use berth_ledger::{Backoff, LedgerError, Rejection};

use super::Worker;
use crate::{DeskError, Origin, Reply, Route, Ticket};

impl Worker {
    /// Serves tickets to their end: through the leader's desk, and here what that did not answer.
    pub(super) async fn serve(&mut self, tickets: Vec<Ticket>) {
        let left = self.put_to_leader(tickets).await;
        if !left.is_empty() || self.undo.has_pending() {
            self.serve_here(left).await;
        }
    }

    /// A batch that the ledger refuses is halved, so that one request
    /// that can't be kept does not fail the others.
    async fn serve_here(&mut self, tickets: Vec<Ticket>) {
        if self.settings.leader.is_some() {
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
                        ticket.refuse(DeskError::Ledger(Arc::clone(&error)));
                    }
                }
            }
        }
    }

    /// Answers finds, all from one read.
    pub(super) async fn answer_finds(&mut self, finds: Vec<Ticket>) {
        let finds = self.drop_expired(finds, None);
        if finds.is_empty() {
            return;
        }
        if let Err(error) = self.read(true).await {
            self.copy = None;
            let error = Arc::new(error);
            for ticket in finds {
                ticket.refuse(DeskError::Ledger(Arc::clone(&error)));
            }
            return;
        }
        let pool = self.copy.as_ref().map(|(copy, _)| &copy.pool);
        for ticket in finds {
            let (Reply::Found(reply), Some(handle)) = (ticket.reply, handle(&ticket.request))
            else {
                continue;
            };
            let held = pool.into_iter().flat_map(|pool| pool.held_under(handle));
            let held = held.map(|(address, record)| (address, record.clone()));
            let _ = reply.send(Ok(held.collect()));
        }
    }

    /// Asks the leader's desk, for what is to be undone first: an owner's own repeat must not find it.
    /// Returns the tickets that it did not answer.
    async fn put_to_leader(&mut self, tickets: Vec<Ticket>) -> Vec<Ticket> {
        let Some(leader) = self.settings.leader.clone() else {
            return tickets;
        };
        let tickets = self.drop_expired(tickets, None);
        let (tickets, mut left_here): (Vec<_>, Vec<_>) = tickets
            .into_iter()
            .partition(|ticket| ticket.route == Route::LeaderFirst);
        let soonest = tickets.iter().map(|ticket| ticket.deadline).min();
        let left = soonest.map(|end| end.saturating_duration_since(Instant::now()));
        let limit = left.map_or(self.settings.leader_timeout, |left| {
            left.min(self.settings.leader_timeout)
        });
        let mut requests = self.undo.pending().to_vec();
        requests.extend(tickets.iter().map(|ticket| ticket.request.clone()));
        if requests.is_empty() {
            return left_here;
        }
        // Others write this pool in any case: an older copy is of no use.
        self.copy = None;
        let answers = match leader.put(&self.pool, &requests, limit).await {
            Ok(answers) if answers.len() == requests.len() => answers,
            Ok(answers) => {
                let (got, put) = (answers.len(), requests.len());
                tracing::warn!(pool = %self.pool, got, put, "the leader's desk sent another number of answers");
                left_here.extend(tickets);
                return left_here;
            }
            Err(away) => {
                self.metrics.alone.inc_by(tickets.len() as u64);
                tracing::debug!(pool = %self.pool, %away, "served here");
                left_here.extend(tickets);
                return left_here;
            }
        };
        let mut answers = answers.into_iter();
        let undone = self.undo.pending().iter().zip(answers.by_ref());
        let pending = undone.filter(|(_, answer)| answer.is_none());
        let pending = pending.map(|(request, _)| request.clone()).collect();
        self.undo.keep(pending);
        let mut unanswered = 0;
        for (ticket, answer) in tickets.into_iter().zip(answers) {
            match answer {
                Some(answer) => {
                    self.metrics.by_leader.inc();
                    self.answer(ticket, answer);
                }
                None => {
                    unanswered += 1;
                    left_here.push(ticket);
                }
            }
        }
        self.metrics.alone.inc_by(unanswered);
        left_here
    }

    async fn serve_batch(
        &mut self,
        mut tickets: Vec<Ticket>,
    ) -> Result<(), (Vec<Ticket>, LedgerError)> {
        let mut backoff = self.settings.retry.start();
        let mut conflicts = 0;
        // Without a second try the first is made on a copy of now: only a writer of this moment can fail it.
        let no_retries = self.settings.retry.retries == 0;
        let mut stale = no_retries;
        let mut last: Option<Arc<LedgerError>> = None;
        loop {
            tickets = self.drop_expired(tickets, last.as_ref());
            if tickets.is_empty() && (!self.undo.has_pending() || last.is_some()) {
                return Ok(());
            }
            if last.is_some() {
                self.turn().await;
            }
            let step = match self.read(stale || self.undo.has_pending()).await {
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
                        self.drop_undo(&error);
                        return Err((tickets, error));
                    }
                    if matches!(error, LedgerError::Conflict { .. }) {
                        conflicts += 1;
                        self.metrics.conflicts.inc();
                    } else if !no_retries {
                        self.metrics.retries.inc();
                    }
                    if no_retries {
                        self.refuse(tickets, error);
                        return Ok(());
                    }
                    self.pause(&mut backoff, &error, &tickets).await;
                    last = Some(Arc::new(error));
                }
            }
        }
    }

    /// Answers with the error. What of it may be carried out yet is undone.
    fn refuse(&mut self, tickets: Vec<Ticket>, error: LedgerError) {
        let error = Arc::new(error);
        for ticket in tickets {
            self.undo.abandon(&ticket.request);
            ticket.refuse(DeskError::Ledger(Arc::clone(&error)));
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
            .max(self.backoff.draw());
        let latest = tickets.iter().map(|ticket| ticket.deadline).max();
        let left = latest.map(|end| end.saturating_duration_since(Instant::now()));
        tokio::time::sleep(pause.min(left.unwrap_or_default())).await;
    }

    pub(super) fn answer(&mut self, ticket: Ticket, answer: Answer) {
        let Reply::Answer(reply) = ticket.reply else {
            return;
        };
        if ticket.origin == Origin::OtherProcess {
            let _ = reply.send(Ok(answer));
            return;
        }
        let sent = answer.clone();
        match reply.send(Ok(answer)) {
            Ok(()) => self.undo.confirm(&ticket.request, &sent),
            Err(_) => {
                tracing::debug!(pool = %self.pool, answer = ?sent, "its caller has gone: it is undone");
                self.undo.undo(&ticket.request, &sent);
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
            if !ticket.is_over(now) {
                kept.push(ticket);
                continue;
            }
            self.undo.abandon(&ticket.request);
            let limit = ticket.deadline.duration_since(ticket.arrived);
            let pool = self.pool.name.clone();
            let late = DeskError::Deadline {
                pool,
                limit,
                last: last.cloned(),
            };
            ticket.refuse(late);
        }
        kept
    }

    /// A ledger that refuses for good keeps the addresses until garbage collection has proof.
    fn drop_undo(&mut self, error: &LedgerError) {
        let count = self.undo.drop_pending();
        if count > 0 {
            tracing::warn!(pool = %self.pool, %error, count, "addresses of cancelled requests stay held until their pods are gone");
        }
    }
}

/// The handle that a release names.
const fn handle(request: &Request) -> Option<&Handle> {
    match request {
        Request::Release(Release {
            selector: Selector::Handle { handle, .. },
            ..
        }) => Some(handle),
        _ => None,
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
