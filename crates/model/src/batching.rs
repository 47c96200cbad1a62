//! Moves of two addresses between the same two VMs, whose calls go out together (`berth_gcp::migrate::group` and
//! `machine`, the product's own code), in every order: two executors, crashes, lost answers, requests that arrive late,
//! and a request that is refused.

use std::net::Ipv4Addr;

use berth_attachment::{Goal, IntentId};
use berth_gcp::migrate::group::{Share, request_id, share, take};
use berth_gcp::migrate::machine::{Call, Move, Next, Outcome, Phase, Winner};
use stateright::{Model, Property};

type Node = usize;
/// Which of the two addresses.
type Item = usize;

const ITEMS: usize = 2;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Record {
    version: u8,
    owner: Node,
    step: Option<Move<Node>>,
}

/// A call that waits to be sent, and the version of its record.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Waiting {
    item: Item,
    version: u8,
    step: Move<Node>,
    call: Call<Node>,
}

/// A request on its way to the cloud.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Sent {
    id: IntentId,
    node: Node,
    goal: Goal,
    items: Vec<Item>,
    fingerprint: u8,
}

/// What an executor is in the middle of. In memory: a crash forgets it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Executor {
    waiting: Vec<Waiting>,
    /// Grouped into one request; the fingerprint was read.
    taken: Option<(Vec<Waiting>, u8)>,
    sent: Option<(Vec<Waiting>, Sent)>,
    /// Calls of a refused request, each repeated on its own.
    alone: Vec<Waiting>,
    /// Changes of records that are about to be made.
    deciding: Vec<(Item, u8, Next<Node>)>,
}

impl Executor {
    fn is_at(&self, item: Item) -> bool {
        let of = |waiting: &Waiting| waiting.item == item;
        self.waiting.iter().any(of)
            || self.alone.iter().any(of)
            || self.taken.iter().any(|(all, _)| all.iter().any(of))
            || self.sent.iter().any(|(all, _)| all.iter().any(of))
            || self.deciding.iter().any(|(at, ..)| *at == item)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Nic {
    there: [bool; ITEMS],
    fingerprint: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    records: Vec<Record>,
    executors: Vec<Executor>,
    late: Vec<Sent>,
    nics: Vec<Nic>,
    carried_out: Vec<IntentId>,
    /// A request has changed two addresses.
    shared: bool,
    next_id: u32,
    budget: Budget,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Budget {
    pub crashes: u8,
    pub losses: u8,
    pub refusals: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    Plan(usize, Item),
    Take(usize),
    TakeAlone(usize),
    Send(usize),
    Answer(usize),
    Refuse(usize),
    Lose { executor: usize, arrives: bool },
    Decide(usize),
    Crash(usize),
    ArriveLate(usize),
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Batching {
    pub executors: usize,
    pub budget: Budget,
    /// Whether the records are read again after the fingerprint, as the product does.
    pub checks: bool,
    /// How many intents may be drawn before a run is cut off; an undisturbed run needs four.
    pub intents: u32,
}

impl State {
    /// A bit of its own: no two requests of several calls have the same id.
    fn id(&self) -> IntentId {
        IntentId(1 << self.next_id)
    }

    fn count(&mut self, id: IntentId, next: &Next<Node>) {
        if let Next::Record(Phase::Detaching(of) | Phase::Attaching(of) | Phase::Returning(of)) =
            next
        {
            self.next_id += u32::from(*of == id);
        }
    }

    fn arrive(&mut self, sent: &Sent) -> Outcome {
        if self.carried_out.contains(&sent.id) {
            return Outcome::Done;
        }
        let wanted = sent.goal == Goal::Present;
        let elsewhere =
            self.nics.iter().enumerate().any(|(node, nic)| {
                node != sent.node && sent.items.iter().any(|item| nic.there[*item])
            });
        let nic = &mut self.nics[sent.node];
        if nic.fingerprint != sent.fingerprint {
            return Outcome::Again;
        }
        if wanted && elsewhere {
            return Outcome::Refused;
        }
        for item in &sent.items {
            nic.there[*item] = wanted;
        }
        nic.fingerprint += 1;
        self.carried_out.push(sent.id);
        self.shared |= sent.items.len() > 1;
        Outcome::Done
    }

    /// The result of the request for each of its calls.
    fn share_out(&mut self, executor: usize, calls: Vec<Waiting>, outcome: Outcome) {
        let count = calls.len();
        for waiting in calls {
            match share(outcome, count) {
                Share::Alone => self.executors[executor].alone.push(waiting),
                Share::Ended(outcome) => {
                    let id = self.id();
                    if let Some(next) = waiting.step.after(outcome, id) {
                        self.count(id, &next);
                        let decision = (waiting.item, waiting.version, next);
                        self.executors[executor].deciding.push(decision);
                    }
                }
            }
        }
    }

    fn read(&mut self, executor: usize, calls: Vec<Waiting>) -> Option<()> {
        let node = calls.first()?.call.node;
        let fingerprint = self.nics[node].fingerprint;
        self.executors[executor].taken = Some((calls, fingerprint));
        Some(())
    }

    fn is_quiet(&self) -> bool {
        self.late.is_empty()
            && self.records.iter().all(|record| record.step.is_none())
            && self.executors.iter().all(|one| *one == Executor::default())
    }
}

impl Model for Batching {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let record = |item: Item| Record {
            version: 0,
            owner: 0,
            step: Some(Move {
                address: Ipv4Addr::new(10, 111, 0, 5 + u8::from(item > 0)),
                source: 0,
                destination: 1,
                phase: Phase::Reserved,
            }),
        };
        let nic = |there| Nic {
            there: [there; ITEMS],
            fingerprint: 0,
        };
        vec![State {
            records: (0..ITEMS).map(record).collect(),
            executors: vec![Executor::default(); self.executors],
            late: Vec::new(),
            nics: vec![nic(true), nic(false)],
            carried_out: Vec::new(),
            shared: false,
            next_id: 0,
            budget: self.budget,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (executor, one) in state.executors.iter().enumerate() {
            for (item, record) in state.records.iter().enumerate() {
                if record.step.is_some() && !one.is_at(item) {
                    actions.push(Action::Plan(executor, item));
                }
            }
            let free = one.taken.is_none() && one.sent.is_none();
            if free && !one.alone.is_empty() {
                actions.push(Action::TakeAlone(executor));
            } else if free && !one.waiting.is_empty() {
                actions.push(Action::Take(executor));
            }
            if one.taken.is_some() {
                actions.push(Action::Send(executor));
            }
            if one.sent.is_some() {
                actions.push(Action::Answer(executor));
                if state.budget.refusals > 0 {
                    actions.push(Action::Refuse(executor));
                }
                if state.budget.losses > 0 {
                    for arrives in [true, false] {
                        actions.push(Action::Lose { executor, arrives });
                    }
                }
            }
            if !one.deciding.is_empty() {
                actions.push(Action::Decide(executor));
            }
            if *one != Executor::default() && state.budget.crashes > 0 {
                actions.push(Action::Crash(executor));
            }
        }
        actions.extend((0..state.late.len()).map(Action::ArriveLate));
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Plan(executor, item) => {
                let record = &state.records[item];
                let (step, version) = (record.step.clone()?, record.version);
                let id = state.id();
                let next = step.next(false, id);
                state.count(id, &next);
                let one = &mut state.executors[executor];
                match next {
                    Next::Call(call) => one.waiting.push(Waiting {
                        item,
                        version,
                        step,
                        call,
                    }),
                    next => one.deciding.push((item, version, next)),
                }
            }
            Action::Take(executor) => {
                let one = &mut state.executors[executor];
                let node = one.waiting.first()?.call.node;
                let (here, elsewhere) = std::mem::take(&mut one.waiting)
                    .into_iter()
                    .partition(|waiting| waiting.call.node == node);
                let (now, later) = take(here, |waiting: &Waiting| waiting.call.goal);
                one.waiting = later;
                one.waiting.extend::<Vec<Waiting>>(elsewhere);
                state.read(executor, now)?;
            }
            Action::TakeAlone(executor) => {
                let call = state.executors[executor].alone.remove(0);
                state.read(executor, vec![call])?;
            }
            Action::Send(executor) => {
                let (calls, fingerprint) = state.executors[executor].taken.take()?;
                let current = |waiting: &Waiting| {
                    !self.checks || state.records[waiting.item].version == waiting.version
                };
                let calls: Vec<Waiting> = calls.into_iter().filter(current).collect();
                let Some(first) = calls.first() else {
                    return Some(state);
                };
                let (node, goal) = (first.call.node, first.call.goal);
                let wanted = goal == Goal::Present;
                let there = state.nics[node].there;
                if calls.iter().all(|waiting| there[waiting.item] == wanted) {
                    state.share_out(executor, calls, Outcome::Done);
                } else {
                    let sent = Sent {
                        id: request_id(calls.iter().map(|waiting| waiting.call.id)),
                        node,
                        goal,
                        items: calls.iter().map(|waiting| waiting.item).collect(),
                        fingerprint,
                    };
                    state.executors[executor].sent = Some((calls, sent));
                }
            }
            Action::Answer(executor) => {
                let (calls, sent) = state.executors[executor].sent.take()?;
                let outcome = state.arrive(&sent);
                state.share_out(executor, calls, outcome);
            }
            Action::Refuse(executor) => {
                state.budget.refusals -= 1;
                let (calls, sent) = state.executors[executor].sent.take()?;
                let outcome = match state.carried_out.contains(&sent.id) {
                    true => Outcome::Done,
                    false => Outcome::Refused,
                };
                state.share_out(executor, calls, outcome);
            }
            Action::Lose { executor, arrives } => {
                state.budget.losses -= 1;
                let (_, sent) = state.executors[executor].sent.take()?;
                match arrives {
                    true => drop(state.arrive(&sent)),
                    false => state.late.push(sent),
                }
            }
            Action::Decide(executor) => {
                let (item, version, next) = state.executors[executor].deciding.remove(0);
                let record = &mut state.records[item];
                if record.version == version {
                    record.version += 1;
                    match next {
                        Next::Record(phase) => record.step.as_mut()?.phase = phase,
                        Next::Finish(winner) => {
                            let step = record.step.take()?;
                            record.owner = match winner {
                                Winner::Source => step.source,
                                Winner::Destination => step.destination,
                            };
                        }
                        Next::Call(_) => return None,
                    }
                }
            }
            Action::Crash(executor) => {
                state.budget.crashes -= 1;
                let one = std::mem::take(&mut state.executors[executor]);
                state.late.extend(one.sent.map(|(_, sent)| sent));
            }
            Action::ArriveLate(place) => {
                let sent = state.late.remove(place);
                state.arrive(&sent);
            }
        }
        Some(state)
    }

    /// Ids only grow; a state that is too far out is cut off, so that repeats end.
    fn within_boundary(&self, state: &State) -> bool {
        state.next_id <= self.intents
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(ONE, |_, state: &State| {
                let count = |item: Item| state.nics.iter().filter(|nic| nic.there[item]).count();
                (0..ITEMS).all(|item| count(item) <= 1)
            }),
            Property::always(OWNED, |_, state: &State| {
                let mut records = state.records.iter().enumerate();
                records.all(|(item, record)| {
                    record.step.is_some() || state.nics[record.owner].there[item]
                })
            }),
            Property::sometimes(TOGETHER, |_, state: &State| {
                let moved = state.records.iter().all(|record| record.owner == 1);
                state.is_quiet() && state.shared && moved && state.carried_out.len() == 2
            }),
        ]
    }
}

pub const ONE: &str = "each alias is on one NIC at most";
pub const OWNED: &str = "without a move, the owner has the alias";
pub const TOGETHER: &str = "two moves have shared both operations";
