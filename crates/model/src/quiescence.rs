//! What the cluster settles to without new faults and pods: every write arrives, every task ends, and every claim can
//! be returned. A claim that can't is lost for good.

use berth_core::slice::elastic::Claimed;

use crate::cluster::Cluster;
use crate::machine::{Machine, Task, name};
use crate::protocol::{Protocol, Step};

/// More than any tiny cluster needs.
const STEPS: usize = 300;

pub fn settles(model: &Protocol, cluster: &Cluster) -> bool {
    // States between these lead to one of these.
    if !cluster.wire.is_empty()
        || cluster
            .machines
            .iter()
            .any(|machine| machine.task.is_some())
    {
        return true;
    }
    let mut cluster = cluster.clone();
    for _ in 0..STEPS {
        let Some(step) = next(model, &cluster) else {
            let empty = |machine: &Machine| machine.holdings.is_empty() && machine.rows.is_empty();
            return cluster.claims.is_empty() && cluster.machines.iter().all(empty);
        };
        model.act(&mut cluster, &step);
    }
    false
}

/// The next step of a write in flight or of a task.
pub fn busy(cluster: &Cluster) -> Option<Step> {
    if !cluster.wire.is_empty() {
        return Some(Step::Arrive(0));
    }
    let is_busy = |machine: &Machine| !matches!(machine.task, Some(Task::Waiting(_)) | None);
    cluster.machines.iter().position(is_busy).map(Step::GoOn)
}

/// The first step that some node takes without a request for an address.
fn next(model: &Protocol, cluster: &Cluster) -> Option<Step> {
    if let Some(step) = busy(cluster) {
        return Some(step);
    }
    let nodes = || cluster.machines.iter().enumerate();
    if let Some((node, _)) = nodes().find(|(_, machine)| !machine.up) {
        return Some(Step::Return(node));
    }
    if let Some((node, _)) = nodes().find(|(_, machine)| !machine.registered) {
        return Some(Step::Register(node));
    }
    for (node, machine) in nodes() {
        let mut verified = machine.verified.iter();
        if let Some(range) = verified.find(|range| cluster.is_lost(node, **range)) {
            return Some(Step::Notice(node, *range));
        }
        if let Some(address) = machine.allocated.first() {
            return Some(Step::End(node, *address));
        }
        let unverified = machine
            .holdings
            .keys()
            .find(|range| !machine.verified.contains(*range));
        if let Some(range) = unverified {
            return Some(Step::Verify(node, *range));
        }
        for (range, claim) in &cluster.claims {
            if claim.node == name(node) && !machine.holdings.contains_key(range) {
                return Some(Step::Adopt(node, *range));
            }
            if claim.node.as_str().is_empty() {
                return Some(Step::Inherit(node, *range));
            }
        }
        if let Some(part) = model.unsettled(cluster, node).first() {
            return Some(Step::Settle(node, *part));
        }
    }
    for (node, machine) in nodes() {
        for range in machine.holdings.keys() {
            let free = cluster.claims.get(range).is_none_or(Claimed::may_go);
            if machine.is_idle_in(*range) && free {
                return Some(Step::ReturnSlice(node, *range));
            }
        }
        for claim in cluster.claims.values().filter(|one| one.node == name(node)) {
            let mut offers = claim.offers.iter();
            let untaken = offers.find(|offer| !cluster.claims.contains_key(&offer.range));
            if let Some(offer) = untaken {
                return Some(Step::TakeBack(node, offer.range));
            }
        }
    }
    None
}
