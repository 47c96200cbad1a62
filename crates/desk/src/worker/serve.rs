//! Tickets served to their end: through the common desk, else here, again and again until their time is up.
//!
//! Promises: every ticket gets an answer or a reason; an answer that nobody hears any more is taken back.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use berth_core::Answer;
use berth_ledger::{Backoff, LedgerError, Rejection};

use super::Worker;
use crate::{Asker, DeskError, Ticket};

impl Worker {
    /// Serves tickets to their end: through the common desk, and here what that did not answer.
    pub(super) async fn serve(&mut self, tickets: Vec<Ticket>) {
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
        // Without a second try the first is made on a copy of now: only a writer of this moment can fail it.
        let no_retries = self.settings.retry.retries == 0;
        let mut stale = no_retries;
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

    /// Answers with the error. What of it may be carried out yet is taken back.
    fn refuse(&mut self, tickets: Vec<Ticket>, error: LedgerError) {
        let error = Arc::new(error);
        for ticket in tickets {
            self.debts.give_up(&ticket.request);
            let refused = DeskError::Ledger(Arc::clone(&error));
            let _ = ticket.reply.send(Err(refused));
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

    pub(super) fn answer(&mut self, ticket: Ticket, answer: Answer) {
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
