//! The attachment machine (`berth_attachment::Machine`, the product's own code) against a target that keeps request ids
//! and fingerprints, in every order of events: crashes, lost calls, lost answers, a refused item, changes by hand.
//!
//! The front around it is modelled as the gcp front does it: an entry of the pool is allocated before the attach,
//! marked before the detach, and freed by the release only while it is marked.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use berth_attachment::machine::{Effect, Event, Ticket, Timer};
use berth_attachment::{Entry, Failure, Goal, Intent, IntentId, Machine, Recorded};
use stateright::{Model, Property};

type Item = u8;
type Product = Machine<Item, ()>;

/// The pool's entry of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Record {
    Free,
    /// Allocated to a pod that has no answer yet, or never gets one.
    Starting,
    /// The pod was answered and runs.
    Running,
    /// The pod's DEL marked it.
    Detaching,
}

/// A request on its way to the target.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Call {
    intent: Intent<Item>,
    /// The fingerprint that the driver read.
    version: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// None: crashed.
    machine: Option<Product>,
    journal: Recorded<Item>,
    records: BTreeMap<Item, Record>,
    waiting: BTreeMap<Ticket, (Item, Goal)>,
    // Effects under way.
    writing: Option<Vec<Entry<Item>>>,
    call: Option<Call>,
    releasing: BTreeSet<Item>,
    freed: BTreeSet<Item>,
    timers: BTreeSet<Timer>,
    /// Requests of which it is unknown whether they arrive.
    late: Vec<Call>,
    // The target.
    present: BTreeSet<Item>,
    version: u8,
    carried_out: BTreeSet<IntentId>,
    /// A call was made whose intent the journal did not have.
    unrecorded_call: bool,
    next_id: u128,
    next_ticket: u64,
    budget: Budget,
}

/// The faults and requests that may still happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Budget {
    pub adds: u8,
    pub deletes: u8,
    pub crashes: u8,
    pub losses: u8,
    pub by_hand: u8,
    pub unwritten: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    Add(Item),
    Delete(Item),
    Leave(Ticket),
    Written,
    NotWritten,
    Arrive,
    ArriveUnanswered,
    Busy,
    Lose,
    ArriveLate(usize),
    Free(Item),
    Released(Item),
    Timer(Timer),
    ChangeByHand,
    Crash { written: bool },
    Restart,
}

#[derive(Clone, Debug)]
pub struct Attachment {
    pub items: u8,
    pub budget: Budget,
    /// An item that the target refuses.
    pub bad: Option<Item>,
}

impl State {
    fn feed(&mut self, event: Event<Item, ()>) {
        let mut next = self.next_id;
        let mut ids = || {
            next += 1;
            IntentId(next)
        };
        let Some(machine) = &mut self.machine else {
            return;
        };
        let effects = machine.step(event, &mut ids);
        self.next_id = next;
        self.carry_out(effects);
    }

    fn carry_out(&mut self, effects: Vec<Effect<Item, ()>>) {
        for effect in effects {
            match effect {
                Effect::Record(entries) => self.writing = Some(entries),
                Effect::Apply(intent) => {
                    self.unrecorded_call |= self.journal.intent.as_ref() != Some(&intent);
                    let version = self.version;
                    self.call = Some(Call { intent, version });
                }
                Effect::Release { item } => drop(self.releasing.insert(item)),
                Effect::Wait { timer, .. } => drop(self.timers.insert(timer)),
                Effect::Answer { ticket, outcome } => {
                    let Some((item, goal)) = self.waiting.remove(&ticket) else {
                        continue;
                    };
                    if goal == Goal::Present && self.records[&item] == Record::Starting {
                        match outcome {
                            Ok(()) => drop(self.records.insert(item, Record::Running)),
                            // The front rolls back as DEL does.
                            Err(_) => self.delete(item),
                        }
                    }
                }
            }
        }
    }

    fn ticket(&mut self, item: Item, goal: Goal) -> Ticket {
        self.next_ticket += 1;
        let ticket = Ticket(self.next_ticket);
        self.waiting.insert(ticket, (item, goal));
        ticket
    }

    fn delete(&mut self, item: Item) {
        self.records.insert(item, Record::Detaching);
        let ticket = self.ticket(item, Goal::Absent);
        self.feed(Event::Detach { item, ticket });
    }

    /// What the target does with a request.
    fn arrive(&mut self, call: &Call, bad: Option<Item>) -> Result<(), Failure<()>> {
        if self.carried_out.contains(&call.intent.id) {
            return Ok(());
        }
        let wanted =
            |item: &Item| self.present.contains(item) == (call.intent.goal == Goal::Present);
        // The driver makes no call if everything is as desired; the fingerprint shows that it still is.
        if call.intent.items.iter().all(wanted) && call.version == self.version {
            return Ok(());
        }
        if call.version != self.version {
            return Err(Failure::Stale(()));
        }
        let adds = call.intent.goal == Goal::Present;
        if adds && bad.is_some_and(|bad| call.intent.items.contains(&bad)) {
            return Err(Failure::Bad(()));
        }
        self.version += 1;
        self.carried_out.insert(call.intent.id);
        for item in &call.intent.items {
            match adds {
                true => self.present.insert(*item),
                false => self.present.remove(item),
            };
        }
        Ok(())
    }

    fn is_quiet(&self) -> bool {
        let busy = self.writing.is_some()
            || self.call.is_some()
            || !self.releasing.is_empty()
            || !self.timers.is_empty()
            || !self.late.is_empty()
            || !self.waiting.is_empty();
        self.machine.is_some() && !busy
    }
}

impl Attachment {
    fn restart(&self, state: &mut State) {
        let mut next = state.next_id;
        let mut ids = || {
            next += 1;
            IntentId(next)
        };
        let (machine, effects) = Machine::resume(state.journal.clone(), &mut ids);
        state.next_id = next;
        // Any time: the checker decides when a timer ends.
        state.machine = Some(machine.gathering(Duration::from_millis(1)));
        state.carry_out(effects);
    }
}

impl Model for Attachment {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let mut state = State {
            machine: None,
            journal: Recorded::default(),
            records: (0..self.items).map(|item| (item, Record::Free)).collect(),
            waiting: BTreeMap::new(),
            writing: None,
            call: None,
            releasing: BTreeSet::new(),
            freed: BTreeSet::new(),
            timers: BTreeSet::new(),
            late: Vec::new(),
            present: BTreeSet::new(),
            version: 0,
            carried_out: BTreeSet::new(),
            unrecorded_call: false,
            next_id: 0,
            next_ticket: 0,
            budget: self.budget,
        };
        self.restart(&mut state);
        vec![state]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let budget = &state.budget;
        for place in 0..state.late.len() {
            actions.push(Action::ArriveLate(place));
        }
        if budget.by_hand > 0 {
            actions.push(Action::ChangeByHand);
        }
        if state.machine.is_none() {
            actions.push(Action::Restart);
            return;
        }
        for (item, record) in &state.records {
            let asked = state
                .waiting
                .values()
                .any(|(waiting, goal)| waiting == item && *goal == Goal::Present);
            if matches!(record, Record::Free | Record::Starting) && !asked && budget.adds > 0 {
                actions.push(Action::Add(*item));
            }
            // A runtime repeats a call until it has ended.
            let owed = matches!(record, Record::Starting | Record::Detaching);
            let owed = owed && !state.waiting.values().any(|(waiting, _)| waiting == item);
            if owed
                && !state
                    .machine
                    .as_ref()
                    .unwrap()
                    .absent()
                    .any(|absent| absent == item)
            {
                actions.push(Action::Delete(*item));
            }
            if *record == Record::Running && budget.deletes > 0 {
                actions.push(Action::Delete(*item));
            }
        }
        for (ticket, (_, goal)) in &state.waiting {
            if *goal == Goal::Present && budget.losses > 0 {
                actions.push(Action::Leave(*ticket));
            }
        }
        if state.writing.is_some() {
            actions.push(Action::Written);
            if budget.unwritten > 0 {
                actions.push(Action::NotWritten);
            }
        }
        if state.call.is_some() {
            actions.push(Action::Arrive);
            if budget.losses > 0 {
                actions.push(Action::ArriveUnanswered);
                actions.push(Action::Busy);
                actions.push(Action::Lose);
            }
        }
        for item in &state.releasing {
            actions.push(match state.freed.contains(item) {
                true => Action::Released(*item),
                false => Action::Free(*item),
            });
        }
        for timer in &state.timers {
            actions.push(Action::Timer(*timer));
        }
        if budget.crashes > 0 {
            actions.push(Action::Crash { written: false });
            if state.writing.is_some() {
                actions.push(Action::Crash { written: true });
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Add(item) => {
                state.budget.adds -= 1;
                state.records.insert(item, Record::Starting);
                let ticket = state.ticket(item, Goal::Present);
                state.feed(Event::Attach { item, ticket });
            }
            Action::Delete(item) => {
                if state.records[&item] == Record::Running {
                    state.budget.deletes -= 1;
                }
                state.delete(item);
            }
            Action::Leave(ticket) => {
                state.budget.losses -= 1;
                let (item, _) = state.waiting.remove(&ticket)?;
                state.feed(Event::Abandon { item, ticket });
            }
            Action::Written => {
                let entries = state.writing.take()?;
                entries.iter().for_each(|entry| state.journal.apply(entry));
                state.feed(Event::Recorded);
            }
            Action::NotWritten => {
                state.budget.unwritten -= 1;
                state.writing = None;
                state.feed(Event::RecordFailed(()));
            }
            Action::Arrive => {
                let call = state.call.take()?;
                let outcome = state.arrive(&call, self.bad);
                state.feed(Event::Applied(outcome));
            }
            Action::ArriveUnanswered => {
                state.budget.losses -= 1;
                let call = state.call.take()?;
                let _ = state.arrive(&call, self.bad);
                state.feed(Event::Applied(Err(Failure::Unknown(()))));
            }
            Action::Busy => {
                state.budget.losses -= 1;
                state.call = None;
                let (after, error) = (None, ());
                state.feed(Event::Applied(Err(Failure::Busy { after, error })));
            }
            Action::Lose => {
                state.budget.losses -= 1;
                let call = state.call.take()?;
                state.late.push(call);
                state.feed(Event::Applied(Err(Failure::Unknown(()))));
            }
            Action::ArriveLate(place) => {
                let call = state.late.remove(place);
                let _ = state.arrive(&call, self.bad);
            }
            Action::Free(item) => {
                state.freed.insert(item);
                if state.records[&item] == Record::Detaching {
                    state.records.insert(item, Record::Free);
                }
            }
            Action::Released(item) => {
                state.releasing.remove(&item);
                state.freed.remove(&item);
                state.feed(Event::Released { item, done: true });
            }
            Action::Timer(timer) => {
                state.timers.remove(&timer);
                state.feed(Event::TimerEnded(timer));
            }
            Action::ChangeByHand => {
                state.budget.by_hand -= 1;
                state.version += 1;
            }
            Action::Crash { written } => {
                state.budget.crashes -= 1;
                let entries = state.writing.take().filter(|_| written);
                entries
                    .iter()
                    .flatten()
                    .for_each(|entry| state.journal.apply(entry));
                state.late.extend(state.call.take());
                state.machine = None;
                state.releasing.clear();
                state.freed.clear();
                state.timers.clear();
                state.waiting.clear();
            }
            Action::Restart => self.restart(&mut state),
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(FREE, |_, state: &State| {
                let free = state
                    .records
                    .iter()
                    .filter(|(_, record)| **record == Record::Free);
                free.into_iter()
                    .all(|(item, _)| !state.present.contains(item))
            }),
            Property::always(RUNNING, |_, state: &State| {
                let running = state
                    .records
                    .iter()
                    .filter(|(_, record)| **record == Record::Running);
                running
                    .into_iter()
                    .all(|(item, _)| state.present.contains(item))
            }),
            Property::always(RECORDED, |_, state: &State| !state.unrecorded_call),
            Property::always(SETTLED, |model, state: &State| {
                let mut actions = Vec::new();
                model.actions(state, &mut actions);
                let owed = actions.iter().any(|action| match action {
                    Action::Delete(item) => state.records[item] != Record::Running,
                    _ => false,
                });
                if !state.is_quiet() || owed {
                    return true;
                }
                let running = state
                    .records
                    .iter()
                    .filter(|(_, record)| **record == Record::Running);
                let running: BTreeSet<Item> = running.map(|(item, _)| *item).collect();
                let unfinished = state
                    .records
                    .values()
                    .any(|record| *record == Record::Detaching);
                running == state.present && !unfinished && state.journal.intent.is_none()
            }),
            Property::sometimes(BACK, |_, state: &State| {
                let mut records = state.records.values();
                state.next_ticket > 2
                    && records.all(|record| *record == Record::Free)
                    && state.version > 1
            }),
        ]
    }
}

pub const FREE: &str = "a free item is not present (I1)";
pub const RUNNING: &str = "an answered item is present (I2)";
pub const RECORDED: &str = "an intent is recorded before its call (I9)";
pub const SETTLED: &str = "when nothing is under way, desired and observed agree";
pub const BACK: &str = "items were attached and are all free again";
