//! Which entries of a pool are freed, which reservations end with them, and which reservations are missing. Pure.
//!
//! Releases follow the collector's rule ([`berth_collector::plan`]). Reservations follow from the entries:
//!
//! ```text
//!   its last entry is freed                   -> ends with that entry
//!   no entry in any pool, its owner is gone   -> ends, after the grace period
//!   a living entry lacks its reservation      -> made, after the grace period
//! ```

use std::collections::HashSet;

use berth_collector::liveness::{Reason, Verdict, judge, verdict};
use berth_collector::observed::{Held, Note, Observed, Owners};
use berth_collector::suspicions::Round;
use berth_core::{Address, Owner, Record};
use berth_ledger::{ClaimKey, ClaimKind};

use super::repair::Repair;
use super::reservation_index::{ReservationIndex, expected_name};
use crate::attachment::attribute;

/// A reservation: a claim of one address across pools.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reservation {
    pub key: ClaimKey,
    pub record: Record,
}

impl Reservation {
    /// The node that made it.
    pub fn node(&self) -> Option<&str> {
        self.record.attribute(attribute::NODE)
    }
}

/// What is done about an entry or a reservation.
pub type Step = berth_collector::Step<Vec<Reservation>, Repair>;

/// The reservations that matter to the entries of one pool.
#[derive(Clone, Debug, Default)]
pub struct PoolReservations {
    pub reservations: Vec<Reservation>,
    /// The names of those that have entries in other pools too.
    pub entered_elsewhere: HashSet<String>,
    /// Whether the pool's networks want a reservation for every entry.
    pub overlap_checked: bool,
}

/// Two living holders of one address. Nothing is done about it: only a person can decide which of them has to go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dispute {
    pub address: Address,
    pub entry: Owner,
    pub other: Owner,
}

/// What follows from the entries of one pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    pub steps: Vec<Step>,
    pub disputes: Vec<Dispute>,
}

/// Plans the entries of one pool.
pub fn plan_pool(observed: &Observed, reserved: &PoolReservations, round: &mut Round<'_>) -> Plan {
    let index = ReservationIndex::of(&observed.held, &reserved.reservations);
    let mut plan = Plan::default();
    let mut free: Vec<(usize, Reason)> = Vec::new();
    for (place, held) in observed.held.iter().enumerate() {
        let judged = judge(&held.record.owner.subject, &held.note, &observed.owners);
        match verdict(held, judged, observed) {
            Verdict::Gone(reason) => {
                if round.frees(held, &reason, &observed.owners) {
                    free.push((place, reason));
                }
            }
            Verdict::Alive if reserved.overlap_checked => {
                plan.check_reservation(held, &index, &observed.owners, round);
            }
            // whereabouts' reconciler deletes reservations that name no pod.
            Verdict::Unjudged if held.record.is_by_hand() && reserved.overlap_checked => {
                plan.check_reservation(held, &index, &observed.owners, round);
            }
            Verdict::Alive | Verdict::Kept | Verdict::Unreleased | Verdict::Unjudged => {}
        }
    }
    let freed: HashSet<usize> = free.iter().map(|(place, _)| *place).collect();
    for (place, reason) in free {
        let mut ends = index.left_without(place, &freed);
        ends.retain(|one| !reserved.entered_elsewhere.contains(&one.key.name));
        plan.steps.push(Step::Free {
            held: observed.held[place].clone(),
            reason,
            ends: ends.into_iter().cloned().collect(),
        });
    }
    plan
}

/// Plans reservations that have no entry in any pool. One protects nothing, unless its pod lives: a writer may have
/// failed to record the entry and answered all the same.
pub fn plan_orphans(
    orphans: &[Reservation],
    owners: &Owners,
    journalled: &HashSet<Owner>,
    round: &mut Round<'_>,
) -> Vec<Step> {
    let mut steps = Vec::new();
    for orphan in orphans {
        let record = &orphan.record;
        let verdict = judge(&record.owner.subject, &Note::default(), owners);
        let Verdict::Gone(reason) = verdict else {
            continue;
        };
        if reason.is_of_the_object() && may_run(orphan, owners, journalled) {
            continue;
        }
        let grace = round.grace(&reason, owners.is_lost(orphan.node()));
        let suspect = (
            "reservation",
            &orphan.key.name,
            &record.owner,
            &record.handle,
        );
        if round.is_due(suspect, grace) {
            let reservation = orphan.clone();
            steps.push(Step::Repair(Repair::End(reservation)));
        }
    }
    steps
}

/// Whether the container of a reservation without an entry may run although its pod object is gone: its node may have the
/// entry in a slice that it has not published.
fn may_run(reservation: &Reservation, owners: &Owners, journalled: &HashSet<Owner>) -> bool {
    let node = reservation.node();
    let is_here = node == Some(owners.here.as_str());
    is_here && journalled.contains(&reservation.record.owner)
        || node.is_some_and(|node| owners.is_up(node))
}

impl Plan {
    /// A living entry is to have its reservation.
    fn check_reservation(
        &mut self,
        held: &Held,
        index: &ReservationIndex<'_>,
        owners: &Owners,
        round: &mut Round<'_>,
    ) {
        let Some(name) = expected_name(held) else {
            return;
        };
        if !index.reservations_of(held).is_empty() {
            return;
        }
        match index.named(&name) {
            Some(other) => {
                let other = &other.record.owner;
                // One whose owner is gone is ended by itself; then this entry gets its own.
                if judge(&other.subject, &Note::default(), owners) == Verdict::Alive {
                    self.disputes.push(Dispute {
                        address: held.address,
                        entry: held.record.owner.clone(),
                        other: other.clone(),
                    });
                }
            }
            // An ADD under way has its entry first and its reservation a moment later.
            None => {
                let (pool, record) = (&held.pool.name, &held.record);
                let suspect = (
                    "unreserved",
                    pool,
                    held.address,
                    &record.owner,
                    &record.handle,
                );
                if round.is_due(suspect, round.usual_grace()) {
                    let key = ClaimKey::new(ClaimKind::Reservation, name);
                    let held = held.clone();
                    self.steps.push(Step::Repair(Repair::Reserve { held, key }));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
