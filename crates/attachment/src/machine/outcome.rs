//! What the outcome of a call means for its items.

use std::collections::BTreeSet;

use super::{BACKOFF, Failure, Machine, Phase, STALE_AT_ONCE, Timer};
use crate::failure::Refusal;
use crate::journal::{Entry, Goal};

impl<I: Ord + Clone, F: Clone> Machine<I, F> {
    pub(super) fn applied(&mut self, outcome: Result<(), Failure<F>>) {
        let Some(mut flight) = self.flight.take() else {
            return;
        };
        let unknown = match outcome {
            Err(Failure::Unknown(_)) => true,
            // Refused before the target decided about this attempt; an earlier one may have been accepted.
            Err(Failure::Busy { .. } | Failure::Full { .. } | Failure::Blocked(_)) => flight.doubt,
            _ => false,
        };
        if unknown {
            (flight.waits, flight.doubt) = (true, true);
            self.flight = Some(flight);
            return self.pause_calls(None);
        }
        let (goal, items) = (flight.intent.goal, flight.intent.items);
        let gone = matches!(outcome, Err(Failure::Gone(_)));
        let carried_out = outcome.is_ok() || (gone && goal == Goal::Absent);
        self.next.entries.push(Entry::End {
            id: flight.intent.id,
            carried_out,
        });
        if carried_out {
            self.failures = 0;
            return items.iter().for_each(|key| self.done(key, goal));
        }
        self.back_to_pending(&items);
        match outcome {
            Ok(()) | Err(Failure::Unknown(_)) => {}
            Err(Failure::Stale(_)) => {
                self.parts.push_front((goal, items));
                self.failures = self.failures.saturating_add(1);
                if self.failures > STALE_AT_ONCE {
                    self.wait(Timer::Calls, None);
                }
            }
            Err(Failure::Busy { after, .. }) => {
                // Additions first again: whatever waits now joins them.
                self.last = Goal::Absent;
                self.pause_calls(after.map(|after| after.max(BACKOFF.0)));
            }
            Err(Failure::Full { room, error }) if goal == Goal::Present => {
                self.full(items, room, &error)
            }
            Err(Failure::Bad(error) | Failure::Full { error, .. }) => {
                self.halve(goal, items, &error)
            }
            Err(Failure::Gone(error)) => {
                let pending = self.items.keys().filter(|key| self.is_pending(key, goal));
                let pending: BTreeSet<I> = pending.cloned().collect();
                pending.iter().for_each(|key| self.fail(key, &error));
            }
            Err(Failure::Blocked(error)) => {
                self.failures = self.failures.saturating_add(1);
                items.iter().for_each(|key| self.fail(key, &error));
            }
        }
    }

    /// The item is as the call should make it.
    fn done(&mut self, key: &I, goal: Goal) {
        let Some(item) = self.items.get_mut(key) else {
            return;
        };
        match (goal, item.goal) {
            (Goal::Present, Goal::Present) => {
                item.phase = Phase::Settled;
                item.recorded = Some(Goal::Present);
                self.next.answers.append(&mut item.tickets);
            }
            (Goal::Present, Goal::Absent) => {
                item.phase = Phase::Pending;
                // Without an entry it would stay after a crash.
                if item.recorded != Some(Goal::Absent) {
                    item.recorded = Some(Goal::Absent);
                    self.next.entries.push(Entry::Absent { item: key.clone() });
                }
            }
            (Goal::Absent, Goal::Absent) => {
                item.phase = Phase::Releasing;
                self.next.releases.push(key.clone());
            }
            (Goal::Absent, Goal::Present) => {
                item.phase = Phase::Pending;
                item.recorded = None;
            }
        }
    }

    pub(super) fn back_to_pending(&mut self, items: &BTreeSet<I>) {
        for key in items {
            if let Some(item) = self
                .items
                .get_mut(key)
                .filter(|item| item.phase == Phase::InFlight)
            {
                item.phase = Phase::Pending;
            }
        }
    }

    /// Fails one item: its attaches are answered. What the journal requires is tried again later.
    pub(super) fn fail(&mut self, key: &I, error: &F) {
        let Some(item) = self.items.get_mut(key) else {
            return;
        };
        let tickets = std::mem::take(&mut item.tickets);
        let asked = !tickets.is_empty();
        for ticket in tickets {
            self.answer(ticket, Err(Refusal::Failed(error.clone())));
        }
        let Some(item) = self.items.get_mut(key) else {
            return;
        };
        match (item.goal, item.recorded) {
            (_, None) => drop(self.items.remove(key)),
            // A caller that wanted it again is refused: the recorded removal goes on.
            (Goal::Present, Some(Goal::Present)) if asked => {
                (item.goal, item.phase) = (Goal::Absent, Phase::Pending);
                item.recorded = Some(Goal::Absent);
                self.next.entries.push(Entry::Absent { item: key.clone() });
            }
            _ => {
                item.phase = Phase::HeldBack;
                self.wait(Timer::HeldBack, None);
            }
        }
    }

    /// The first `room` items are tried without the others; removals that wait come before a refusal.
    fn full(&mut self, items: BTreeSet<I>, room: Option<usize>, error: &F) {
        let leaving = self
            .items
            .keys()
            .any(|key| self.is_pending(key, Goal::Absent));
        if leaving {
            self.last = Goal::Present;
            return;
        }
        match room {
            Some(room) => {
                let (fit, rest): (Vec<_>, Vec<_>) = items
                    .into_iter()
                    .enumerate()
                    .partition(|(place, _)| *place < room);
                rest.iter().for_each(|(_, key)| self.fail(key, error));
                self.parts
                    .push_front((Goal::Present, fit.into_iter().map(|(_, key)| key).collect()));
            }
            None if items.len() > 1 => self.halve(Goal::Present, items, error),
            None => {
                // The remaining items of the same call have no room either.
                items.iter().for_each(|key| self.fail(key, error));
                for (_, part) in std::mem::take(&mut self.parts) {
                    part.iter().for_each(|key| self.fail(key, error));
                }
            }
        }
    }

    fn halve(&mut self, goal: Goal, items: BTreeSet<I>, error: &F) {
        if items.len() <= 1 {
            return items.iter().for_each(|key| self.fail(key, error));
        }
        let half = items.len() / 2;
        let mut first = items;
        let Some(middle) = first.iter().nth(half).cloned() else {
            return;
        };
        let second = first.split_off(&middle);
        self.parts.push_front((goal, second));
        self.parts.push_front((goal, first));
    }
}
