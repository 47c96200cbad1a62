//! Model of how the controller reclaims an assigned slice: recall, a second read, free (I8).
//!
//! A read and a write are separate steps, and so are a node's read of the table and its first allocation. Two nodes
//! and one slice: `b` has it and goes down, `a` waits and is the first to get it. Only the order of reads and writes
//! is modelled; the decisions are the product's (`berth_core::slice::assigned`).

use berth_core::slice::assigned::Assignments;
use berth_core::slice::{Cut, Epoch, NodeName};
use berth_core::{Prefix, Space};
use stateright::{Model, Property};

/// The protocol with one of its precautions left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Careless {
    Not,
    /// One write frees a slice that the last read found unused.
    NoRecall,
    /// Recalled, and freed without a second read.
    NoSecondRead,
    /// A node allocates from a slice of its own, recalled or not.
    AllocateRecalled,
    /// A node starts with a slice without reading its Node object first.
    NoNodeRead,
    /// A recalled slice is freed before a running agent has noticed the recall: the agent is cut off, or the pause is
    /// too short.
    Unnoticed,
}

#[derive(Clone, Debug)]
pub struct HandOver {
    pub outages: u8,
    /// Node objects that may be deleted while their agents run.
    pub deletions: u8,
    pub careless: Careless,
}

const NODES: [&str; 2] = ["a", "b"];

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Machine {
    up: bool,
    registered: bool,
    /// Has read its Node object since it started: reads the table next.
    seen: bool,
    /// Started with its slice after it had read its Node: it notices a later recall within the pause. Nothing is
    /// assumed of a node that has only just started.
    listens: bool,
    /// The slice it allocates from: durable, and verified since it started.
    held: Option<u64>,
    /// One of its pods has the address.
    allocated: bool,
}

/// The table: the slice's node, its epoch, whether it is recalled, and the version.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Row {
    holder: Option<usize>,
    epoch: u64,
    recalled: bool,
}

/// What the controller has proved, and for which row.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Proof {
    row: Row,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    row: Row,
    machines: [Machine; 2],
    proof: Option<Proof>,
    outages_left: u8,
    deletions_left: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Power is lost, and with it the pods.
    Outage(usize),
    NodeDeleted(usize),
    /// The machine is up; its agent may run before its kubelet has registered the node.
    Return(usize),
    Register(usize),
    SeeNode(usize),
    ReadTable(usize),
    /// An agent notices that its slice is recalled or another node's. It needs no Node for that.
    Notice(usize),
    Allocate(usize),
    End(usize),
    /// Quorum reads: the Node is gone and has no pod left. The read a grace period earlier adds nothing here.
    Read,
    Write,
    /// The controller assigns a free slice to a node that has none, and leaves a recalled one with a node that
    /// returned.
    Reconcile,
}

fn slice() -> Prefix {
    "10.0.0.0/32".parse().unwrap()
}

impl Row {
    fn table(&self) -> Assignments {
        let mut table = Assignments::new(Cut::new(slice(), 32).unwrap());
        table.restore_epoch(slice(), Epoch(self.epoch));
        if let Some(holder) = self.holder {
            table
                .restore(slice(), NodeName::new(NODES[holder]))
                .unwrap();
        }
        if self.recalled {
            table.restore_recalled(slice());
        }
        table
    }

    fn of(table: &Assignments) -> Row {
        let place = |node: &NodeName| NODES.iter().position(|name| *name == node.as_str());
        Row {
            holder: table.holder(slice()).and_then(place),
            epoch: table.epoch(slice()).0,
            recalled: table.is_recalled(slice()),
        }
    }
}

impl State {
    /// Whether a node allocates from the slice although the table forbids it.
    fn is_unnoticed(&self, node: usize) -> bool {
        let row = &self.row;
        let may = row.holder == Some(node) && !row.recalled;
        let held = self.machines[node].held;
        held.is_some_and(|epoch| !may || epoch != row.epoch)
    }
}

impl HandOver {
    fn is(&self, how: Careless) -> bool {
        self.careless == how
    }

    fn read(&self, state: &mut State, node: usize) {
        let row = &state.row;
        let mine =
            row.holder == Some(node) && (!row.recalled || self.is(Careless::AllocateRecalled));
        let me = &mut state.machines[node];
        me.held = mine.then_some(row.epoch);
        me.listens = me.seen;
        me.seen = false;
    }

    fn write(&self, state: &mut State) {
        let Some(proof) = state.proof.take() else {
            return;
        };
        // Guarded by the version that was read.
        let Some(holder) = state.row.holder.filter(|_| state.row == proof.row) else {
            return;
        };
        let mut table = state.row.table();
        let node = NodeName::new(NODES[holder]);
        let recalled = state.row.recalled;
        table.recall(slice(), &node).unwrap();
        if recalled || self.is(Careless::NoRecall) {
            table.reclaim(slice(), &node).unwrap();
        }
        state.row = Row::of(&table);
        if !recalled && self.is(Careless::NoSecondRead) {
            state.proof = Some(Proof {
                row: state.row.clone(),
            });
        }
    }

    fn reconcile(state: &mut State) {
        let there = |node: usize| state.machines[node].registered;
        let mut table = state.row.table();
        match state.row.holder {
            Some(holder) if there(holder) => table.keep(slice()),
            Some(_) => {}
            None => {
                let nodes = (0..NODES.len()).filter(|node| there(*node));
                let nodes = nodes.map(|node| NodeName::new(NODES[node])).collect();
                table.assign(&nodes, &[&Space::list([slice().block()])]);
            }
        }
        state.row = Row::of(&table);
    }
}

impl Model for HandOver {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        let there = Machine {
            up: true,
            registered: true,
            ..Machine::default()
        };
        let holds = Machine {
            listens: true,
            held: Some(0),
            ..there.clone()
        };
        vec![State {
            row: Row {
                holder: Some(1),
                ..Row::default()
            },
            machines: [there, holds],
            proof: None,
            outages_left: self.outages,
            deletions_left: self.deletions,
        }]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        for (node, me) in state.machines.iter().enumerate() {
            if !me.up {
                steps.push(Step::Return(node));
                if me.registered {
                    steps.push(Step::NodeDeleted(node));
                }
                continue;
            }
            if state.outages_left > 0 {
                steps.push(Step::Outage(node));
            }
            if !me.registered {
                steps.push(Step::Register(node));
            } else {
                steps.push(Step::SeeNode(node));
                if state.deletions_left > 0 {
                    steps.push(Step::NodeDeleted(node));
                }
            }
            if state.is_unnoticed(node) && !self.is(Careless::AllocateRecalled) {
                steps.push(Step::Notice(node));
            }
            if me.seen || self.is(Careless::NoNodeRead) {
                steps.push(Step::ReadTable(node));
            }
            // Pods are scheduled only to registered nodes.
            if me.held.is_some() && me.registered && !me.allocated {
                steps.push(Step::Allocate(node));
            }
            if me.allocated {
                steps.push(Step::End(node));
            }
        }
        steps.extend([Step::Read, Step::Write, Step::Reconcile]);
    }

    fn next_state(&self, last: &State, step: Step) -> Option<State> {
        let mut state = last.clone();
        match step {
            Step::Outage(node) => {
                let me = &mut state.machines[node];
                // What it held must be verified again: it is from an earlier boot.
                *me = Machine {
                    registered: me.registered,
                    ..Machine::default()
                };
                state.outages_left -= 1;
            }
            Step::NodeDeleted(node) => {
                let me = &mut state.machines[node];
                me.registered = false;
                if me.up {
                    state.deletions_left -= 1;
                }
            }
            Step::Notice(node) => state.machines[node].held = None,
            Step::Return(node) => state.machines[node].up = true,
            Step::Register(node) => state.machines[node].registered = true,
            Step::SeeNode(node) => state.machines[node].seen = true,
            Step::ReadTable(node) => self.read(&mut state, node),
            Step::Allocate(node) => state.machines[node].allocated = true,
            Step::End(node) => state.machines[node].allocated = false,
            Step::Read => {
                let gone = |node: usize| {
                    !state.machines[node].registered && !state.machines[node].allocated
                };
                // A recalled slice is left alone for a pause: by then every running agent has noticed.
                let has_noticed = |node: usize| {
                    let listens = state.machines[node].listens && !self.is(Careless::Unnoticed);
                    !listens || !state.is_unnoticed(node)
                };
                let holder = state.row.holder.filter(|node| gone(*node));
                let proved = holder.is_some_and(|node| !state.row.recalled || has_noticed(node));
                state.proof = proved.then(|| Proof {
                    row: state.row.clone(),
                });
            }
            Step::Write => self.write(&mut state),
            Step::Reconcile => Self::reconcile(&mut state),
        }
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("one holder (S, I1, I8)", |_, state: &State| {
                let concerned = |me: &&Machine| me.allocated || me.up && me.held.is_some();
                state.machines.iter().filter(concerned).count() <= 1
            }),
            Property::sometimes("the other node allocates from it", |_, state: &State| {
                state.machines[0].allocated
            }),
            Property::sometimes(
                "a node that was there after all keeps it",
                |_, state: &State| {
                    let first = &state.machines[1];
                    first.held.is_some_and(|epoch| epoch > 0) && first.allocated
                },
            ),
        ]
    }
}
