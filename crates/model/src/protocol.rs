//! The slice protocol (docs/decisions/0006-slices.md) as a model: the possible next steps of a cluster, and its
//! invariants.

use berth_core::{Address, Prefix, slice::Cut};
use stateright::{Model, Property};

use crate::cluster::{Cluster, addresses};
use crate::machine::{Machine, Task, name};
use crate::quiescence::{busy, settles};

/// The protocol with one of its precautions left out, to show why it is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Careless {
    Not,
    /// A taker trusts the offer that it read before its claim.
    NoSecondRead,
    /// A part is freed when its offer is gone, even if its claim may be in flight.
    FreeWithoutClaim,
    /// An offer that does not exist is not withdrawn: without a write, an older offer may still arrive.
    SilentWithdraw,
    /// An earlier claim is adopted without a write at the API server.
    SilentAdoption,
    /// A node that was away verifies and continues without a write, although its slice is recalled.
    SilentReturn,
    /// The claim is changed first, the holding after.
    WriteFirst,
    /// The controller reclaims a part of a lost node's slice before the whole.
    PartFirst,
    /// The controller reclaims in the write that follows its read.
    NoRecall,
    /// A recalled claim is reclaimed before a running agent has noticed the recall: the agent is cut off, or the
    /// pause is too short.
    Unnoticed,
    /// A recalled claim is reclaimed without a second read.
    NoReadAfter,
    /// A donor offers a part before it has set it aside.
    OfferFirst,
    /// A part may be offered again although it was offered before.
    OfferAgain,
    /// A claim of a part is adopted although the slice it was cut from is gone.
    AdoptLeftover,
    /// A slice is transferred before its holding is dropped.
    TransferFirst,
    /// A slice is transferred although other nodes have parts of it.
    TransferLent,
    /// A nested slice is dropped without being set aside in the outer one.
    CloseBare,
    /// The addresses of a dropped slice are free again, although another slice of the node contains it.
    FreeInside,
    /// What a crash left set aside inside a held slice is never freed.
    KeepClosed,
    /// A slice is put into use as a whole, and its parts are set aside after that.
    EmptyFirst,
    /// A part counts as the node's own although it was lost.
    CountLost,
    /// A part is taken to be cut from the first slice that contains it, not from the smallest.
    OuterFirst,
}

#[derive(Clone, Debug)]
pub struct Protocol {
    pub nodes: usize,
    pub range: Prefix,
    pub cut: u8,
    pub crashes: u8,
    pub outages: u8,
    /// Node objects that may be deleted while their agents run.
    pub deletions: u8,
    pub transfers: u8,
    /// Pods that a node may have at once.
    pub pods: usize,
    /// The history before the search: each step is run to its end.
    pub history: Vec<Step>,
    /// Writes in flight at once.
    pub wire: usize,
    pub careless: Careless,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    Arrive(usize),
    Claim(usize, Prefix),
    /// The next step of the node's task.
    GoOn(usize),
    Allocate(usize, Address),
    End(usize, Address),
    ReturnSlice(usize, Prefix),
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
    /// The Node object is created again under an agent that never stopped.
    Register(usize),
    Return(usize),
    /// The agent notices that one of its slices is recalled, or another node's.
    Notice(usize, Prefix),
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

    /// The possible next steps of a node.
    fn steps_of(&self, cluster: &Cluster, node: usize, steps: &mut Vec<Step>) {
        let me = &cluster.machines[node];
        if !me.up {
            steps.push(Step::Return(node));
            if me.registered {
                steps.push(Step::NodeDeleted(node));
            }
            return;
        }
        if cluster.crashes_left > 0 && me.task.is_some() {
            steps.push(Step::Crash(node));
        }
        if cluster.outages_left > 0 {
            steps.push(Step::Outage(node));
        }
        match me.registered {
            true if cluster.deletions_left > 0 => steps.push(Step::NodeDeleted(node)),
            true => {}
            false => steps.push(Step::Register(node)),
        }
        // Possible during any task: allocating less needs no permission.
        let unnoticed = me
            .verified
            .iter()
            .filter(|range| cluster.is_lost(node, **range));
        steps.extend(unnoticed.map(|range| Step::Notice(node, *range)));
        steps.extend(me.allocated.iter().map(|address| Step::End(node, *address)));
        // The lowest: the others differ in nothing that the protocol reads. Pods are scheduled only to registered
        // nodes.
        if me.registered && me.allocated.len() < self.pods {
            let allocates =
                |address: &Address| me.may_allocate(*address) && !me.allocated.contains(address);
            let lowest = addresses(self.range).into_iter().find(allocates);
            steps.extend(lowest.map(|address| Step::Allocate(node, address)));
        }
        match &me.task {
            Some(Task::Waiting(_)) => {}
            Some(_) => steps.push(Step::GoOn(node)),
            None => self.start_task(cluster, node, steps),
        }
    }

    /// What an agent without a task may start.
    fn start_task(&self, cluster: &Cluster, node: usize, steps: &mut Vec<Step>) {
        let me = &cluster.machines[node];
        // A node that was away first verifies what it still holds.
        let unknown = me
            .holdings
            .keys()
            .find(|range| !me.verified.contains(*range));
        if let Some(range) = unknown {
            return steps.push(Step::Verify(node, *range));
        }
        let unsettled = self.unsettled(cluster, node);
        // A part that lies in none of its slices any more is irrelevant.
        let leftover = |part: &&Prefix| self.around(cluster, node, **part).is_none();
        if let Some(part) = unsettled.iter().find(leftover) {
            return steps.push(Step::Settle(node, *part));
        }
        for range in me.holdings.keys().filter(|range| me.is_idle_in(**range)) {
            steps.push(Step::ReturnSlice(node, *range));
        }
        let is_free = |slot: &Prefix| !cluster.claims.contains_key(slot);
        let free = self.slots().into_iter().filter(is_free);
        steps.extend(free.map(|slot| Step::Claim(node, slot)));
        for (range, claim) in &cluster.claims {
            let mine = claim.node == name(node);
            // A recalled slice is resumed only by a node that has read its own Node: otherwise the two would
            // alternate.
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
            // Any node may request at any time; here one that has none, or one for a part that it has lent.
            let lent = self.transfers > 0 && me.lies_in_another(*range);
            let asks = me.holdings.is_empty() || lent;
            let asked = claim.wants.contains(&name(node));
            if !mine && asks && !asked && !claim.node.as_str().is_empty() {
                steps.push(Step::Want(node, *range));
            }
            for offer in &claim.offers {
                if cluster.claims.contains_key(&offer.range) {
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

    /// What the controller may do with a claim: recall it on proof, and reclaim it on a second proof, after every
    /// running agent has noticed.
    fn controller(&self, cluster: &Cluster, range: Prefix) -> Option<Step> {
        let claim = &cluster.claims[&range];
        let holder = (0..self.nodes).find(|node| name(*node) == claim.node)?;
        let node = &cluster.machines[holder];
        // Quorum reads: the Node is gone, and has no pod left. The read a grace period earlier adds nothing here.
        let is_proved = !node.registered && !node.has_pod_in(range);
        // The whole before a part: the lost node's writes to the whole must fail before another node can have the
        // part.
        let is_part = cluster.claims.iter().any(|(other, whole)| {
            *other != range && other.covers(range) && whole.node == claim.node
        });
        if is_part && !self.is_careless(Careless::PartFirst) {
            return None;
        }
        if !claim.recalled && !self.is_careless(Careless::NoRecall) {
            return is_proved.then_some(Step::Recall(range));
        }
        let has_noticed = self.is_careless(Careless::NoRecall)
            || self.is_careless(Careless::Unnoticed)
            || !node.concerns_itself_with(range);
        let is_seen = is_proved || self.is_careless(Careless::NoReadAfter);
        (is_seen && has_noticed).then_some(Step::Reclaim(range))
    }
}

/// How many machines may allocate the address, or have a running pod with it.
fn claimants(cluster: &Cluster, address: Address) -> usize {
    let concerned =
        |machine: &&Machine| machine.may_allocate(address) || machine.allocated.contains(&address);
    cluster.machines.iter().filter(concerned).count()
}

/// Whether a machine may allocate from a part; with `nested`, from one that lies in another slice of it.
fn allocates_from_part(model: &Protocol, machine: &Machine, nested: bool) -> bool {
    let mut parts = machine.holdings.keys();
    parts.any(|part| {
        part.length() > model.cut
            && machine.verified.contains(part)
            && machine.lies_in_another(*part) == nested
            && machine.may_allocate(part.network())
    })
}

impl Model for Protocol {
    type State = Cluster;
    type Action = Step;

    fn init_states(&self) -> Vec<Cluster> {
        let mut cluster = Cluster {
            claims: Default::default(),
            wire: Vec::new(),
            machines: vec![Machine::fresh(); self.nodes],
            crashes_left: self.crashes,
            outages_left: self.outages,
            deletions_left: self.deletions,
            transfers_left: self.transfers,
        };
        for step in &self.history {
            let mut possible = Vec::new();
            self.actions(&cluster, &mut possible);
            assert!(possible.contains(step), "{step:?} of {possible:?}");
            self.act(&mut cluster, step);
            while let Some(step) = busy(&cluster) {
                self.act(&mut cluster, &step);
            }
        }
        vec![cluster]
    }

    fn actions(&self, cluster: &Cluster, steps: &mut Vec<Step>) {
        let is_full = cluster.wire.len() >= self.wire;
        // Private steps run before all others, or not at all: all other orders have the same result.
        let is_private = |task: &Task| task.is_local() || task.is_planned() && !is_full;
        let private = |machine: &Machine| machine.task.as_ref().is_some_and(is_private);
        if let Some(node) = cluster.machines.iter().position(private) {
            steps.push(Step::GoOn(node));
            if cluster.crashes_left > 0 {
                steps.push(Step::Crash(node));
            }
            if cluster.outages_left > 0 {
                steps.push(Step::Outage(node));
            }
            return;
        }
        steps.extend((0..cluster.wire.len()).map(Step::Arrive));
        if is_full {
            // Too many writes in flight: one must arrive, or a node must crash.
            for node in 0..self.nodes {
                let mut all = Vec::new();
                self.steps_of(cluster, node, &mut all);
                all.retain(|step| matches!(step, Step::Crash(_) | Step::Outage(_)));
                steps.extend(all);
            }
            return;
        }
        for node in 0..self.nodes {
            self.steps_of(cluster, node, steps);
        }
        // The controller does one thing at a time: it is one process.
        if cluster.wire.iter().all(|sent| sent.from.is_some()) {
            for range in cluster.claims.keys() {
                steps.extend(self.controller(cluster, *range));
            }
        }
    }

    fn next_state(&self, last: &Cluster, step: Step) -> Option<Cluster> {
        let mut cluster = last.clone();
        self.act(&mut cluster, &step);
        Some(cluster)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(
                "one holder (S, I1, I8)",
                |model: &Protocol, cluster: &Cluster| {
                    addresses(model.range)
                        .into_iter()
                        .all(|address| claimants(cluster, address) <= 1)
                },
            ),
            Property::always(
                "nothing is lost after quiescence",
                |model: &Protocol, cluster: &Cluster| settles(model, cluster),
            ),
            Property::sometimes(
                "a part is borrowed and may be allocated",
                |model: &Protocol, cluster: &Cluster| {
                    let mut machines = cluster.machines.iter();
                    machines.any(|machine| allocates_from_part(model, machine, false))
                },
            ),
            Property::sometimes(
                "a part is borrowed back and may be allocated",
                |model: &Protocol, cluster: &Cluster| {
                    let mut machines = cluster.machines.iter();
                    machines.any(|machine| allocates_from_part(model, machine, true))
                },
            ),
            Property::sometimes(
                "a node allocates from two slices",
                |model: &Protocol, cluster: &Cluster| {
                    let slots = model.slots();
                    let allocates = |machine: &Machine| {
                        let held = slots
                            .iter()
                            .filter(|slot| machine.may_allocate(slot.network()));
                        held.count() > 1
                    };
                    cluster.machines.iter().any(allocates)
                },
            ),
            Property::sometimes(
                "a slice of a later epoch may be allocated",
                |_, cluster: &Cluster| {
                    let mut machines = cluster.machines.iter();
                    machines.any(|machine| {
                        let mut held = machine.holdings.values();
                        held.any(|known| {
                            known.epoch.0 > 1 && machine.may_allocate(known.range.network())
                        })
                    })
                },
            ),
        ]
    }
}
