//! One try: the copy read, all tickets planned on it, one commit.
//!
//! Guarantees: a ticket is answered when its answer is durable (I2), and never with an address beside one that the same
//! owner got elsewhere meanwhile (I3).

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use berth_core::{Answer, Moment};
use berth_ledger::LedgerError;

use super::Worker;
use crate::batch::{Planned, is_doubled, plan_tickets};
use crate::contention_backoff::meeting;
use crate::{DeskError, Origin, Ticket};

impl Worker {
    /// Loads the pool if there is no copy; with `stale` makes sure that the copy is of now.
    pub(super) async fn read(&mut self, stale: bool) -> Result<(), LedgerError> {
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
    pub(super) async fn plan_and_commit(
        &mut self,
        tickets: Vec<Ticket>,
        conflicts: u32,
    ) -> Result<Vec<Ticket>, (Vec<Ticket>, LedgerError)> {
        let Some((copy, read_at)) = &mut self.copy else {
            return Ok(tickets);
        };
        let mut changes = berth_core::plan(&mut copy.pool, self.undo.pending(), now()).changes;
        let planned = plan_tickets(&mut copy.pool, tickets, *read_at, conflicts, now());
        let Planned {
            changes: asked,
            pending,
            settled,
            doubtful,
            foreign,
        } = planned;
        for (ticket, address, held) in foreign {
            let refused = DeskError::Foreign {
                pool: self.pool.name.clone(),
                address,
                held: Box::new(held),
            };
            ticket.refuse(refused);
        }
        changes.extend(asked);
        let base = copy.version.clone();
        if !changes.is_empty() {
            self.metrics.batch.observe(pending.len() as f64);
            self.metrics.commits.inc();
            let began = Instant::now();
            let committed = self.ledger.commit(&self.pool, &base, &changes, None).await;
            self.committed = Some(Instant::now());
            if self.settings.hold_back
                && let Some(meeting) = meeting(&committed)
            {
                self.backoff.learn(meeting, began.elapsed());
            }
            match committed {
                Ok(version) if version.is_merged() => {
                    self.undo.done(&changes);
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
                    // Zero where it has been carried out or never will be by now.
                    let delay = self.ledger.contention(&self.pool);
                    let delay = delay.map(|known| known.max_commit_delay(&self.pool));
                    let until = Instant::now() + delay.unwrap_or_default();
                    kept.extend(pending.into_iter().map(|(ticket, answer)| {
                        if uncertain && ticket.origin == Origin::ThisProcess {
                            tracing::debug!(pool = %self.pool, %error, ?answer, "its outcome is unknown");
                            self.undo.doubt(&ticket.request, &answer, until);
                        }
                        ticket
                    }));
                    kept.sort_by_key(|ticket| ticket.arrived);
                    return Err((kept, error));
                }
            }
        }
        self.undo.done(&changes);
        for (ticket, answer) in settled.into_iter().chain(pending) {
            self.answer(ticket, answer);
        }
        Ok(doubtful)
    }

    /// Others wrote between the read and the commit: the copy lacks that. A commit tests the address, not the owner, so one
    /// of them may have served the same owner elsewhere (I3): what was allocated here is then undone, and the ticket planned
    /// again, which finds what the owner has. Answers the others.
    async fn after_others(&mut self, pending: Vec<(Ticket, Answer)>) -> Vec<Ticket> {
        self.copy = None;
        if let Err(error) = self.read(false).await {
            tracing::debug!(pool = %self.pool, %error, "what others wrote can't be read");
        }
        let mut again = Vec::new();
        for (ticket, answer) in pending {
            let pool = self.copy.as_ref().map(|(copy, _)| &copy.pool);
            if pool.is_some_and(|pool| is_doubled(pool, &ticket.request, &answer)) {
                self.undo.undo(&ticket.request, &answer);
                again.push(ticket);
            } else {
                self.answer(ticket, answer);
            }
        }
        again
    }
}

fn now() -> Moment {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    Moment(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}
