//! The decision: pure, from what was observed.

use std::collections::BTreeSet;
use std::time::Duration;

use berth_collector::suspicions::Round;
use berth_core::{Address, Offset};

use super::collisions;
use crate::pool::{
    Described, Health, Holder, Offsets, Place, PoolSpace, Recorded, SpecError, shortened,
};

/// An enactment's claim to an address of this pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    pub address: Address,
    pub node: String,
    pub policy: String,
    pub capture: String,
}

/// An address of this pool on an interface, in a NodeNetworkState.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    pub address: Address,
    pub node: String,
    pub interface: String,
}

/// An address that a node was about to apply, and the machine that uses it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answered {
    pub address: Address,
    pub node: String,
    pub interface: String,
    /// The node that has the answering interface, or the hardware address of what is no node.
    pub other: String,
}

#[derive(Clone, Debug)]
pub struct Observed<'a> {
    /// The UID of the pool: one that was created again is another pool.
    pub uid: &'a str,
    pub space: Result<&'a PoolSpace, &'a SpecError>,
    pub recorded: &'a Recorded,
    /// The pool's status has no condition yet: it is a new one.
    pub new: bool,
    /// The pool's condition is ReconcilingPool.
    pub reconciling: bool,
    /// A reset is asked for: on the pool, on a policy (every node) or on an enactment.
    pub resets: Vec<Reset>,
    /// The other pools that can be read.
    pub others: Vec<(&'a str, &'a PoolSpace)>,
    /// The claims of all enactments on this pool.
    pub claims: Vec<Claim>,
    /// Who may hold an address: nodes that exist, of policies that exist, select them and name this pool in that capture.
    pub live: BTreeSet<Holder>,
    /// The nodes that exist.
    pub nodes: BTreeSet<String>,
    pub shown: Vec<Seen>,
    /// Addresses that another machine answered for, when a node probed its link.
    pub answered: Vec<Answered>,
    /// A claim that found no free address since the pool last had one.
    pub refused: Option<String>,
}

/// Where `nmstate.io/reset-ippool` stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reset {
    Pool,
    Policy(String),
    Enactment { node: String, policy: String },
}

impl Reset {
    fn covers(&self, holder: Option<&Described>) -> bool {
        match (self, holder) {
            (Reset::Pool, _) => true,
            (Reset::Policy(policy), Some(holder)) => holder.policy == *policy,
            (Reset::Enactment { node, policy }, Some(holder)) => {
                holder.node == *node && holder.policy == *policy
            }
            _ => false,
        }
    }
}

/// Why an offset is free again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freed {
    NodeGone,
    /// The policy is deleted, no longer selects the node, or no longer names the pool.
    PolicyGone,
    /// Nothing says whose it was.
    Stale,
    /// A reset was asked for.
    Reset,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Writes what could not be read to `set-aside`.
    SetAside,
    /// Takes an enactment's claim into the pool.
    Adopt(Described),
    /// Takes an address into the pool, without an owner, because a host shows it: no other host may get it.
    Hold {
        offset: u64,
        seen: Seen,
    },
    /// Removes the description of an offset. Its owner's enactment claims it, and the status describes too many; or it claims another
    /// address, and the offset is released next. From then on no handler applies the address unless its enactment claims it.
    Undescribe(Described),
    /// Reads owner, enactments and hosts again with quorum, then releases the offset; it cools down for that long.
    Release {
        offset: u64,
        address: Address,
        holder: Option<Holder>,
        why: Freed,
        cooldown: Duration,
    },
    /// An offset that belongs to no policy is still shown by a host: an event names node and interface.
    ReportHeld {
        offset: u64,
        seen: Seen,
    },
    /// An enactment of a node that is gone.
    DeleteEnactment {
        node: String,
        policy: String,
    },
    RemoveReset(Reset),
    /// An event: a claim that the pool does not have.
    ReportForeign(Claim),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    pub steps: Vec<Step>,
    pub health: Health,
}

/// What the leader does next about one pool. The round has the suspicions of earlier reads: one read alone releases nothing (I4).
pub fn plan(observed: &Observed<'_>, round: &mut Round<'_>) -> Outcome {
    let space = match observed.space {
        Ok(space) => space,
        Err(error) => {
            return Outcome {
                steps: Vec::new(),
                health: Health::Invalid {
                    why: error.to_string(),
                },
            };
        }
    };
    let plan = Plan { observed, space };
    let mut steps = Vec::new();
    if !observed.recorded.set_aside.is_empty() {
        steps.push(Step::SetAside);
    }
    steps.extend(plan.dead_enactments());
    let adopted = plan.adopted(&mut steps);
    plan.release(&adopted, round, &mut steps);
    plan.shorten(&adopted, &mut steps);
    let changes = changes(&steps);
    // Every reset is shown for as long as its annotation is there.
    if !changes && observed.reconciling {
        steps.extend(observed.resets.iter().cloned().map(Step::RemoveReset));
    }
    let rebuilding = plan.rebuilding(changes);
    Outcome {
        health: plan.health(rebuilding, &adopted, &steps),
        steps,
    }
}

/// Whether the pool is not yet as a reset leaves it.
fn changes(steps: &[Step]) -> bool {
    steps.iter().any(|step| {
        let reset = Freed::Reset;
        matches!(
            step,
            Step::Adopt(_) | Step::Hold { .. } | Step::Undescribe(_)
        ) || matches!(step, Step::Release { why, .. } if *why == reset)
    })
}

struct Plan<'a> {
    observed: &'a Observed<'a>,
    space: &'a PoolSpace,
}

impl Plan<'_> {
    /// Claims of nodes that exist. The enactment of a node that is gone claims nothing.
    fn claims(&self) -> impl Iterator<Item = &Claim> {
        let nodes = &self.observed.nodes;
        self.observed
            .claims
            .iter()
            .filter(|claim| nodes.contains(&claim.node))
    }

    fn dead_enactments(&self) -> Vec<Step> {
        let nodes = &self.observed.nodes;
        let dead = self
            .observed
            .claims
            .iter()
            .filter(|claim| !nodes.contains(&claim.node));
        let names: BTreeSet<(&str, &str)> = dead
            .map(|claim| (claim.node.as_str(), claim.policy.as_str()))
            .collect();
        let step = |(node, policy): (&str, &str)| Step::DeleteEnactment {
            node: node.to_owned(),
            policy: policy.to_owned(),
        };
        names.into_iter().map(step).collect()
    }

    /// The pool's offsets with those that enactments claim and hosts show. The first claim to an address counts; another is a collision.
    fn adopted(&self, steps: &mut Vec<Step>) -> BTreeSet<u64> {
        let mut held: BTreeSet<u64> = self.observed.recorded.offsets.iter().collect();
        let owned: BTreeSet<u64> = self
            .observed
            .recorded
            .described
            .iter()
            .map(|one| one.offset)
            .collect();
        let mut taken = BTreeSet::new();
        for claim in self.claims() {
            let offset = match self.space.place(claim.address) {
                Place::Outside | Place::Skipped => None,
                place => place
                    .offset()
                    .and_then(|offset| u64::try_from(offset.0).ok()),
            };
            let Some(offset) = offset else {
                steps.push(Step::ReportForeign(claim.clone()));
                continue;
            };
            let described = owned.contains(&offset) || (held.contains(&offset) && self.is_large());
            if !taken.insert(offset) || described {
                continue;
            }
            held.insert(offset);
            steps.push(Step::Adopt(Described {
                offset,
                address: claim.address,
                node: claim.node.clone(),
                policy: claim.policy.clone(),
                capture: claim.capture.clone(),
            }));
        }
        for seen in &self.observed.shown {
            let offset = self.space.offset(seen.address);
            let offset = offset.and_then(|offset| u64::try_from(offset.0).ok());
            if let Some(offset) = offset.filter(|offset| held.insert(*offset)) {
                let seen = seen.clone();
                steps.push(Step::Hold { offset, seen });
            }
        }
        held
    }

    /// More offsets than a status describes: one without a description is nothing unusual.
    fn is_large(&self) -> bool {
        self.observed.recorded.offsets.iter().count() > berth_api::nmstate::MAX_DESCRIBED
    }

    /// The held offsets that no enactment claims and that belong to no live owner.
    fn unclaimed(&self, held: &BTreeSet<u64>) -> Vec<u64> {
        let claimed: BTreeSet<u64> = self
            .claims()
            .filter_map(|claim| u64::try_from(self.space.offset(claim.address)?.0).ok())
            .collect();
        let unclaimed = held.iter().copied();
        unclaimed
            .filter(|offset| !claimed.contains(offset) && !self.is_live(*offset))
            .collect()
    }

    fn described(&self, offset: u64) -> Option<&Described> {
        self.observed
            .recorded
            .described
            .iter()
            .find(|one| one.offset == offset)
    }

    /// The owner may still write its enactment: it claims in the pool first. One whose enactment claims another address has moved.
    fn is_live(&self, offset: u64) -> bool {
        let Some(one) = self.described(offset) else {
            return false;
        };
        let mut claims = self.claims();
        let moved = claims.any(|claim| is_of(claim, one) && claim.address != one.address);
        self.may_hold(one) && !moved
    }

    fn may_hold(&self, one: &Described) -> bool {
        self.observed.live.contains(&holder(one))
    }

    /// Removes descriptions that enactments make superfluous, where there are more than a status has room for.
    fn shorten(&self, held: &BTreeSet<u64>, steps: &mut Vec<Step>) {
        let adopted = steps.iter().filter_map(|step| match step {
            Step::Adopt(one) => Some(one),
            _ => None,
        });
        let all: BTreeSet<&Described> = self
            .observed
            .recorded
            .described
            .iter()
            .chain(adopted)
            .collect();
        let all: Vec<Described> = all.into_iter().cloned().collect();
        let Some(most) = shortened(self.space, held, &all) else {
            return;
        };
        let claimed: BTreeSet<(Address, &str, &str, &str)> = self.claims().map(key).collect();
        let is_claimed = |one: &&Described| {
            let (node, policy) = (one.node.as_str(), one.policy.as_str());
            claimed.contains(&(one.address, node, policy, one.capture.as_str()))
        };
        let superfluous = all.iter().rev().filter(is_claimed);
        let superfluous: Vec<Step> = superfluous
            .take(all.len() - most)
            .map(|one| Step::Undescribe(one.clone()))
            .collect();
        steps.extend(superfluous);
    }

    /// Offsets that are free again, and those that a host still shows.
    fn release(&self, held: &BTreeSet<u64>, round: &mut Round<'_>, steps: &mut Vec<Step>) {
        for offset in self.unclaimed(held) {
            let Some(address) = self.space.address(Offset(offset.into())) else {
                continue;
            };
            let described = self.described(offset);
            let owner = described.map(holder);
            let mut resets = self.observed.resets.iter();
            let reset = resets.any(|reset| reset.covers(described));
            let grace = match reset {
                true => Duration::ZERO,
                false => round.usual_grace(),
            };
            if !round.is_due((self.observed.uid, offset, &owner), grace) {
                continue;
            }
            // Its owner may record it at any time: the pool disowns it first, and the next pass reads the enactments again.
            if let Some(one) = described.filter(|one| self.may_hold(one)) {
                steps.push(Step::Undescribe(one.clone()));
                continue;
            }
            let mut shown = self.observed.shown.iter();
            steps.push(match shown.find(|seen| seen.address == address) {
                Some(seen) => Step::ReportHeld {
                    offset,
                    seen: seen.clone(),
                },
                None => Step::Release {
                    offset,
                    address,
                    holder: owner,
                    why: match described {
                        _ if reset => Freed::Reset,
                        None => Freed::Stale,
                        Some(one) if !self.observed.nodes.contains(&one.node) => Freed::NodeGone,
                        Some(_) => Freed::PolicyGone,
                    },
                    cooldown: self.space.reuse_delay(),
                },
            });
        }
    }

    /// The pool is being brought in line with the enactments: nothing new is allocated meanwhile.
    fn rebuilding(&self, changes: bool) -> bool {
        let recorded = self.observed.recorded;
        let unread = recorded.offsets == Offsets::Emptied || !recorded.set_aside.is_empty();
        !self.observed.resets.is_empty() || (changes && (unread || self.observed.new))
    }

    fn health(&self, rebuilding: bool, held: &BTreeSet<u64>, steps: &[Step]) -> Health {
        if let Some(fault) = self.observed.recorded.set_aside.first() {
            return Health::Unsynchronized {
                why: format!(
                    "status.{}: {}; it is kept in status.set-aside, and the pool is rebuilt from the enactments",
                    fault.field, fault.why
                ),
            };
        }
        if rebuilding {
            return Health::Reconciling;
        }
        let overlap = self
            .observed
            .others
            .iter()
            .find_map(|(name, other)| Some((name, self.space.overlap(other)?)));
        if let Some((name, block)) = overlap {
            return Health::Overlapping {
                other: (*name).to_owned(),
                block,
            };
        }
        if let Some(collision) = collisions::find(self.observed) {
            return Health::Collision(collision);
        }
        if let Some(claim) = self
            .observed
            .refused
            .as_ref()
            .filter(|_| self.is_full(held))
        {
            return Health::Exhausted {
                claim: claim.clone(),
            };
        }
        let shown = steps.iter().filter_map(|step| match step {
            Step::ReportHeld { seen, .. } => Some(format!(
                "{} belongs to no policy and stays held, because node {} has it on interface {}",
                seen.address, seen.node, seen.interface
            )),
            _ => None,
        });
        Health::UpToDate {
            notes: self.space.warnings().chain(shown).collect(),
        }
    }

    fn is_full(&self, held: &BTreeSet<u64>) -> bool {
        let counts = |offset: &&u64| {
            let address = self.space.address(Offset((**offset).into()));
            address
                .is_some_and(|address| matches!(self.space.place(address), Place::Allocatable(_)))
        };
        held.iter().filter(counts).count() as u128 >= self.space.total()
    }
}

/// Whether a claim is of the owner of an allocation.
fn is_of(claim: &Claim, one: &Described) -> bool {
    claim.node == one.node && claim.policy == one.policy && claim.capture == one.capture
}

fn key(claim: &Claim) -> (Address, &str, &str, &str) {
    let Claim {
        address,
        node,
        policy,
        capture,
    } = claim;
    (*address, node, policy, capture)
}

fn holder(one: &Described) -> Holder {
    Holder {
        node: one.node.clone(),
        policy: one.policy.clone(),
        capture: one.capture.clone(),
    }
}

#[cfg(test)]
mod tests;
