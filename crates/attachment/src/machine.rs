//! Desired against observed for one target: events in, effects out, no clock and no I/O.
//!
//! ```text
//!  attach ─► pending ─► in flight ─► settled            present
//!  detach ─► pending ─► in flight ─► releasing ─► (forgotten)   absent
//!                 ▲         │ failed
//!                 └─ held back, or halved
//! ```
//! A round is one call of additions, then one of removals. A detach is answered when it is recorded; an attach when the
//! call that adds it was carried out. After a crash [`Machine::resume`] repeats the open intent under its id before
//! anything else.

mod outcome;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use crate::failure::{Failure, Refusal};
use crate::journal::{Entry, Goal, Intent, IntentId, Recorded};

/// Who waits for an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// Which pause is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Timer {
    /// No call is made before it ends.
    Calls,
    /// Items that failed alone are tried again when it ends.
    HeldBack,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Event<I: Ord, F> {
    Attach {
        item: I,
        ticket: Ticket,
    },
    Detach {
        item: I,
        ticket: Ticket,
    },
    /// The caller of the attach has left: the item has to be detached.
    Abandon {
        item: I,
        ticket: Ticket,
    },
    /// Every item that should be present is compared with the target again.
    Resync,
    /// The entries of the last [`Effect::Record`] are durable.
    Recorded,
    RecordFailed(F),
    /// The last [`Effect::Apply`] has ended.
    Applied(Result<(), Failure<F>>),
    /// The front has released the item, or failed to.
    Released {
        item: I,
        done: bool,
    },
    TimerEnded(Timer),
}

/// What has to be done.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Effect<I: Ord, F> {
    /// Make these durable. At most one is under way.
    Record(Vec<Entry<I>>),
    /// Make the call. Its intent is durable. At most one is under way.
    Apply(Intent<I>),
    /// The item is absent: the front releases it.
    Release {
        item: I,
    },
    Answer {
        ticket: Ticket,
        outcome: Result<(), Refusal<F>>,
    },
    Wait {
        timer: Timer,
        after: Duration,
    },
}

/// Where an item is on its way to its goal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Pending,
    InFlight,
    /// Failed alone; waits for [`Timer::HeldBack`].
    HeldBack,
    /// Present, as far as is known.
    Settled,
    /// Absent; the front releases it.
    Releasing,
    /// Absent; the front failed to release it and tries again after [`Timer::HeldBack`].
    ReleaseHeldBack,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Item {
    goal: Goal,
    phase: Phase,
    /// What the journal says, entries that are not durable yet included.
    recorded: Option<Goal>,
    /// Attaches that wait for this item.
    tickets: Vec<Ticket>,
}

/// The call that is under way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Flight<I: Ord> {
    intent: Intent<I>,
    /// The outcome of a try was lost: the next one waits for the timer.
    waits: bool,
    /// An earlier try may still be carried out: only an answer to this very intent ends it.
    doubt: bool,
}

/// What waits for the journal.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Writing<I: Ord> {
    entries: Vec<Entry<I>>,
    /// What follows when the entries are durable: answers, releases, a call. A crash before that loses all of them
    /// together.
    answers: Vec<Ticket>,
    releases: Vec<I>,
    call: Option<IntentId>,
}

impl<I: Ord> Default for Writing<I> {
    fn default() -> Self {
        Writing {
            entries: Vec::new(),
            answers: Vec::new(),
            releases: Vec::new(),
            call: None,
        }
    }
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Machine<I: Ord, F> {
    items: BTreeMap<I, Item>,
    flight: Option<Flight<I>>,
    /// Parts of a call that failed, to be made one by one.
    parts: VecDeque<(Goal, BTreeSet<I>)>,
    next: Writing<I>,
    writing: Option<Writing<I>>,
    /// The goal of the last call: rounds alternate.
    last: Goal,
    calls_wait: bool,
    held_back_wait: bool,
    /// How long what arrives is gathered before a call.
    gather: Duration,
    /// It was gathered for the next call.
    gathered: bool,
    failures: u32,
    effects: Vec<Effect<I, F>>,
}

/// Pauses grow from the first to the second.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(30));
/// A target that keeps changing is read again at once this many times.
const STALE_AT_ONCE: u32 = 3;

impl<I: Ord + Clone, F: Clone> Machine<I, F> {
    /// Resumes what was recorded: the open intent first; everything that should be present is compared again.
    pub fn resume(
        recorded: Recorded<I>,
        ids: &mut dyn FnMut() -> IntentId,
    ) -> (Self, Vec<Effect<I, F>>) {
        let mut machine = Machine {
            items: BTreeMap::new(),
            flight: None,
            parts: VecDeque::new(),
            next: Writing::default(),
            writing: None,
            last: Goal::Absent,
            calls_wait: false,
            held_back_wait: false,
            gather: Duration::ZERO,
            gathered: false,
            failures: 0,
            effects: Vec::new(),
        };
        let mut add = |item: &I, goal, recorded| {
            let phase = Phase::Pending;
            let tickets = Vec::new();
            let entry = machine.items.entry(item.clone());
            entry.or_insert(Item {
                goal,
                phase,
                recorded,
                tickets,
            });
        };
        recorded
            .present
            .iter()
            .for_each(|item| add(item, Goal::Present, Some(Goal::Present)));
        recorded
            .absent
            .iter()
            .for_each(|item| add(item, Goal::Absent, Some(Goal::Absent)));
        if let Some(intent) = recorded.intent {
            // The caller of an addition had no answer: unless it asks again, the item is removed.
            intent
                .items
                .iter()
                .for_each(|item| add(item, Goal::Absent, None));
            machine.send(intent);
        }
        machine.advance(ids);
        let effects = std::mem::take(&mut machine.effects);
        (machine, effects)
    }

    /// Gathers what arrives within that time into one call, where a call costs far more than that. The journal does not
    /// wait for it.
    pub fn gathering(mut self, time: Duration) -> Self {
        self.gather = time;
        self
    }

    /// One step. `ids` names a new intent.
    pub fn step(
        &mut self,
        event: Event<I, F>,
        ids: &mut dyn FnMut() -> IntentId,
    ) -> Vec<Effect<I, F>> {
        match event {
            Event::Attach { item, ticket } => self.attach(item, ticket),
            Event::Detach { item, ticket } => self.detach(item, Some(ticket)),
            Event::Abandon { item, ticket } => self.abandon(item, ticket),
            Event::Resync => self.resync(),
            Event::Recorded => self.recorded(),
            Event::RecordFailed(error) => self.record_failed(&error),
            Event::Applied(outcome) => self.applied(outcome),
            Event::Released { item, done } => self.released(item, done),
            Event::TimerEnded(timer) => self.timer_ended(timer),
        }
        self.advance(ids);
        std::mem::take(&mut self.effects)
    }

    /// Nothing is under way and nothing is left to do.
    pub fn is_idle(&self) -> bool {
        let settled = |item: &Item| item.phase == Phase::Settled;
        self.flight.is_none() && self.writing.is_none() && self.items.values().all(settled)
    }

    /// What should be present, and whether it is as far as is known.
    pub fn present(&self) -> impl Iterator<Item = (&I, bool)> {
        let wanted = self
            .items
            .iter()
            .filter(|(_, item)| item.goal == Goal::Present);
        wanted.map(|(key, item)| (key, item.phase == Phase::Settled))
    }

    /// What has to become absent and is not released yet.
    pub fn absent(&self) -> impl Iterator<Item = &I> {
        let leaving = self
            .items
            .iter()
            .filter(|(_, item)| item.goal == Goal::Absent);
        leaving.map(|(key, _)| key)
    }

    /// Calls that failed in a row.
    pub fn failures(&self) -> u32 {
        self.failures
    }

    fn attach(&mut self, key: I, ticket: Ticket) {
        let item = self.items.entry(key.clone()).or_insert(Item {
            goal: Goal::Present,
            phase: Phase::Pending,
            recorded: None,
            tickets: Vec::new(),
        });
        if item.goal == Goal::Present && item.phase == Phase::Settled {
            return self.answer_when_durable(ticket);
        }
        item.tickets.push(ticket);
        let released = matches!(item.phase, Phase::Releasing | Phase::ReleaseHeldBack);
        // One that is being released is lost for this caller: it is answered when that is done.
        if item.goal == Goal::Absent && !released {
            item.goal = Goal::Present;
            if item.phase == Phase::HeldBack {
                item.phase = Phase::Pending;
            }
            if item.recorded == Some(Goal::Absent) {
                item.recorded = Some(Goal::Present);
                self.next.entries.push(Entry::Present { item: key });
            }
        }
    }

    fn detach(&mut self, key: I, ticket: Option<Ticket>) {
        let item = self.items.entry(key.clone()).or_insert(Item {
            goal: Goal::Absent,
            phase: Phase::Pending,
            recorded: None,
            tickets: Vec::new(),
        });
        item.goal = Goal::Absent;
        if matches!(item.phase, Phase::Settled | Phase::HeldBack) {
            item.phase = Phase::Pending;
        }
        let released = matches!(item.phase, Phase::Releasing | Phase::ReleaseHeldBack);
        let waiting = if released {
            Vec::new()
        } else {
            std::mem::take(&mut item.tickets)
        };
        if item.recorded != Some(Goal::Absent) {
            item.recorded = Some(Goal::Absent);
            self.next.entries.push(Entry::Absent { item: key });
        }
        waiting
            .into_iter()
            .for_each(|waiting| self.answer(waiting, Err(Refusal::Superseded)));
        if let Some(ticket) = ticket {
            self.answer_when_durable(ticket);
        }
    }

    /// What is being written, or is about to be, may concern the item: the answer comes after it.
    fn answer_when_durable(&mut self, ticket: Ticket) {
        match &mut self.writing {
            _ if !self.next.entries.is_empty() => self.next.answers.push(ticket),
            Some(writing) => writing.answers.push(ticket),
            None => self.answer(ticket, Ok(())),
        }
    }

    fn abandon(&mut self, key: I, ticket: Ticket) {
        let Some(item) = self.items.get_mut(&key) else {
            return;
        };
        let writing = self.writing.as_mut().map(|writing| &mut writing.answers);
        let lists = [
            Some(&mut item.tickets),
            Some(&mut self.next.answers),
            writing,
        ];
        let mut found = false;
        for list in lists.into_iter().flatten() {
            let before = list.len();
            list.retain(|waiting| *waiting != ticket);
            found |= list.len() < before;
        }
        if found && item.tickets.is_empty() && item.goal == Goal::Present {
            self.detach(key, None);
        }
    }

    fn resync(&mut self) {
        for item in self.items.values_mut() {
            if item.phase == Phase::Settled {
                item.phase = Phase::Pending;
            }
        }
    }

    fn recorded(&mut self) {
        let Some(writing) = self.writing.take() else {
            return;
        };
        for ticket in writing.answers {
            self.answer(ticket, Ok(()));
        }
        let releases = writing.releases.into_iter();
        self.effects
            .extend(releases.map(|item| Effect::Release { item }));
        let flight = self.flight.as_ref();
        if let Some(flight) = flight.filter(|flight| Some(flight.intent.id) == writing.call) {
            self.effects.push(Effect::Apply(flight.intent.clone()));
        }
    }

    /// The write failed: its callers get the error, and the outside call is not made.
    fn record_failed(&mut self, error: &F) {
        let Some(mut writing) = self.writing.take() else {
            return;
        };
        let failed = || Err(Refusal::Failed(error.clone()));
        writing
            .answers
            .drain(..)
            .for_each(|ticket| self.answer(ticket, failed()));
        if let Some(flight) = self
            .flight
            .take_if(|flight| Some(flight.intent.id) == writing.call)
        {
            writing
                .entries
                .retain(|entry| !matches!(entry, Entry::Begin(_)));
            self.back_to_pending(&flight.intent.items);
            for key in &flight.intent.items {
                self.fail(key, error);
            }
        }
        // The other entries are the machine's own state: they are written with the next entries.
        writing.entries.append(&mut self.next.entries);
        self.next.entries = writing.entries;
        self.next.releases.append(&mut writing.releases);
        self.pause_calls(None);
    }

    fn released(&mut self, key: I, done: bool) {
        let Some(item) = self
            .items
            .get_mut(&key)
            .filter(|item| item.phase == Phase::Releasing)
        else {
            return;
        };
        if !done {
            item.phase = Phase::ReleaseHeldBack;
            return self.wait(Timer::HeldBack, None);
        }
        let waiting = std::mem::take(&mut item.tickets);
        waiting
            .into_iter()
            .for_each(|ticket| self.answer(ticket, Err(Refusal::Superseded)));
        self.items.remove(&key);
        self.next.entries.push(Entry::Forget { item: key });
    }

    fn timer_ended(&mut self, timer: Timer) {
        match timer {
            Timer::HeldBack => {
                self.held_back_wait = false;
                for (key, item) in &mut self.items {
                    match item.phase {
                        Phase::HeldBack => item.phase = Phase::Pending,
                        Phase::ReleaseHeldBack => {
                            item.phase = Phase::Releasing;
                            self.effects.push(Effect::Release { item: key.clone() });
                        }
                        _ => {}
                    }
                }
            }
            Timer::Calls => {
                self.calls_wait = false;
                if let Some(flight) = self.flight.as_mut().filter(|flight| flight.waits) {
                    flight.waits = false;
                    self.effects.push(Effect::Apply(flight.intent.clone()));
                }
            }
        }
    }

    /// Starts the next call, if none is under way, and writes what is to be written.
    fn advance(&mut self, ids: &mut dyn FnMut() -> IntentId) {
        if self.writing.is_some() {
            return;
        }
        if self.flight.is_none() && !self.calls_wait && self.has_to_gather() {
            self.gathered = true;
            self.wait(Timer::Calls, Some(self.gather));
        }
        if self.flight.is_none()
            && !self.calls_wait
            && let Some((goal, items)) = self.next_batch()
        {
            self.gathered = false;
            let intent = Intent {
                id: ids(),
                goal,
                items,
            };
            self.next.entries.push(Entry::Begin(intent.clone()));
            self.next.call = Some(intent.id);
            self.mark_in_flight(&intent);
            self.flight = Some(Flight {
                intent,
                waits: false,
                doubt: false,
            });
        }
        // A journal that fails is not asked again before the pause is over, unless a caller waits for it.
        let asked = !self.next.answers.is_empty() || self.next.call.is_some();
        if !self.next.entries.is_empty() && (asked || !self.calls_wait) {
            let writing = std::mem::take(&mut self.next);
            self.effects.push(Effect::Record(writing.entries.clone()));
            self.writing = Some(writing);
        }
    }

    fn has_to_gather(&self) -> bool {
        let pending = |item: &Item| item.phase == Phase::Pending;
        let wanted = !self.gather.is_zero() && !self.gathered && self.parts.is_empty();
        wanted && self.items.values().any(pending)
    }

    fn next_batch(&mut self) -> Option<(Goal, BTreeSet<I>)> {
        while let Some((goal, mut items)) = self.parts.pop_front() {
            items.retain(|key| self.is_pending(key, goal));
            if !items.is_empty() {
                return Some((goal, items));
            }
        }
        let first = match self.last {
            Goal::Absent => [Goal::Present, Goal::Absent],
            Goal::Present => [Goal::Absent, Goal::Present],
        };
        first.into_iter().find_map(|goal| {
            let keys = self.items.keys().filter(|key| self.is_pending(key, goal));
            let batch: BTreeSet<I> = keys.cloned().collect();
            (!batch.is_empty()).then_some((goal, batch))
        })
    }

    fn is_pending(&self, key: &I, goal: Goal) -> bool {
        let item = self.items.get(key);
        item.is_some_and(|item| item.phase == Phase::Pending && item.goal == goal)
    }

    /// Repeats an intent that a former process recorded.
    fn send(&mut self, intent: Intent<I>) {
        self.mark_in_flight(&intent);
        self.effects.push(Effect::Apply(intent.clone()));
        self.flight = Some(Flight {
            intent,
            waits: false,
            doubt: true,
        });
    }

    fn mark_in_flight(&mut self, intent: &Intent<I>) {
        self.last = intent.goal;
        for key in &intent.items {
            if let Some(item) = self.items.get_mut(key) {
                item.phase = Phase::InFlight;
            }
        }
    }

    fn answer(&mut self, ticket: Ticket, outcome: Result<(), Refusal<F>>) {
        self.effects.push(Effect::Answer { ticket, outcome });
    }

    fn pause_calls(&mut self, after: Option<Duration>) {
        self.failures = self.failures.saturating_add(1);
        self.wait(Timer::Calls, after);
    }

    fn wait(&mut self, timer: Timer, after: Option<Duration>) {
        let waits = match timer {
            Timer::Calls => &mut self.calls_wait,
            Timer::HeldBack => &mut self.held_back_wait,
        };
        if !std::mem::replace(waits, true) {
            let (first, most) = BACKOFF;
            let doubled = first.saturating_mul(1 << self.failures.min(8));
            let after = after
                .unwrap_or(doubled)
                .min(most.max(after.unwrap_or_default()));
            self.effects.push(Effect::Wait { timer, after });
        }
    }
}
