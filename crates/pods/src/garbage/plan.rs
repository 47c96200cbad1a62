//! What one look at the world leads to. Pure: facts, what earlier looks suspected, and the time in; steps out.
//!
//! ```text
//!   first look: gone      -> suspected since now
//!   a later look: gone still, the same holder, the grace period over -> a step
//!   any look: alive, unjudged, another holder -> nothing is suspected any more
//! ```
//! A step is not yet a deed: whoever carries it out looks for the pod once more, with a quorum read, and names
//! the holder that was judged (I4, I6). A look that lasted long, or lies far back, can therefore do no harm.

use std::collections::{BTreeMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use berth_core::{Address, Moment, Owner};
use berth_ledger::{ClaimKey, ClaimKind};

use super::facts::{Held, Note, Observed, Reservation};
use super::judge::{Reason, Verdict, judge, may_run, may_run_reserved};
use super::pairing::{Pairing, expected_name};

/// How long a holder must have been gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// Between the look that suspects and the one that frees.
    pub grace: Duration,
    /// The same where a node is gone and its pods are still there: a node that is registered anew keeps its pods, and
    /// Kubernetes itself takes their removal slowly.
    pub node_grace: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Patience {
            grace: Duration::from_secs(30),
            node_grace: Duration::from_secs(120),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// The entry's holder is gone: free it, then the reservations that nothing else needs.
    Free {
        held: Held,
        reason: Reason,
        reservations: Vec<Reservation>,
    },
    /// The reservation has no entry, and its holder is gone.
    End {
        reservation: Reservation,
        reason: Reason,
    },
    /// A living entry lacks its reservation: others could take the address in a pool that overlaps.
    Reserve { held: Held, key: ClaimKey },
}

/// Two living holders of one address. Nothing is done about it: only a person can say who has to go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dispute {
    pub address: Address,
    pub entry: Owner,
    pub other: Owner,
}

/// Suspicions of earlier looks. Of each a number is kept: all entries of a cluster may be suspected at once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Memory(BTreeMap<Suspect, Moment>);

impl Memory {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Takes in what another part of the same look suspects.
    pub fn absorb(&mut self, other: Memory) {
        self.0.extend(other.0);
    }
}

/// What is suspected: exactly that holder, so that another one begins anew. A digest of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Suspect(u64, u64);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    pub steps: Vec<Step>,
    /// What the next look is to be given.
    pub memory: Memory,
    /// When the next suspicion is old enough.
    pub next: Option<Moment>,
    pub disputes: Vec<Dispute>,
}

/// Plans what is to be done about everything that was observed.
pub fn plan(observed: &Observed, memory: &Memory, patience: &Patience, now: Moment) -> Plan {
    let mut planning = Planning {
        memory,
        now,
        plan: Plan::default(),
    };
    let pairing = Pairing::of(observed);
    let mut freed: Vec<(usize, Reason)> = Vec::new();
    for (place, held) in observed.held.iter().enumerate() {
        match verdict(held, observed) {
            Verdict::Gone(reason) => {
                let grace = match &reason {
                    // No container outlives its kernel: only the pod's own end had to be shown.
                    _ if held.note.rebooted => Duration::ZERO,
                    Reason::NodeGone(_) => patience.node_grace,
                    _ if names_lost_node(held, observed) => patience.node_grace,
                    _ => patience.grace,
                };
                if planning.is_due(Suspect::entry(held), grace) {
                    freed.push((place, reason));
                }
            }
            Verdict::Alive if observed.overlap_checked.contains(&held.pool.name) => {
                planning.see_to_reservation(held, &pairing, observed, patience.grace);
            }
            // whereabouts' reconciler deletes reservations that name no pod.
            Verdict::Unjudged
                if held.record.is_by_hand()
                    && observed.overlap_checked.contains(&held.pool.name) =>
            {
                planning.see_to_reservation(held, &pairing, observed, patience.grace);
            }
            Verdict::Alive | Verdict::Kept | Verdict::Unreleased | Verdict::Unjudged => {}
        }
    }
    let gone: HashSet<usize> = freed.iter().map(|(place, _)| *place).collect();
    for (place, reason) in freed {
        let mut reservations = pairing.left_without(place, &gone);
        let entered = |one: &&Reservation| observed.entered_elsewhere.contains(&one.key.name);
        reservations.retain(|one| !entered(one));
        planning.plan.steps.push(Step::Free {
            held: observed.held[place].clone(),
            reason,
            reservations: reservations.into_iter().cloned().collect(),
        });
    }
    if observed.all_pools {
        for reservation in &observed.reservations {
            planning.see_to_orphan(reservation, &pairing, observed, patience);
        }
    }
    planning.plan
}

/// The verdict on an entry's holder.
pub fn verdict(held: &Held, observed: &Observed) -> Verdict {
    let subject = &held.record.owner.subject;
    let verdict = judge(subject, &held.note, &observed.pods, &observed.nodes);
    let place = (held.pool.name.clone(), held.address);
    match verdict {
        Verdict::Gone(reason)
            if reason.is_of_the_object() && may_run(held, &observed.here, &observed.lost) =>
        {
            Verdict::Unreleased
        }
        Verdict::Gone(_) if observed.kept.contains(&place) => Verdict::Kept,
        verdict => verdict,
    }
}

fn names_lost_node(held: &Held, observed: &Observed) -> bool {
    held.node().is_some_and(|node| observed.lost.contains(node))
}

struct Planning<'a> {
    memory: &'a Memory,
    now: Moment,
    plan: Plan,
}

impl Planning<'_> {
    /// Whether the suspicion is old enough to act on. Remembers it until then, and after: the deed may fail.
    fn is_due(&mut self, suspect: Suspect, grace: Duration) -> bool {
        let since = self.memory.0.get(&suspect).copied();
        let first_look = since.is_none();
        let since = since.unwrap_or(self.now);
        self.plan.memory.0.insert(suspect, since);
        let due = since.plus(grace);
        if due <= self.now && (!first_look || grace.is_zero()) {
            return true;
        }
        self.plan.next = Some(self.plan.next.map_or(due, |next| next.min(due)));
        false
    }

    fn see_to_reservation(
        &mut self,
        held: &Held,
        pairing: &Pairing<'_>,
        observed: &Observed,
        grace: Duration,
    ) {
        let Some(name) = expected_name(held) else {
            return;
        };
        if !pairing.reservations_of(held).is_empty() {
            return;
        }
        match pairing.holder_of(&name) {
            Some(other) => {
                let other = &other.record.owner;
                let theirs = judge(
                    &other.subject,
                    &Note::default(),
                    &observed.pods,
                    &observed.nodes,
                );
                // One whose holder is gone is ended by itself; then this entry gets its own.
                if theirs == Verdict::Alive {
                    self.plan.disputes.push(Dispute {
                        address: held.address,
                        entry: held.record.owner.clone(),
                        other: other.clone(),
                    });
                }
            }
            // An ADD under way has its entry first and its reservation a moment later.
            None => {
                if self.is_due(Suspect::unreserved(held), grace) {
                    let key = ClaimKey::new(ClaimKind::Reservation, name);
                    let held = held.clone();
                    self.plan.steps.push(Step::Reserve { held, key });
                }
            }
        }
    }

    /// A reservation without an entry protects nothing, unless its pod lives: a writer may have failed to record
    /// the entry and answered all the same.
    fn see_to_orphan(
        &mut self,
        reservation: &Reservation,
        pairing: &Pairing<'_>,
        observed: &Observed,
        patience: &Patience,
    ) {
        if pairing.entries_of(reservation).next().is_some() {
            return;
        }
        let subject = &reservation.record.owner.subject;
        let verdict = judge(subject, &Note::default(), &observed.pods, &observed.nodes);
        let Verdict::Gone(reason) = verdict else {
            return;
        };
        let Observed {
            here,
            lost,
            journalled,
            ..
        } = observed;
        if reason.is_of_the_object() && may_run_reserved(reservation, here, lost, journalled) {
            return;
        }
        let names_lost = reservation.node().is_some_and(|node| lost.contains(node));
        let grace = match reason {
            Reason::NodeGone(_) => patience.node_grace,
            _ if names_lost => patience.node_grace,
            _ => patience.grace,
        };
        if self.is_due(Suspect::reservation(reservation), grace) {
            let reservation = reservation.clone();
            self.plan.steps.push(Step::End {
                reservation,
                reason,
            });
        }
    }
}

impl Suspect {
    fn entry(held: &Held) -> Suspect {
        let (pool, record) = (&held.pool.name, &held.record);
        Suspect::of(("entry", pool, held.address, &record.owner, &record.handle))
    }

    fn unreserved(held: &Held) -> Suspect {
        let (pool, record) = (&held.pool.name, &held.record);
        Suspect::of((
            "unreserved",
            pool,
            held.address,
            &record.owner,
            &record.handle,
        ))
    }

    fn reservation(reservation: &Reservation) -> Suspect {
        let (name, record) = (&reservation.key.name, &reservation.record);
        Suspect::of(("reservation", name, &record.owner, &record.handle))
    }

    fn of(what: impl Hash) -> Suspect {
        let half = |salt: u8| {
            let mut hasher = DefaultHasher::new();
            (salt, &what).hash(&mut hasher);
            hasher.finish()
        };
        Suspect(half(0), half(1))
    }
}

#[cfg(test)]
mod tests;
