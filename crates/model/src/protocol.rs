//! The protocol's steps (docs/decisions/0006-slices.md), each as one that can be the last before a crash.

use berth_core::slice::elastic::{Claimed, Standing, spare, standing};
use berth_core::{Address, Prefix, slice::Cut};
use stateright::{Model, Property};

use crate::quiet::settles;
use crate::world::{Machine, Task, World, Write, addresses, name, usable};

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
    /// A node that was away compares and goes on without a word.
    SilentReturn,
    /// The claim goes first, the holding after.
    TellFirst,
    /// The controller takes a part from a lost node before the whole.
    PartFirst,
    /// A donor offers before it has set the part aside.
    OfferFirst,
}

#[derive(Clone, Debug)]
pub struct Protocol {
    pub nodes: usize,
    pub range: Prefix,
    pub cut: u8,
    pub crashes: u8,
    pub outages: u8,
    /// Writes on their way at once.
    pub wire: usize,
    pub careless: Careless,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    Arrive(usize),
    Claim(usize, Prefix),
    Confirm(usize),
    Commit(usize),
    Give(usize, Address),
    End(usize, Address),
    GiveBack(usize, Prefix),
    Want(usize, Prefix),
    Answer(usize, Prefix),
    Take(usize, Prefix),
    TakeBack(usize, Prefix),
    Free(usize),
    Adopt(usize, Prefix),
    Verify(usize, Prefix),
    Inherit(usize, Prefix),
    Crash(usize),
    Outage(usize),
    NodeDeleted(usize),
    Return(usize),
    Reclaim(Prefix),
}

impl Protocol {
    fn slots(&self) -> Vec<Prefix> {
        let cut = Cut::new(self.range, self.cut).unwrap();
        (0..cut.count()).filter_map(|n| cut.nth(n)).collect()
    }

    fn is_careless(&self, how: Careless) -> bool {
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
        steps.extend(me.given.iter().map(|address| Step::End(node, *address)));
        let gives = |address: &Address| me.may_give(*address) && !me.given.contains(address);
        // One pod a node: more differ in nothing that the protocol looks at.
        if me.given.is_empty() {
            let lowest = addresses(self.range).into_iter().find(gives);
            steps.extend(lowest.map(|address| Step::Give(node, address)));
        }
        match &me.task {
            Some(Task::Waiting(_)) => return,
            Some(Task::Confirming(_)) => return steps.push(Step::Confirm(node)),
            Some(Task::Confirmed(_)) => return steps.push(Step::Commit(node)),
            Some(Task::Freeing(_)) => return steps.push(Step::Free(node)),
            Some(Task::TakingBack(_)) | None => {}
        }
        self.begin(world, node, steps);
    }

    /// What an agent that is in the middle of nothing may begin.
    fn begin(&self, world: &World, node: usize, steps: &mut Vec<Step>) {
        let me = &world.machines[node];
        for range in me.holdings.keys() {
            match me.verified.contains(range) {
                false => steps.push(Step::Verify(node, *range)),
                true if me.is_idle_in(*range) => steps.push(Step::GiveBack(node, *range)),
                true => {}
            }
        }
        for slot in self.slots() {
            if !world.claims.contains_key(&slot) {
                steps.push(Step::Claim(node, slot));
            }
        }
        for (range, claim) in &world.claims {
            let mine = claim.node == name(node);
            if mine && !me.holdings.contains_key(range) && !me.surrendered.contains_key(range) {
                steps.push(Step::Adopt(node, *range));
            }
            if claim.node.as_str().is_empty() {
                steps.push(Step::Inherit(node, *range));
            }
            if mine && me.verified.contains(range) && !claim.wants.is_empty() {
                steps.push(Step::Answer(node, *range));
            }
            let asked = claim.wants.contains(&name(node));
            if !mine && !asked && me.holdings.is_empty() && !claim.node.as_str().is_empty() {
                steps.push(Step::Want(node, *range));
            }
            for offer in &claim.offers {
                if offer.node == name(node) && !world.claims.contains_key(&offer.range) {
                    steps.push(Step::Take(node, offer.range));
                }
            }
        }
        for (part, parent) in &me.surrendered {
            // A node that was away first finds out what is still its own. One that has inherited a slice of which it
            // held a part gives that part back like any other taker.
            if !me.verified.contains(parent) || me.holdings.contains_key(part) {
                continue;
            }
            let holder = world.claims.get(part).map(|claim| claim.node.clone());
            if holder.is_none_or(|holder| holder == name(node)) {
                steps.push(Step::TakeBack(node, *part));
            }
        }
    }

    pub fn act(&self, world: &mut World, step: &Step) {
        match *step {
            Step::Arrive(at) => self.arrive(world, at),
            Step::Claim(node, range) | Step::Take(node, range) => {
                let uid = world.machines[node].uid;
                world.send(Some(node), Write::Create { range, uid });
            }
            Step::Confirm(node) => self.confirm(world, node),
            Step::Commit(node) => self.commit(world, node),
            Step::Give(node, address) => {
                world.machines[node].given.insert(address);
            }
            Step::End(node, address) => {
                world.machines[node].given.remove(&address);
            }
            Step::GiveBack(node, range) => {
                if world.claims.get(&range).is_none_or(Claimed::may_go) {
                    if !self.is_careless(Careless::TellFirst) {
                        world.machines[node].lose(range);
                    }
                    world.send(
                        Some(node),
                        Write::Delete {
                            range,
                            frees: false,
                        },
                    );
                }
            }
            Step::Want(node, parent) => world.send(Some(node), Write::Want { parent }),
            Step::Answer(node, parent) => self.answer(world, node, parent),
            Step::TakeBack(node, part) => self.take_back(world, node, part),
            Step::Free(node) => {
                let me = &mut world.machines[node];
                if let Some(Task::Freeing(part)) = me.task.take() {
                    me.surrendered.remove(&part);
                }
            }
            Step::Adopt(node, range) => match self.is_careless(Careless::SilentAdoption) {
                true => world.machines[node].task = Some(Task::Confirming(range)),
                false => self.stamp(world, node, range),
            },
            Step::Verify(node, range) => self.verify(world, node, range),
            Step::Inherit(node, range) => {
                let uid = world.machines[node].uid;
                world.send(Some(node), Write::Inherit { range, uid });
            }
            Step::Crash(node) => {
                world.machines[node].task = None;
                world.crashes_left -= 1;
            }
            Step::Outage(node) => {
                let me = &mut world.machines[node];
                me.up = false;
                me.task = None;
                // Its pods are dead; what it has on disk it keeps.
                me.given.clear();
                me.verified.clear();
                world.outages_left -= 1;
            }
            Step::NodeDeleted(node) => world.machines[node].registered = false,
            Step::Return(node) => {
                let me = &mut world.machines[node];
                me.up = true;
                if !me.registered {
                    me.registered = true;
                    me.uid += 1;
                }
            }
            Step::Reclaim(range) => {
                let write = match world.claims[&range].may_go() {
                    true => Write::Delete {
                        range,
                        frees: false,
                    },
                    false => Write::Orphan { range },
                };
                world.send(None, write);
            }
        }
    }

    fn stamp(&self, world: &mut World, node: usize, range: Prefix) {
        let uid = world.machines[node].uid;
        world.send(Some(node), Write::Stamp { range, uid });
    }

    /// Steps 6 and 7 of borrowing; a whole slice needs no leave.
    fn confirm(&self, world: &mut World, node: usize) {
        let Some(Task::Confirming(range)) = world.machines[node].task.take() else {
            return;
        };
        let let_ = range.length() <= self.cut
            || self.is_careless(Careless::NoSecondLook)
            || world
                .parent(range, self.cut)
                .is_some_and(|parent| world.claims[&parent].lets(range, &name(node)));
        match let_ {
            true => world.machines[node].task = Some(Task::Confirmed(range)),
            false => world.send(
                Some(node),
                Write::Delete {
                    range,
                    frees: false,
                },
            ),
        }
    }

    fn commit(&self, world: &mut World, node: usize) {
        let Some(Task::Confirmed(range)) = world.machines[node].task.take() else {
            return;
        };
        // What the agent read when it confirmed: nobody but it may change who holds the claim.
        if let Some(claim) = world.claims.get(&range) {
            world.machines[node].hold(claim);
        }
    }

    /// A donor sets a part aside, then says so.
    fn answer(&self, world: &mut World, node: usize, parent: Prefix) {
        let claim = &world.claims[&parent];
        let Some(taker) = claim.wants.first() else {
            return;
        };
        let to = (0..self.nodes).find(|n| name(*n) == *taker).unwrap();
        let me = &mut world.machines[node];
        let write = match spare(parent, &usable(self.range), &me.pool()) {
            Some(child) => {
                if !self.is_careless(Careless::OfferFirst) {
                    me.surrendered.insert(child, parent);
                }
                Write::Offer { parent, child, to }
            }
            None => Write::Decline { parent, to },
        };
        world.send(Some(node), write);
    }

    /// The claim first, then the offer, then the claim again, then the part is free.
    fn take_back(&self, world: &mut World, node: usize, part: Prefix) {
        let me = &world.machines[node];
        let (uid, parent) = (me.uid, me.surrendered[&part]);
        let offers = world.claims.get(&parent).map(|claim| &claim.offers);
        let offered = offers.is_some_and(|offers| offers.iter().any(|offer| offer.range == part));
        if self.is_careless(Careless::FreeWithoutClaim) {
            match offered {
                true => world.send(
                    Some(node),
                    Write::Withdraw {
                        parent,
                        child: part,
                    },
                ),
                false => world.machines[node].task = Some(Task::Freeing(part)),
            }
            return;
        }
        let fresh = std::mem::take(&mut world.machines[node].task).is_some();
        match world.claims.get(&part) {
            None => return world.send(Some(node), Write::Create { range: part, uid }),
            Some(claim) if claim.node != name(node) => return,
            // Left from before a crash: somebody may be about to delete it.
            Some(_) if !fresh && !self.is_careless(Careless::SilentAdoption) => {
                return self.stamp(world, node, part);
            }
            Some(_) => {}
        }
        match offered || !self.is_careless(Careless::SilentWithdraw) {
            true => world.send(
                Some(node),
                Write::Withdraw {
                    parent,
                    child: part,
                },
            ),
            false => world.send(
                Some(node),
                Write::Delete {
                    range: part,
                    frees: true,
                },
            ),
        }
    }

    fn verify(&self, world: &mut World, node: usize, range: Prefix) {
        let me = &mut world.machines[node];
        let claim = world.claims.get(&range);
        match standing(&name(node), &me.holdings[&range], claim) {
            Standing::Lost { .. } => me.lose(range),
            Standing::Ours if self.is_careless(Careless::SilentReturn) => {
                me.verified.insert(range);
            }
            Standing::Ours => self.stamp(world, node, range),
        }
    }

    fn arrive(&self, world: &mut World, at: usize) {
        let (sent, changed) = world.arrive(at);
        let Some(node) = sent.from else { return };
        let waits = world.machines[node].task == Some(Task::Waiting(sent.write.clone()));
        if waits {
            world.machines[node].task = self.next(world, node, &sent.write, changed);
            // A donor goes on with a part whose claim it has got.
            if let Some(Task::TakingBack(part)) = world.machines[node].task {
                self.take_back(world, node, part);
            }
        }
    }

    /// What follows an answer.
    fn next(&self, world: &mut World, node: usize, write: &Write, done: bool) -> Option<Task> {
        let me = &mut world.machines[node];
        if !done {
            return None;
        }
        match *write {
            Write::Create { range, .. } | Write::Stamp { range, .. }
                if me.surrendered.contains_key(&range) && !me.holdings.contains_key(&range) =>
            {
                Some(Task::TakingBack(range))
            }
            Write::Create { range, .. } | Write::Inherit { range, .. } => {
                Some(Task::Confirming(range))
            }
            Write::Stamp { range, uid } => {
                if let Some(holding) = me.holdings.get_mut(&range) {
                    holding.node_uid = uid.to_string();
                    me.verified.insert(range);
                    return None;
                }
                Some(Task::Confirming(range))
            }
            Write::Withdraw { child, .. }
                if world
                    .claims
                    .get(&child)
                    .is_some_and(|claim| claim.node == name(node)) =>
            {
                world.send(
                    Some(node),
                    Write::Delete {
                        range: child,
                        frees: true,
                    },
                );
                world.machines[node].task.take()
            }
            Write::Withdraw { child, .. } => {
                let freed = self.is_careless(Careless::FreeWithoutClaim);
                freed.then_some(Task::Freeing(child))
            }
            Write::Delete { range, frees: true } => Some(Task::Freeing(range)),
            Write::Delete { range, .. } => {
                me.lose(range);
                None
            }
            Write::Offer { parent, child, .. } => {
                me.surrendered.insert(child, parent);
                None
            }
            _ => None,
        }
    }
}

/// Whoever may give the address, or has given it to a pod that lives.
fn claimants(world: &World, address: Address) -> usize {
    let concerned =
        |machine: &&Machine| machine.may_give(address) || machine.given.contains(&address);
    world.machines.iter().filter(concerned).count()
}

impl Model for Protocol {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        vec![World {
            claims: Default::default(),
            wire: Vec::new(),
            machines: vec![Machine::fresh(); self.nodes],
            crashes_left: self.crashes,
            outages_left: self.outages,
        }]
    }

    fn actions(&self, world: &World, steps: &mut Vec<Step>) {
        steps.extend((0..world.wire.len()).map(Step::Arrive));
        if world.wire.len() >= self.wire {
            // Too many on their way: something has to arrive, or somebody to fail.
            for node in 0..self.nodes {
                let mut all = Vec::new();
                self.steps_of(world, node, &mut all);
                let quiet = |step: &Step| {
                    matches!(
                        step,
                        Step::Crash(_) | Step::Outage(_) | Step::Commit(_) | Step::Free(_)
                    )
                };
                steps.extend(all.into_iter().filter(quiet));
            }
            return;
        }
        for node in 0..self.nodes {
            self.steps_of(world, node, steps);
        }
        let gone = |range: &Prefix| {
            let of = (0..self.nodes).find(|node| name(*node) == world.claims[range].node);
            of.is_some_and(|node| !world.machines[node].registered)
        };
        for range in world.claims.keys().filter(|range| gone(range)) {
            // Whole before part: what the lost node still had on its way to the whole dies before another can have
            // the part.
            let parent = world.parent(*range, self.cut);
            if self.is_careless(Careless::PartFirst) || !parent.is_some_and(|parent| gone(&parent))
            {
                steps.push(Step::Reclaim(*range));
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
                "a part is borrowed and given",
                |model: &Protocol, world: &World| {
                    let borrowed = |machine: &Machine| {
                        let mut parts = machine.holdings.keys().filter(|r| r.length() > model.cut);
                        parts
                            .any(|part| machine.given.iter().any(|address| part.contains(*address)))
                    };
                    world.machines.iter().any(borrowed)
                },
            ),
            Property::sometimes("a lost slice is another's", |_, world: &World| {
                let lost = |claim: &Claimed| claim.epoch.0 > 1 && !claim.node.as_str().is_empty();
                world.claims.values().any(lost)
            }),
        ]
    }
}
