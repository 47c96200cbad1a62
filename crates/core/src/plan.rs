//! Turns requests against a pool into changes and answers.
//!
//! Guarantees: the same request gets the same answer (I3); a request for several addresses gets all of them or none; an
//! address is allocated or released only under its holder's name (I1, I6); an address that cools down goes only to its
//! last owner (I10). The pool is left as it will be once the changes are committed: if the commit fails, load the pool
//! again and plan again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::pool::{Change, Cooldown, Mismatch, Pool};
use crate::{Address, Handle, Moment, Order, Owner, Record, Space};

mod choice;
mod scope;

pub use scope::Scope;

/// One address that a claim asks for.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AddressRequest {
    #[serde(with = "crate::space::form::shared")]
    pub space: Arc<Space>,
    pub order: Order,
    /// This address only.
    pub exact: Option<Address>,
    /// Addresses that are known to be taken elsewhere (another pool's reservation, a probe's reply).
    pub avoid: Vec<Address>,
}

impl AddressRequest {
    pub fn any(space: Arc<Space>) -> Self {
        Self {
            space,
            order: Order::default(),
            exact: None,
            avoid: Vec::new(),
        }
    }

    pub fn exactly(space: Arc<Space>, address: Address) -> Self {
        Self {
            exact: Some(address),
            ..Self::any(space)
        }
    }
}

/// Addresses for one owner, all or none.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Allocate {
    pub record: Record,
    pub wants: Vec<AddressRequest>,
}

/// What to release. Each form names a holder (I6).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Selector {
    /// Everything that was allocated under the handle, limited to one part if given.
    Handle {
        handle: Handle,
        part: Option<String>,
    },
    Owner(Owner),
    /// One address, if this holder has it.
    Address {
        address: Address,
        holder: Record,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Release {
    pub selector: Selector,
    /// How long the addresses cool down before another owner gets them.
    pub cooldown: Duration,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Request {
    Allocate(Allocate),
    Release(Release),
    /// Transfers one address: a new owner, a new handle, other attributes.
    Transfer {
        address: Address,
        expected: Record,
        record: Record,
    },
    /// Releases one address and claims others instead, in one step: the holder is never without a record.
    Exchange {
        address: Address,
        expected: Record,
        claim: Allocate,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Granted {
    pub address: Address,
    /// False if the owner already held it.
    pub fresh: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// One per requested address, in their order.
    Granted(Vec<Granted>),
    /// What was released. Empty if nothing was held, so that a repeat succeeds.
    Released(Vec<(Address, Record)>),
    Transferred,
    Refused(Refusal),
}

/// Why a request was refused. Nothing was changed for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Error)]
pub enum Refusal {
    #[error("no free address: all {capacity} of {space} are held or cooling down")]
    Exhausted {
        space: String,
        capacity: u128,
        /// Which requested address of the claim failed, counted from 0.
        #[serde(default)]
        want: usize,
    },
    #[error("{address} is held by {by}")]
    Held { address: Address, by: Owner },
    #[error("{address} is not held by {expected}")]
    NotHeld { address: Address, expected: Owner },
    #[error("{address} can't be allocated from {space}")]
    Outside { address: Address, space: String },
    #[error("{address} cools down for {owner} until {until:?}")]
    CoolingDown {
        address: Address,
        owner: Owner,
        until: Moment,
    },
    #[error("{address} is taken elsewhere")]
    Avoided { address: Address },
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    pub changes: Vec<Change>,
    /// One per request, in their order.
    pub answers: Vec<Answer>,
}

/// Plans requests in their order; later ones see what earlier ones got.
pub fn plan(pool: &mut Pool, requests: &[Request], now: Moment) -> Outcome {
    let mut outcome = Outcome::default();
    for request in requests {
        let planned = match request {
            Request::Allocate(claim) => plan_allocate(pool, claim, now),
            Request::Release(release) => plan_release(pool, release, now),
            Request::Transfer {
                address,
                expected,
                record,
            } => plan_transfer(pool, *address, expected, record),
            Request::Exchange {
                address,
                expected,
                claim,
            } => plan_exchange(pool, *address, expected, claim, now),
        };
        let answer = planned.and_then(|(changes, answer)| {
            for change in changes {
                pool.apply(&change)?;
                outcome.changes.push(change);
            }
            Ok(answer)
        });
        outcome.answers.push(answer.unwrap_or_else(Answer::Refused));
    }
    outcome
}

type Planned = Result<(Vec<Change>, Answer), Refusal>;

/// All addresses are chosen before the first one is taken: a claim that fails changes nothing.
fn plan_allocate(pool: &Pool, claim: &Allocate, now: Moment) -> Planned {
    let owner = &claim.record.owner;
    let held = held_already(pool.held_by(owner).collect(), &claim.wants);
    let mut changes: Vec<Change> = held
        .iter()
        .flatten()
        .filter_map(|address| refresh(pool, *address, &claim.record))
        .collect();
    let mut fresh = Vec::new();
    let mut granted = Vec::with_capacity(claim.wants.len());
    for (place, (want, held)) in claim.wants.iter().zip(held).enumerate() {
        let address = match held {
            Some(address) => address,
            None => {
                let address = choice::choose(pool, (place, want), &fresh, owner, now)?;
                changes.push(Change::Allocate {
                    address,
                    record: claim.record.clone(),
                });
                fresh.push(address);
                address
            }
        };
        granted.push(address);
    }
    // A repeat finds the addresses in the pool, not in the order of choice: return now what a repeat will return (I3).
    let mut all: Vec<Address> = pool.held_by(owner).chain(fresh.iter().copied()).collect();
    all.sort_unstable();
    let again: Vec<Address> = held_already(all, &claim.wants)
        .into_iter()
        .flatten()
        .collect();
    let answer = if again.len() == granted.len() {
        again
    } else {
        granted
    };
    let grant = |address| Granted {
        address,
        fresh: fresh.contains(&address),
    };
    Ok((
        changes,
        Answer::Granted(answer.into_iter().map(grant).collect()),
    ))
}

/// The holder returns under another handle: a pod that was created again under its name.
fn refresh(pool: &Pool, address: Address, record: &Record) -> Option<Change> {
    let held = pool
        .holders(address)
        .find(|held| held.owner == record.owner)?;
    (held.handle != record.handle).then(|| Change::Update {
        address,
        expected: held.clone(),
        record: record.clone(),
    })
}

fn plan_release(pool: &Pool, release: &Release, now: Moment) -> Planned {
    let found: Vec<(Address, Record)> = match &release.selector {
        Selector::Handle { handle, part } => pool
            .held_under(handle)
            .filter(|(_, record)| part.as_ref().is_none_or(|part| record.owner.part == *part))
            .map(|(address, record)| (address, record.clone()))
            .collect(),
        Selector::Owner(owner) => pool
            .held_by(owner)
            .flat_map(|address| pool.holders(address).map(move |record| (address, record)))
            .filter(|(_, record)| record.owner == *owner)
            .map(|(address, record)| (address, record.clone()))
            .collect(),
        Selector::Address { address, holder } => match pool.get(*address) {
            None => Vec::new(),
            Some(_) if pool.holders(*address).any(|held| held.same_holder(holder)) => {
                vec![(*address, holder.clone())]
            }
            Some(held) => {
                return Err(Refusal::Held {
                    address: *address,
                    by: held.owner.clone(),
                });
            }
        },
    };
    let changes = found.iter().map(|(address, record)| Change::Release {
        address: *address,
        expected: record.clone(),
        cooldown: (!release.cooldown.is_zero()).then(|| Cooldown {
            since: now,
            until: now.plus(release.cooldown),
            owner: record.owner.clone(),
        }),
    });
    Ok((changes.collect(), Answer::Released(found)))
}

fn plan_transfer(pool: &Pool, address: Address, expected: &Record, record: &Record) -> Planned {
    let find = |who: &Record| pool.holders(address).find(|held| held.same_holder(who));
    if find(record).is_some() && !expected.same_holder(record) {
        return Ok((Vec::new(), Answer::Transferred));
    }
    let Some(held) = find(expected) else {
        return Err(Refusal::NotHeld {
            address,
            expected: expected.owner.clone(),
        });
    };
    let change = Change::Update {
        address,
        // With its current attributes: those that the new record lacks are removed.
        expected: held.clone(),
        record: record.clone(),
    };
    Ok((vec![change], Answer::Transferred))
}

/// Refused as a whole if the holder has lost the address, or if there is no other one. A repeat finds what the first
/// call got (I3).
fn plan_exchange(
    pool: &Pool,
    address: Address,
    expected: &Record,
    claim: &Allocate,
    now: Moment,
) -> Planned {
    if !pool.holders(address).any(|held| held.same_holder(expected)) {
        let is_new = |held: &Record| held.same_holder(&claim.record);
        let moved = pool.held_by(&claim.record.owner);
        let moved = moved.filter(|moved| *moved != address && pool.holders(*moved).any(is_new));
        let moved = held_already(moved.collect(), &claim.wants).into_iter();
        let grant = |address| Granted {
            address,
            fresh: false,
        };
        if let Some(moved) = moved.map(|moved| moved.map(grant)).collect() {
            return Ok((Vec::new(), Answer::Granted(moved)));
        }
        return Err(Refusal::NotHeld {
            address,
            expected: expected.owner.clone(),
        });
    }
    let mut changes = vec![Change::Release {
        address,
        expected: expected.clone(),
        cooldown: None,
    }];
    let mut chosen = Vec::with_capacity(claim.wants.len());
    for wanted in claim.wants.iter().enumerate() {
        let address = choice::choose(pool, wanted, &chosen, &claim.record.owner, now)?;
        changes.push(Change::Allocate {
            address,
            record: claim.record.clone(),
        });
        chosen.push(address);
    }
    let grant = |address| Granted {
        address,
        fresh: true,
    };
    let granted = chosen.into_iter().map(grant).collect();
    Ok((changes, Answer::Granted(granted)))
}

impl From<Mismatch> for Refusal {
    fn from(mismatch: Mismatch) -> Self {
        match mismatch {
            Mismatch::Held { address, by } => Self::Held { address, by },
            Mismatch::NotHeld { address, expected } => Self::NotHeld { address, expected },
        }
    }
}

/// Assigns the owner's addresses to the requested ones: as many as possible, earlier requests first, lower addresses
/// first. Ranges of one claim may overlap, so a request may have to use another of its addresses to leave the only
/// fitting one to the next (augmenting paths; a claim has few requests).
fn held_already(held: Vec<Address>, wants: &[AddressRequest]) -> Vec<Option<Address>> {
    let fits = |want: &AddressRequest, address: Address| {
        want.exact.is_none_or(|exact| exact == address) && want.space.contains(address)
    };
    let mut server: BTreeMap<Address, usize> = BTreeMap::new();
    for place in 0..wants.len() {
        let mut tried = BTreeSet::new();
        seat(place, &held, wants, &fits, &mut server, &mut tried);
    }
    let mut served = vec![None; wants.len()];
    for (address, place) in server {
        served[place] = Some(address);
    }
    served
}

/// Finds an address for the request at `place`, moving earlier requests to other addresses if needed.
fn seat(
    place: usize,
    held: &[Address],
    wants: &[AddressRequest],
    fits: &impl Fn(&AddressRequest, Address) -> bool,
    server: &mut BTreeMap<Address, usize>,
    tried: &mut BTreeSet<Address>,
) -> bool {
    // Nothing is moved while there is room: equal requests are served in order.
    let open =
        |address: &&Address| fits(&wants[place], **address) && !server.contains_key(*address);
    if let Some(address) = held.iter().find(open).copied() {
        server.insert(address, place);
        return true;
    }
    for address in held {
        if !fits(&wants[place], *address) || !tried.insert(*address) {
            continue;
        }
        let moved = match server.get(address).copied() {
            None => true,
            Some(other) => seat(other, held, wants, fits, server, tried),
        };
        if moved {
            server.insert(*address, place);
            return true;
        }
    }
    false
}
