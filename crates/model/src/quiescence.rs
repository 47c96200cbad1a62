//! What the cluster comes to when no fault and no pod is new: everything on its way arrives, everyone finishes, and every
//! claim can be given back. Whatever can't is lost for good.

use berth_core::slice::elastic::Claimed;

use crate::machine::{Machine, Task, name};
use crate::protocol::{Protocol, Step};
use crate::world::World;

/// More than any tiny cluster needs.
const STEPS: usize = 300;

pub fn settles(model: &Protocol, world: &World) -> bool {
    // Those in between lead to one of these.
    if !world.wire.is_empty() || world.machines.iter().any(|machine| machine.task.is_some()) {
        return true;
    }
    let mut world = world.clone();
    for _ in 0..STEPS {
        let Some(step) = next(model, &world) else {
            let empty = |machine: &Machine| machine.holdings.is_empty() && machine.rows.is_empty();
            return world.claims.is_empty() && world.machines.iter().all(empty);
        };
        model.act(&mut world, &step);
    }
    false
}

/// How what is on its way, or begun, goes on.
pub fn busy(world: &World) -> Option<Step> {
    if !world.wire.is_empty() {
        return Some(Step::Arrive(0));
    }
    let is_busy = |machine: &Machine| !matches!(machine.task, Some(Task::Waiting(_)) | None);
    world.machines.iter().position(is_busy).map(Step::GoOn)
}

/// The first thing that anybody would do without being asked for an address.
fn next(model: &Protocol, world: &World) -> Option<Step> {
    if let Some(step) = busy(world) {
        return Some(step);
    }
    let nodes = || world.machines.iter().enumerate();
    if let Some((node, _)) = nodes().find(|(_, machine)| !machine.up) {
        return Some(Step::Return(node));
    }
    if let Some((node, _)) = nodes().find(|(_, machine)| !machine.registered) {
        return Some(Step::Register(node));
    }
    for (node, machine) in nodes() {
        let mut verified = machine.verified.iter();
        if let Some(range) = verified.find(|range| world.is_lost(node, **range)) {
            return Some(Step::Heed(node, *range));
        }
        if let Some(address) = machine.given.first() {
            return Some(Step::End(node, *address));
        }
        let unverified = machine
            .holdings
            .keys()
            .find(|range| !machine.verified.contains(*range));
        if let Some(range) = unverified {
            return Some(Step::Verify(node, *range));
        }
        for (range, claim) in &world.claims {
            if claim.node == name(node) && !machine.holdings.contains_key(range) {
                return Some(Step::Adopt(node, *range));
            }
            if claim.node.as_str().is_empty() {
                return Some(Step::Inherit(node, *range));
            }
        }
        if let Some(part) = model.unsettled(world, node).first() {
            return Some(Step::Settle(node, *part));
        }
    }
    for (node, machine) in nodes() {
        for range in machine.holdings.keys() {
            let free = world.claims.get(range).is_none_or(Claimed::may_go);
            if machine.is_idle_in(*range) && free {
                return Some(Step::GiveBack(node, *range));
            }
        }
        for claim in world.claims.values().filter(|one| one.node == name(node)) {
            let mut offers = claim.offers.iter();
            let untaken = offers.find(|offer| !world.claims.contains_key(&offer.range));
            if let Some(offer) = untaken {
                return Some(Step::TakeBack(node, offer.range));
            }
        }
    }
    None
}
