//! The requests of one commit, planned on the desk's copy of the pool.
//!
//! Pure but for the draw: planning sorts the tickets into those whose answer needs a commit, those
//! that can be answered as they stand, and those whose answer rests on a copy that may be old.

use std::time::Instant;

use berth_core::{Address, Allocate, Answer, Change, Moment, Order, Pool, Record, Request, plan};
use rand::RngExt;

use crate::Ticket;

#[derive(Debug, Default)]
pub(crate) struct Planned {
    pub changes: Vec<Change>,
    /// Wait for the commit.
    pub pending: Vec<(Ticket, Answer)>,
    /// Answers that change nothing, from a fresh copy.
    pub settled: Vec<(Ticket, Answer)>,
    /// Answers that would change nothing, from a copy older than the request.
    pub doubtful: Vec<Ticket>,
    /// Requests that would change another node's entry, and that entry.
    pub foreign: Vec<(Ticket, Address, Record)>,
}

/// Plans tickets in their order. `read_at` is when the copy was read; `conflicts` how often this
/// batch lost against another writer.
pub(crate) fn plan_tickets(
    pool: &mut Pool,
    tickets: Vec<Ticket>,
    read_at: Instant,
    conflicts: u32,
    now: Moment,
) -> Planned {
    let mut planned = Planned::default();
    for ticket in tickets {
        if let Some(scope) = &ticket.scope
            && let Some((address, held)) = scope.breach(pool, &ticket.request)
        {
            let held = held.clone();
            match ticket.arrived <= read_at {
                true => planned.foreign.push((ticket, address, held)),
                false => planned.doubtful.push(ticket),
            }
            continue;
        }
        let outcome = match scattered(&ticket.request, conflicts) {
            Some(request) => plan(pool, &[request], now),
            None => plan(pool, std::slice::from_ref(&ticket.request), now),
        };
        let Some(answer) = outcome.answers.into_iter().next() else {
            continue;
        };
        if !outcome.changes.is_empty() {
            planned.changes.extend(outcome.changes);
            planned.pending.push((ticket, answer));
        } else if ticket.arrived <= read_at {
            planned.settled.push((ticket, answer));
        } else {
            planned.doubtful.push(ticket);
        }
    }
    planned
}

/// After a conflict the same lowest address would be everyone's next choice again.
fn scattered(request: &Request, conflicts: u32) -> Option<Request> {
    let Request::Allocate(claim) = request else {
        return None;
    };
    if conflicts == 0 || claim.wants.iter().all(|want| want.order != Order::Lowest) {
        return None;
    }
    let among = 4u32.saturating_mul(1 << conflicts.min(6));
    let mut wants = claim.wants.clone();
    for want in wants.iter_mut().filter(|want| want.order == Order::Lowest) {
        want.order = Order::Scatter {
            among,
            draw: rand::rng().random(),
        };
    }
    Some(Request::Allocate(Allocate {
        record: claim.record.clone(),
        wants,
    }))
}

/// Whether the owner holds another address that would have done for one that it was freshly granted.
pub(crate) fn is_doubled(pool: &Pool, request: &Request, answer: &Answer) -> bool {
    let (Request::Allocate(claim), Answer::Granted(granted)) = (request, answer) else {
        return false;
    };
    let is_granted = |address: Address| granted.iter().any(|grant| grant.address == address);
    let others: Vec<Address> = pool
        .held_by(&claim.record.owner)
        .filter(|address| !is_granted(*address))
        .collect();
    claim.wants.iter().zip(granted).any(|(want, grant)| {
        let would_do = |address: &Address| want.space.contains(*address);
        grant.fresh && want.exact.is_none() && others.iter().any(would_do)
    })
}
