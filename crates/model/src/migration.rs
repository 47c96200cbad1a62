//! Moves of one address between two VMs (`berth_gcp::migrate::machine`, the product's own code), in every order:
//! several executors at once, crashes of each, lost calls and lost answers, calls that arrive late, moves that end at
//! any time, VMs that vanish, a second move in the other direction while calls of the first are still on their way.

use std::net::Ipv4Addr;

use berth_attachment::{Goal, IntentId};
use berth_gcp::migrate::machine::{Call, Move, Next, Outcome, Phase, Winner};
use stateright::{Model, Property};

type Node = usize;

/// The address's record.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Record {
    version: u8,
    owner: Node,
    step: Option<Move<Node>>,
}

/// A call on its way to the cloud.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Sent {
    call: Call<Node>,
    fingerprint: u8,
}

/// The task that an executor is doing. In memory: lost in a crash.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Task {
    Idle,
    /// Has read the record.
    Planned {
        version: u8,
        step: Move<Node>,
        next: Next<Node>,
    },
    /// Has read the NIC as well.
    Read {
        version: u8,
        step: Move<Node>,
        call: Call<Node>,
        fingerprint: u8,
        there: bool,
    },
    /// Waits for the answer.
    Waiting {
        version: u8,
        step: Move<Node>,
        sent: Sent,
    },
    /// Is about to change the record.
    Deciding {
        version: u8,
        next: Next<Node>,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Nic {
    /// None: the VM is gone.
    there: Option<bool>,
    fingerprint: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    record: Record,
    executors: Vec<Task>,
    late: Vec<Sent>,
    nics: Vec<Nic>,
    carried_out: Vec<IntentId>,
    ended: bool,
    next_id: u8,
    budget: Budget,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Budget {
    pub moves: u8,
    pub crashes: u8,
    pub losses: u8,
    pub by_hand: u8,
    pub vanish: u8,
    /// Calls that the cloud refuses for good.
    pub refusals: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    Start,
    End,
    Plan(usize),
    ReadNic(usize),
    Check(usize),
    Answer(usize),
    Lose { executor: usize, arrives: bool },
    Refuse(usize),
    Decide(usize),
    Crash(usize),
    ArriveLate(usize),
    ChangeByHand(Node),
    Vanish(Node),
}

#[derive(Clone, Debug)]
pub struct Migration {
    pub executors: usize,
    pub budget: Budget,
    /// Whether the executor checks the record after it has read the fingerprint, as the product does.
    pub checks: bool,
}

impl State {
    /// An id that no intent has.
    fn id(&self) -> IntentId {
        IntentId(u128::from(self.next_id) + 1)
    }

    /// Counts the id only if the step uses it: otherwise states would differ in nothing else.
    fn count(&mut self, id: IntentId, next: &Next<Node>) {
        let taken = match next {
            Next::Record(Phase::Detaching(of) | Phase::Attaching(of) | Phase::Returning(of)) => {
                *of == id
            }
            _ => false,
        };
        self.next_id += u8::from(taken);
    }

    fn arrive(&mut self, sent: &Sent) -> Outcome {
        let call = &sent.call;
        if self.carried_out.contains(&call.id) {
            return Outcome::Done;
        }
        let wanted = call.goal == Goal::Present;
        let elsewhere = self
            .nics
            .iter()
            .enumerate()
            .any(|(node, nic)| node != call.node && nic.there == Some(true));
        let nic = &mut self.nics[call.node];
        if nic.there.is_none() {
            return Outcome::Gone;
        }
        if nic.fingerprint != sent.fingerprint {
            return Outcome::Again;
        }
        if wanted && elsewhere {
            return Outcome::Refused;
        }
        nic.there = Some(wanted);
        nic.fingerprint += 1;
        self.carried_out.push(call.id);
        Outcome::Done
    }

    fn decide(&mut self, executor: usize, version: u8, step: &Move<Node>, outcome: Outcome) {
        let id = self.id();
        self.executors[executor] = match step.after(outcome, id) {
            Some(next) => {
                self.count(id, &next);
                Task::Deciding { version, next }
            }
            None => Task::Idle,
        };
    }

    fn is_quiet(&self) -> bool {
        self.record.step.is_none()
            && self.late.is_empty()
            && self.executors.iter().all(|task| *task == Task::Idle)
    }
}

impl Model for Migration {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let nic = |there| Nic {
            there: Some(there),
            fingerprint: 0,
        };
        vec![State {
            record: Record {
                version: 0,
                owner: 0,
                step: None,
            },
            executors: vec![Task::Idle; self.executors],
            late: Vec::new(),
            nics: vec![nic(true), nic(false)],
            carried_out: Vec::new(),
            ended: false,
            next_id: 0,
            budget: self.budget,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let budget = &state.budget;
        if state.record.step.is_none() && budget.moves > 0 {
            actions.push(Action::Start);
        }
        if state.record.step.is_some() && !state.ended {
            actions.push(Action::End);
        }
        for (executor, task) in state.executors.iter().enumerate() {
            match task {
                Task::Idle if state.record.step.is_some() => actions.push(Action::Plan(executor)),
                Task::Idle => {}
                Task::Planned { .. } => actions.push(Action::ReadNic(executor)),
                Task::Read { .. } => actions.push(Action::Check(executor)),
                Task::Waiting { .. } => {
                    actions.push(Action::Answer(executor));
                    if budget.losses > 0 {
                        actions.push(Action::Lose {
                            executor,
                            arrives: true,
                        });
                        actions.push(Action::Lose {
                            executor,
                            arrives: false,
                        });
                    }
                    if budget.refusals > 0 {
                        actions.push(Action::Refuse(executor));
                    }
                }
                Task::Deciding { .. } => actions.push(Action::Decide(executor)),
            }
            if *task != Task::Idle && budget.crashes > 0 {
                actions.push(Action::Crash(executor));
            }
        }
        for place in 0..state.late.len() {
            actions.push(Action::ArriveLate(place));
        }
        for (node, nic) in state.nics.iter().enumerate() {
            if budget.by_hand > 0 {
                actions.push(Action::ChangeByHand(node));
            }
            if budget.vanish > 0 && nic.there.is_some() {
                actions.push(Action::Vanish(node));
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Start => {
                state.budget.moves -= 1;
                state.ended = false;
                let source = state.record.owner;
                state.record.step = Some(Move {
                    address: Ipv4Addr::new(10, 111, 0, 5),
                    source,
                    destination: 1 - source,
                    phase: Phase::Reserved,
                });
                state.record.version += 1;
            }
            Action::End => state.ended = true,
            Action::Plan(executor) => {
                let step = state.record.step.clone()?;
                let id = state.id();
                let next = step.next(state.ended, id);
                state.count(id, &next);
                let version = state.record.version;
                state.executors[executor] = match next {
                    Next::Call(_) => Task::Planned {
                        version,
                        step,
                        next,
                    },
                    next => Task::Deciding { version, next },
                };
            }
            Action::ReadNic(executor) => {
                let Task::Planned {
                    version,
                    step,
                    next: Next::Call(call),
                } = state.executors[executor].clone()
                else {
                    return None;
                };
                let nic = &state.nics[call.node];
                match nic.there {
                    None => state.decide(executor, version, &step, Outcome::Gone),
                    Some(there) => {
                        let fingerprint = nic.fingerprint;
                        state.executors[executor] = Task::Read {
                            version,
                            step,
                            call,
                            fingerprint,
                            there,
                        };
                    }
                }
            }
            Action::Check(executor) => {
                let Task::Read {
                    version,
                    step,
                    call,
                    fingerprint,
                    there,
                } = state.executors[executor].clone()
                else {
                    return None;
                };
                if self.checks && state.record.version != version {
                    state.executors[executor] = Task::Idle;
                } else if there == (call.goal == Goal::Present) {
                    state.decide(executor, version, &step, Outcome::Done);
                } else {
                    let sent = Sent { call, fingerprint };
                    state.executors[executor] = Task::Waiting {
                        version,
                        step,
                        sent,
                    };
                }
            }
            Action::Answer(executor) => {
                let Task::Waiting {
                    version,
                    step,
                    sent,
                } = state.executors[executor].clone()
                else {
                    return None;
                };
                let outcome = state.arrive(&sent);
                state.decide(executor, version, &step, outcome);
            }
            Action::Refuse(executor) => {
                state.budget.refusals -= 1;
                let Task::Waiting {
                    version,
                    step,
                    sent,
                } = state.executors[executor].clone()
                else {
                    return None;
                };
                let known = state.carried_out.contains(&sent.call.id);
                let outcome = if known {
                    Outcome::Done
                } else {
                    Outcome::Refused
                };
                state.decide(executor, version, &step, outcome);
            }
            Action::Lose { executor, arrives } => {
                state.budget.losses -= 1;
                let Task::Waiting { sent, .. } = state.executors[executor].clone() else {
                    return None;
                };
                match arrives {
                    true => drop(state.arrive(&sent)),
                    false => state.late.push(sent),
                }
                state.executors[executor] = Task::Idle;
            }
            Action::Decide(executor) => {
                let Task::Deciding { version, next } = state.executors[executor].clone() else {
                    return None;
                };
                state.executors[executor] = Task::Idle;
                if state.record.version == version {
                    state.record.version += 1;
                    match next {
                        Next::Record(phase) => state.record.step.as_mut()?.phase = phase,
                        Next::Finish(winner) => {
                            let step = state.record.step.take()?;
                            state.record.owner = match winner {
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
                if let Task::Waiting { sent, .. } = state.executors[executor].clone() {
                    state.late.push(sent);
                }
                state.executors[executor] = Task::Idle;
            }
            Action::ArriveLate(place) => {
                let sent = state.late.remove(place);
                state.arrive(&sent);
            }
            Action::ChangeByHand(node) => {
                state.budget.by_hand -= 1;
                state.nics[node].fingerprint += 1;
            }
            Action::Vanish(node) => {
                state.budget.vanish -= 1;
                state.nics[node] = Nic {
                    there: None,
                    fingerprint: 0,
                };
            }
        }
        Some(state)
    }

    /// Ids and versions only grow; a state that is too far out is cut off, so that repeats of a lost call end.
    fn within_boundary(&self, state: &State) -> bool {
        state.next_id < 30
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(ONE, |_, state: &State| {
                state
                    .nics
                    .iter()
                    .filter(|nic| nic.there == Some(true))
                    .count()
                    <= 1
            }),
            Property::always(OWNED, |_, state: &State| {
                // Without a move, the owner's NIC has the alias, unless its VM is gone.
                state.record.step.is_some() || state.nics[state.record.owner].there != Some(false)
            }),
            Property::sometimes(MOVED, |_, state: &State| {
                state.is_quiet() && state.record.owner == 1
            }),
            Property::sometimes(BACK, |_, state: &State| {
                state.is_quiet()
                    && state.record.owner == 0
                    && state.budget.moves == 0
                    && state.nics[0].fingerprint > 1
            }),
        ]
    }
}

pub const ONE: &str = "the alias is on one NIC at most";
pub const OWNED: &str = "without a move, the owner has the alias";
pub const MOVED: &str = "the address has moved";
pub const BACK: &str = "the address has moved and is back";
