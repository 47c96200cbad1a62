//! The protocol (docs/decisions/0006-slices.md) as a model: what may happen next in a cluster, and what must hold.

use berth_core::{Address, Prefix, slice::Cut};
use stateright::{Model, Property};

use crate::machine::{Machine, Task, name};
use crate::quiescence::{busy, settles};
use crate::world::{World, addresses};

/// A protocol with one of its precautions left out: the model must find out what it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Careless {
    Not,
    /// A taker trusts the offer that it saw before its claim.
    NoSecondLook,
    /// A part is freed when its offer is gone, whoever may be making the claim just now.
    FreeWithoutClaim,
    /// An offer that is not there is not withdrawn: no write, so an older one may still arrive.
    SilentWithdraw,
    /// A claim of before is taken up without a word at the API server.
    SilentAdoption,
    /// A node that was away compares and goes on without a word, though what it has is recalled.
    SilentReturn,
    /// The claim goes first, the holding after.
    TellFirst,
    /// The controller takes a part from a lost node before the whole.
    PartFirst,
    /// The controller takes a claim back in the write that follows its look.
    NoRecall,
    /// A claim that is recalled is taken back before an agent that lives has heard of it: it is cut off, or the pause is
    /// too short.
    Unheard,
    /// A claim that is recalled is taken back without another look.
    NoLookAfter,
    /// A donor offers before it has set the part aside.
    OfferFirst,
    /// What may be spared is what is not out of use, offered before or not.
    OfferAgain,
    /// A claim of a part is taken up though what it was cut from is gone.
    AdoptStray,
    /// A slice is passed on before its holding goes.
    PassFirst,
    /// A slice is passed on though parts of it are others'.
    PassLent,
    /// A slice inside another of the node goes without being set aside there.
    ShutBare,
    /// What was set aside for a slice that went is free again, though another slice of the node lies around it.
    FreeInside,
    /// What a crash left set aside inside a slice that is held stays so.
    KeepShut,
    /// A slice that is taken on is put into use as a whole, and then its parts are set aside.
    EmptyFirst,
    /// A part counts as the node's own though that was lost.
    CountLost,
    /// What a part was cut from is the first slice around it, and not the smallest.
    OuterFirst,
}

#[derive(Clone, Debug)]
pub struct Protocol {
    pub nodes: usize,
    pub range: Prefix,
    pub cut: u8,
    pub crashes: u8,
    pub outages: u8,
    /// Node objects deleted under agents that live.
    pub deletions: u8,
    pub passes: u8,
    /// Pods that a node may have at once.
    pub pods: usize,
    /// What the cluster has come through before: each step to its end.
    pub begin: Vec<Step>,
    /// Writes on their way at once.
    pub wire: usize,
    pub careless: Careless,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    Arrive(usize),
    Claim(usize, Prefix),
    /// The next step of what the node is in the middle of.
    GoOn(usize),
    Give(usize, Address),
    End(usize, Address),
    GiveBack(usize, Prefix),
    Want(usize, Prefix),
    Answer(usize, Prefix),
    Take(usize, Prefix),
    TakeBack(usize, Prefix),
    /// Addresses that were set aside for a part that is not offered.
    Settle(usize, Prefix),
    Adopt(usize, Prefix),
    Verify(usize, Prefix),
    Inherit(usize, Prefix),
    Crash(usize),
    Outage(usize),
    NodeDeleted(usize),
    /// The Node object is there again, under an agent that never went away.
    Register(usize),
    Return(usize),
    /// The agent hears that a slice of its is recalled, or another's.
    Heed(usize, Prefix),
    Recall(Prefix),
    Reclaim(Prefix),
}

impl Protocol {
    fn slots(&self) -> Vec<Prefix> {
        let cut = Cut::new(self.range, self.cut).unwrap();
        (0..cut.count()).filter_map(|n| cut.nth(n)).collect()
    }

    pub fn is_careless(&self, how: Careless) -> bool {
        self.careless == how
    }

    /// What a node may do next.
    fn steps_of(&self, world: &World, node: usize, steps: &mut Vec<Step>) {
        let me = &world.machines[node];
        if !me.up {
            steps.push(Step::Return(node));
            if me.registered {
                steps.push(Step::NodeDeleted(node));
            }
            return;
        }
        if world.crashes_left > 0 && me.task.is_some() {
            steps.push(Step::Crash(node));
        }
        if world.outages_left > 0 {
            steps.push(Step::Outage(node));
        }
        match me.registered {
            true if world.deletions_left > 0 => steps.push(Step::NodeDeleted(node)),
            true => {}
            false => steps.push(Step::Register(node)),
        }
        // Whatever it is in the middle of: to give less needs nobody's leave.
        let unheard = me
            .verified
            .iter()
            .filter(|range| world.is_lost(node, **range));
        steps.extend(unheard.map(|range| Step::Heed(node, *range)));
        steps.extend(me.given.iter().map(|address| Step::End(node, *address)));
        // The lowest: others differ in nothing that the protocol looks at.
        // Pods are bound to nodes that are registered.
        if me.registered && me.given.len() < self.pods {
            let gives = |address: &Address| me.may_give(*address) && !me.given.contains(address);
            let lowest = addresses(self.range).into_iter().find(gives);
            steps.extend(lowest.map(|address| Step::Give(node, address)));
        }
        match &me.task {
            Some(Task::Waiting(_)) => {}
            Some(_) => steps.push(Step::GoOn(node)),
            None => self.begin(world, node, steps),
        }
    }

    /// What an agent that is in the middle of nothing may begin.
    fn begin(&self, world: &World, node: usize, steps: &mut Vec<Step>) {
        let me = &world.machines[node];
        // A node that was away first finds out what is still its own.
        let unknown = me
            .holdings
            .keys()
            .find(|range| !me.verified.contains(*range));
        if let Some(range) = unknown {
            return steps.push(Step::Verify(node, *range));
        }
        let unsettled = self.unsettled(world, node);
        // What lies in nothing of its own any more means nothing to anybody.
        let stray = |part: &&Prefix| self.around(world, node, **part).is_none();
        if let Some(part) = unsettled.iter().find(stray) {
            return steps.push(Step::Settle(node, *part));
        }
        for range in me.holdings.keys().filter(|range| me.is_idle_in(**range)) {
            steps.push(Step::GiveBack(node, *range));
        }
        let is_free = |slot: &Prefix| !world.claims.contains_key(slot);
        let free = self.slots().into_iter().filter(is_free);
        steps.extend(free.map(|slot| Step::Claim(node, slot)));
        for (range, claim) in &world.claims {
            let mine = claim.node == name(node);
            // What is recalled is taken up again by a node that has seen that its Node is there: else the two would take turns.
            let stands = !claim.recalled || me.registered;
            if mine && stands && !me.holdings.contains_key(range) {
                steps.push(Step::Adopt(node, *range));
            }
            if claim.node.as_str().is_empty() {
                steps.push(Step::Inherit(node, *range));
            }
            if mine && me.verified.contains(range) && !claim.wants.is_empty() {
                steps.push(Step::Answer(node, *range));
            }
            // Any node may ask at any time; here one that has none, and one for what it has lent.
            let lent = self.passes > 0 && me.lies_in_another(*range);
            let asks = me.holdings.is_empty() || lent;
            let asked = claim.wants.contains(&name(node));
            if !mine && asks && !asked && !claim.node.as_str().is_empty() {
                steps.push(Step::Want(node, *range));
            }
            for offer in &claim.offers {
                if world.claims.contains_key(&offer.range) {
                    continue;
                }
                if offer.node == name(node) && !me.holdings.contains_key(&offer.range) {
                    steps.push(Step::Take(node, offer.range));
                }
                if mine && me.verified.contains(range) {
                    steps.push(Step::TakeBack(node, offer.range));
                }
            }
        }
        let parts = unsettled.into_iter();
        steps.extend(parts.map(|part| Step::Settle(node, part)));
    }

    /// What the controller may do with a claim: recall it on proof, and on proof once more, when an agent that lives has
    /// heard of that, take it back.
    fn controller(&self, world: &World, range: Prefix) -> Option<Step> {
        let claim = &world.claims[&range];
        let holder = (0..self.nodes).find(|node| name(*node) == claim.node)?;
        let node = &world.machines[holder];
        // Quorum reads: the Node is gone, and no pod of it is left. That it was so a grace period ago adds nothing here.
        let is_proved = !node.registered && !node.has_pod_in(range);
        // Whole before part: what the lost node still had on its way to the whole dies before another can have the part.
        let is_part = world.claims.iter().any(|(other, whole)| {
            *other != range && other.covers(range) && whole.node == claim.node
        });
        if is_part && !self.is_careless(Careless::PartFirst) {
            return None;
        }
        if !claim.recalled && !self.is_careless(Careless::NoRecall) {
            return is_proved.then_some(Step::Recall(range));
        }
        let has_heard = self.is_careless(Careless::NoRecall)
            || self.is_careless(Careless::Unheard)
            || !node.concerns_itself_with(range);
        let is_seen = is_proved || self.is_careless(Careless::NoLookAfter);
        (is_seen && has_heard).then_some(Step::Reclaim(range))
    }
}

/// Whoever may give the address, or has given it to a pod that lives.
fn claimants(world: &World, address: Address) -> usize {
    let concerned =
        |machine: &&Machine| machine.may_give(address) || machine.given.contains(&address);
    world.machines.iter().filter(concerned).count()
}

/// Whether a machine may give from a part; one that lies in another slice of it, if so asked.
fn gives_from_part(model: &Protocol, machine: &Machine, nested: bool) -> bool {
    let mut parts = machine.holdings.keys();
    parts.any(|part| {
        part.length() > model.cut
            && machine.verified.contains(part)
            && machine.lies_in_another(*part) == nested
            && machine.may_give(part.network())
    })
}

impl Model for Protocol {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        let mut world = World {
            claims: Default::default(),
            wire: Vec::new(),
            machines: vec![Machine::fresh(); self.nodes],
            crashes_left: self.crashes,
            outages_left: self.outages,
            deletions_left: self.deletions,
            passes_left: self.passes,
        };
        for step in &self.begin {
            let mut possible = Vec::new();
            self.actions(&world, &mut possible);
            assert!(possible.contains(step), "{step:?} of {possible:?}");
            self.act(&mut world, step);
            while let Some(step) = busy(&world) {
                self.act(&mut world, &step);
            }
        }
        vec![world]
    }

    fn actions(&self, world: &World, steps: &mut Vec<Step>) {
        let is_full = world.wire.len() >= self.wire;
        // What nobody else can see or change comes before everything else, or not at all: all other orders come to the
        // same.
        let is_private = |task: &Task| task.is_local() || task.is_planned() && !is_full;
        let private = |machine: &Machine| machine.task.as_ref().is_some_and(is_private);
        if let Some(node) = world.machines.iter().position(private) {
            steps.push(Step::GoOn(node));
            if world.crashes_left > 0 {
                steps.push(Step::Crash(node));
            }
            if world.outages_left > 0 {
                steps.push(Step::Outage(node));
            }
            return;
        }
        steps.extend((0..world.wire.len()).map(Step::Arrive));
        if is_full {
            // Too many on their way: something has to arrive, or somebody to fail.
            for node in 0..self.nodes {
                let mut all = Vec::new();
                self.steps_of(world, node, &mut all);
                all.retain(|step| matches!(step, Step::Crash(_) | Step::Outage(_)));
                steps.extend(all);
            }
            return;
        }
        for node in 0..self.nodes {
            self.steps_of(world, node, steps);
        }
        // One thing at a time, as it is one process.
        if world.wire.iter().all(|sent| sent.from.is_some()) {
            for range in world.claims.keys() {
                steps.extend(self.controller(world, *range));
            }
        }
    }

    fn next_state(&self, last: &World, step: Step) -> Option<World> {
        let mut world = last.clone();
        self.act(&mut world, &step);
        Some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(
                "one holder (S, I1, I8)",
                |model: &Protocol, world: &World| {
                    addresses(model.range)
                        .into_iter()
                        .all(|address| claimants(world, address) <= 1)
                },
            ),
            Property::always(
                "nothing is lost after quiescence",
                |model: &Protocol, world: &World| settles(model, world),
            ),
            Property::sometimes(
                "a part is borrowed and may be given",
                |model: &Protocol, world: &World| {
                    let mut machines = world.machines.iter();
                    machines.any(|machine| gives_from_part(model, machine, false))
                },
            ),
            Property::sometimes(
                "a part is borrowed back and may be given",
                |model: &Protocol, world: &World| {
                    let mut machines = world.machines.iter();
                    machines.any(|machine| gives_from_part(model, machine, true))
                },
            ),
            Property::sometimes(
                "a node gives from two slices",
                |model: &Protocol, world: &World| {
                    let slots = model.slots();
                    let gives = |machine: &Machine| {
                        let held = slots.iter().filter(|slot| machine.may_give(slot.network()));
                        held.count() > 1
                    };
                    world.machines.iter().any(gives)
                },
            ),
            Property::sometimes(
                "a slice of a later epoch may be given",
                |_, world: &World| {
                    let mut machines = world.machines.iter();
                    machines.any(|machine| {
                        let mut held = machine.holdings.values();
                        held.any(|known| {
                            known.epoch.0 > 1 && machine.may_give(known.range.network())
                        })
                    })
                },
            ),
        ]
    }
}
