//! STATUS: whether an ADD could be served now.
//!
//! | code | when |
//! |---|---|
//! | 50 | the store can't be read, or a range has no address for another pod: held, cooling down, or reserved elsewhere; or its object is full |
//! | 51 | the same, and two containers of the network hold one address: which of them gets its packets is undefined |
//!
//! Two holders alone are no reason to refuse pods: an ADD is served, so STATUS succeeds.

use std::fmt::Display;
use std::time::SystemTime;

use berth_cni::{CniError, Code};
use berth_core::{
    Address, AddressRequest, Allocate, Answer, Change, Granted, Handle, Moment, Owner, Pool,
    Record, Request, plan,
};
use berth_ledger::LedgerError;
use berth_slices::Mode;

use crate::add::ROUNDS_BEFORE_LISTING;
use crate::config::PodNetwork;
use crate::layout::{Layout, PoolWants};
use crate::reserve::Reservations;
use crate::slice_claim;
use crate::store::Store;

/// Fails with code 50 or 51 when no ADD could be served.
pub async fn status(store: &Store, network: &PodNetwork) -> Result<(), CniError> {
    let mut refusals = Vec::new();
    let mut disputes = Vec::new();
    let mut layout = Layout::of(network);
    slice_claim::limit_to_slices(store, &mut layout)
        .await
        .map_err(unread)?;
    for wants in &layout.pools {
        let mut now = store.load(&wants.key).await.map_err(unread)?.pool;
        disputes.extend(disputed(&now));
        // A node that claims slices by itself may find another one, or a part of another node's.
        let grows = wants
            .sliced
            .as_ref()
            .is_some_and(|of| of.mode != Mode::Assigned);
        let refused = match grows && !slice_claim::has_slices(store, wants) {
            true => Some("exhausted: no slice of it is free for this node".to_owned()),
            false => trial(store, network, wants, &mut now)
                .await
                .map_err(unread)?,
        };
        let Some(why) = refused else {
            continue;
        };
        let may_grow = grows && slice_claim::has_room(store, wants).await.map_err(unread)?;
        if !may_grow {
            refusals.push(format!("pool {}: {why}", wants.key));
        }
    }
    if refusals.is_empty() {
        return Ok(());
    }
    let (code, reasons) = match disputes.is_empty() {
        true => (Code::NotAvailable, refusals),
        false => (
            Code::LimitedConnectivity,
            [refusals, disputes].into_iter().flatten().collect(),
        ),
    };
    Err(CniError::new(code, reasons.join("; ")))
}

fn unread(error: impl Display) -> CniError {
    CniError::new(
        Code::NotAvailable,
        format!("no address can be allocated: {error}"),
    )
}

/// What an ADD would do, on a copy: why it would get no address, if so.
async fn trial(
    store: &Store,
    network: &PodNetwork,
    wants: &PoolWants,
    pool: &mut Pool,
) -> Result<Option<String>, LedgerError> {
    let owner = Owner::new("", "");
    let reservations = Reservations::of(store, &network.network_name);
    let mut avoid: Vec<Address> = Vec::new();
    let mut rounds = 0;
    loop {
        let granted = match ask(pool, &owner, wants, &avoid) {
            Answer::Granted(granted) => granted,
            Answer::Refused(refusal) => return Ok(Some(format!("exhausted: {refusal}"))),
            Answer::Released(_) | Answer::Transferred => return Ok(None),
        };
        if let Some(why) = is_full(store, wants, &granted) {
            return Ok(Some(why));
        }
        if !network.overlap_checks {
            return Ok(None);
        }
        let mut taken = Vec::new();
        for one in &granted {
            if reservations.is_taken(one.address).await? {
                taken.push(one.address);
            }
        }
        if taken.is_empty() {
            return Ok(None);
        }
        rounds += 1;
        avoid.extend(taken);
        if rounds == ROUNDS_BEFORE_LISTING {
            avoid.extend(reservations.all().await?);
        }
        release(pool, &owner, &granted);
    }
}

/// Why the pool's object has no room for another pod's entries, though addresses are free.
fn is_full(store: &Store, wants: &PoolWants, granted: &[Granted]) -> Option<String> {
    // As large as those of a pod are: a container's id is a SHA-256.
    let pod = Record::new(
        Owner::new("namespace/pod", "net1"),
        Handle::new("0".repeat(64)),
    );
    let claims: Vec<Change> = granted
        .iter()
        .map(|one| Change::Allocate {
            address: one.address,
            record: pod.clone(),
        })
        .collect();
    let contention = store.ledger().contention(&wants.key)?;
    let room = contention.has_room(&wants.key, &claims);
    room.err().map(|error| error.to_string())
}

fn ask(pool: &mut Pool, owner: &Owner, wants: &PoolWants, avoid: &[Address]) -> Answer {
    // Whether an address that is asked for by name is free, its own ADD finds out.
    let free = wants.wants.iter().filter(|(_, want)| want.exact.is_none());
    let claim = Allocate {
        record: Record::new(owner.clone(), Handle::default()),
        wants: free
            .map(|(_, want)| AddressRequest {
                avoid: avoid.to_vec(),
                ..want.clone()
            })
            .collect(),
    };
    let mut answers = plan(pool, &[Request::Allocate(claim)], now()).answers;
    answers.pop().unwrap_or(Answer::Transferred)
}

fn release(pool: &mut Pool, owner: &Owner, granted: &[Granted]) {
    for one in granted {
        let _ = pool.apply(&Change::Release {
            address: one.address,
            expected: Record::new(owner.clone(), Handle::default()),
            cooldown: None,
        });
    }
}

/// Addresses that more than one container holds.
fn disputed(pool: &Pool) -> Vec<String> {
    let duplicate_holders = pool.duplicate_holders().filter_map(|(address, rival)| {
        let first = pool.get(address)?;
        Some(format!(
            "{address} is held by {} and by {}",
            first.owner, rival.owner
        ))
    });
    duplicate_holders.collect()
}

fn now() -> Moment {
    let since = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    Moment(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}
