//! What the cluster comes to when no fault and no pod is new: everything on its way arrives, everyone finishes, and every
//! claim can be given back. Whatever can't is lost for good.

use berth_core::slice::elastic::Claimed;

use crate::protocol::{Protocol, Step};
use crate::world::{Task, World, name};

/// More than any tiny cluster needs.
const STEPS: usize = 300;

pub fn settles(model: &Protocol, world: &World) -> bool {
    // Those in between lead to one of these.
    if !world.wire.is_empty() || world.machines.iter().any(|machine| machine.task.is_some()) {
        return true;
    }
    let mut world = world.clone();
    for _ in 0..STEPS {
        let Some(step) = next(&world) else {
            let empty = |machine: &crate::world::Machine| {
                machine.holdings.is_empty() && machine.surrendered.is_empty()
            };
            return world.claims.is_empty() && world.machines.iter().all(empty);
        };
        model.act(&mut world, &step);
    }
    false
}

/// The first thing that anybody would do without being asked for an address.
fn next(world: &World) -> Option<Step> {
    if !world.wire.is_empty() {
        return Some(Step::Arrive(0));
    }
    let nodes = || world.machines.iter().enumerate();
    for (node, machine) in nodes() {
        match &machine.task {
            Some(Task::Confirming(_)) => return Some(Step::Confirm(node)),
            Some(Task::Confirmed(_)) => return Some(Step::Commit(node)),
            Some(Task::Freeing(_)) => return Some(Step::Free(node)),
            Some(Task::Waiting(_) | Task::TakingBack(_)) | None => {}
        }
    }
    if let Some((node, _)) = nodes().find(|(_, machine)| !machine.up) {
        return Some(Step::Return(node));
    }
    for (node, machine) in nodes() {
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
            let unknown =
                !machine.holdings.contains_key(range) && !machine.surrendered.contains_key(range);
            if claim.node == name(node) && unknown {
                return Some(Step::Adopt(node, *range));
            }
            if claim.node.as_str().is_empty() {
                return Some(Step::Inherit(node, *range));
            }
        }
    }
    for (node, machine) in nodes() {
        for range in machine.holdings.keys() {
            let free = world.claims.get(range).is_none_or(Claimed::may_go);
            if machine.is_idle_in(*range) && free {
                return Some(Step::GiveBack(node, *range));
            }
        }
        for part in machine.surrendered.keys() {
            let holder = world.claims.get(part).map(|claim| claim.node.clone());
            let idle = !machine.holdings.contains_key(part);
            if idle && holder.is_none_or(|holder| holder == name(node)) {
                return Some(Step::TakeBack(node, *part));
            }
        }
    }
    None
}
