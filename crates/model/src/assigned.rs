//! How a slice that a controller assigned changes hands: recalled, looked at once more, freed (I8).
//!
//! A look and a write are two moments, and so are a node's reading of the table and its first address. Two nodes and one
//! slice: `b` has it and goes down, `a` waits for it and is the first to get it. What is modelled is who reads what when; the decisions are the
//! table's own (`berth_core::slice::assigned`).

use berth_core::slice::assigned::Assignments;
use berth_core::slice::{Cut, Epoch, NodeName};
use berth_core::{Prefix, Space};
use stateright::{Model, Property};

/// The hand-over with one of its precautions left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Careless {
    Not,
    /// One write frees the slice that was last seen to be unused.
    NoRecall,
    /// Recalled, and freed without another look.
    NoSecondLook,
    /// A node gives from a slice of its own, recalled or not.
    GiveRecalled,
    /// A node takes a slice on without looking for its Node object first.
    NoNodeLook,
    /// A slice that is recalled is freed before an agent that lives has heard of it: it is cut off, or the pause is too
    /// short.
    Unheard,
}

#[derive(Clone, Debug)]
pub struct HandOver {
    pub outages: u8,
    /// Node objects deleted under agents that live.
    pub deletions: u8,
    pub careless: Careless,
}

const NODES: [&str; 2] = ["a", "b"];

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Machine {
    up: bool,
    registered: bool,
    /// Saw its Node object since it came up: reads the table next.
    seen: bool,
    /// Took its slice on when it had seen its Node: what is said of it since, it hears within the pause. Of one that has
    /// just come up and is not there yet, nothing is assumed.
    listens: bool,
    /// What it gives from: durable, and confirmed since it came up.
    held: Option<u64>,
    /// A pod of it has the address.
    given: bool,
}

/// The table: who has the slice, at which epoch, recalled or not, and its version.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Row {
    holder: Option<usize>,
    epoch: u64,
    recalled: bool,
}

/// What the controller has proved, and of which row.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Proof {
    row: Row,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct World {
    row: Row,
    machines: [Machine; 2],
    proof: Option<Proof>,
    outages_left: u8,
    deletions_left: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Power is gone, and with it the pods.
    Outage(usize),
    NodeDeleted(usize),
    /// The machine is up; its agent may run before its kubelet has registered the node.
    Return(usize),
    Register(usize),
    SeeNode(usize),
    ReadTable(usize),
    /// An agent hears that its slice is recalled, or another's. It needs no Node for that.
    Heed(usize),
    Give(usize),
    End(usize),
    /// Quorum reads: the Node is gone and no pod of it is left. That it was so a grace period ago adds nothing here.
    Look,
    Write,
    /// The controller gives a free slice to a node that has none, and leaves a recalled one with a node that is there.
    Tend,
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

impl World {
    /// Whether a node gives from the slice though the table says that it may not.
    fn is_unheard(&self, node: usize) -> bool {
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

    fn read(&self, world: &mut World, node: usize) {
        let row = &world.row;
        let mine = row.holder == Some(node) && (!row.recalled || self.is(Careless::GiveRecalled));
        let me = &mut world.machines[node];
        me.held = mine.then_some(row.epoch);
        me.listens = me.seen;
        me.seen = false;
    }

    fn write(&self, world: &mut World) {
        let Some(proof) = world.proof.take() else {
            return;
        };
        // Guarded by the version that was looked at.
        let Some(holder) = world.row.holder.filter(|_| world.row == proof.row) else {
            return;
        };
        let mut table = world.row.table();
        let node = NodeName::new(NODES[holder]);
        let recalled = world.row.recalled;
        table.recall(slice(), &node).unwrap();
        if recalled || self.is(Careless::NoRecall) {
            table.reclaim(slice(), &node).unwrap();
        }
        world.row = Row::of(&table);
        if !recalled && self.is(Careless::NoSecondLook) {
            world.proof = Some(Proof {
                row: world.row.clone(),
            });
        }
    }

    fn tend(world: &mut World) {
        let there = |node: usize| world.machines[node].registered;
        let mut table = world.row.table();
        match world.row.holder {
            Some(holder) if there(holder) => table.keep(slice()),
            Some(_) => {}
            None => {
                let nodes = (0..NODES.len()).filter(|node| there(*node));
                let nodes = nodes.map(|node| NodeName::new(NODES[node])).collect();
                table.assign(&nodes, &[&Space::list([slice().block()])]);
            }
        }
        world.row = Row::of(&table);
    }
}

impl Model for HandOver {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
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
        vec![World {
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

    fn actions(&self, world: &World, steps: &mut Vec<Step>) {
        for (node, me) in world.machines.iter().enumerate() {
            if !me.up {
                steps.push(Step::Return(node));
                if me.registered {
                    steps.push(Step::NodeDeleted(node));
                }
                continue;
            }
            if world.outages_left > 0 {
                steps.push(Step::Outage(node));
            }
            if !me.registered {
                steps.push(Step::Register(node));
            } else {
                steps.push(Step::SeeNode(node));
                if world.deletions_left > 0 {
                    steps.push(Step::NodeDeleted(node));
                }
            }
            if world.is_unheard(node) && !self.is(Careless::GiveRecalled) {
                steps.push(Step::Heed(node));
            }
            if me.seen || self.is(Careless::NoNodeLook) {
                steps.push(Step::ReadTable(node));
            }
            // Pods are bound to nodes that are registered.
            if me.held.is_some() && me.registered && !me.given {
                steps.push(Step::Give(node));
            }
            if me.given {
                steps.push(Step::End(node));
            }
        }
        steps.extend([Step::Look, Step::Write, Step::Tend]);
    }

    fn next_state(&self, last: &World, step: Step) -> Option<World> {
        let mut world = last.clone();
        match step {
            Step::Outage(node) => {
                let me = &mut world.machines[node];
                // What it held has to be confirmed again: it is of an earlier boot.
                *me = Machine {
                    registered: me.registered,
                    ..Machine::default()
                };
                world.outages_left -= 1;
            }
            Step::NodeDeleted(node) => {
                let me = &mut world.machines[node];
                me.registered = false;
                if me.up {
                    world.deletions_left -= 1;
                }
            }
            Step::Heed(node) => world.machines[node].held = None,
            Step::Return(node) => world.machines[node].up = true,
            Step::Register(node) => world.machines[node].registered = true,
            Step::SeeNode(node) => world.machines[node].seen = true,
            Step::ReadTable(node) => self.read(&mut world, node),
            Step::Give(node) => world.machines[node].given = true,
            Step::End(node) => world.machines[node].given = false,
            Step::Look => {
                let gone =
                    |node: usize| !world.machines[node].registered && !world.machines[node].given;
                // What was recalled is left alone for a pause: by then whoever lives has heard of it.
                let has_heard = |node: usize| {
                    let listens = world.machines[node].listens && !self.is(Careless::Unheard);
                    !listens || !world.is_unheard(node)
                };
                let holder = world.row.holder.filter(|node| gone(*node));
                let proved = holder.is_some_and(|node| !world.row.recalled || has_heard(node));
                world.proof = proved.then(|| Proof {
                    row: world.row.clone(),
                });
            }
            Step::Write => self.write(&mut world),
            Step::Tend => Self::tend(&mut world),
        }
        (world != *last).then_some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("one holder (S, I1, I8)", |_, world: &World| {
                let concerned = |me: &&Machine| me.given || me.up && me.held.is_some();
                world.machines.iter().filter(concerned).count() <= 1
            }),
            Property::sometimes("the other node gives from it", |_, world: &World| {
                world.machines[0].given
            }),
            Property::sometimes(
                "a node that was there after all keeps it",
                |_, world: &World| {
                    let first = &world.machines[1];
                    first.held.is_some_and(|epoch| epoch > 0) && first.given
                },
            ),
        ]
    }
}
