//! Addresses that an IPAMClaim records and no pool holds: entered again, so that nobody else gets them.
//!
//! A pool's entry is all that keeps a claim's address while no pod uses it, and whereabouts' own collector, or a
//! person, may have removed it. The entry is made under the name of the claim's last pod, as it was: the next pod of
//! the claim takes it over. An address that somebody holds by now stays theirs (I1); the ADD that wants it says so.

use std::collections::HashSet;

use berth_core::{Address, Change, Handle, Owner, Record};
use berth_ledger::{ClaimKey, ClaimKind, LedgerError, PoolKey, SharedLedger};

use super::facts::{Held, Note};
use super::pairing::expected_name;
use super::survey::Survey;
use super::terms::{PoolTerms, Terms};
use super::witness::Blind;
use crate::reserve::make;
use crate::sticky::{Claim, Sticky};

/// A claim's address that its pool lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unheld {
    pool: PoolKey,
    address: Address,
    record: Record,
    overlap_checks: bool,
}

/// What is held in the pools of networks that mind claims.
#[derive(Debug, Default)]
pub(super) struct ClaimHeld {
    pools: HashSet<String>,
    held: HashSet<(String, Address)>,
}

impl ClaimHeld {
    /// Takes in the pool that the survey has turned to.
    pub fn add(&mut self, pool: &PoolKey, survey: &Survey) {
        let of_pool = survey.terms.of(&pool.name);
        if of_pool.is_some_and(|terms| terms.wishes.claims) {
            self.add_held(pool, &survey.observed.held);
        }
    }

    /// Takes in a pool without entries.
    pub fn add_empty(&mut self, pool: &PoolKey) {
        self.pools.insert(pool.name.clone());
    }

    fn add_held(&mut self, pool: &PoolKey, held: &[Held]) {
        let held = held.iter().map(|one| (pool.name.clone(), one.address));
        self.held.extend(held);
        self.pools.insert(pool.name.clone());
    }
}

/// What claims record, of the pools of networks that mind them.
pub(super) async fn find(
    sticky: &Sticky,
    held: &ClaimHeld,
    terms: &Terms,
) -> Result<Vec<Unheld>, Blind> {
    if !terms.pools().any(|terms| terms.wishes.claims) {
        return Ok(Vec::new());
    }
    Ok(missing(&sticky.all_claims().await?, held, terms))
}

fn missing(claims: &[Claim], held: &ClaimHeld, terms: &Terms) -> Vec<Unheld> {
    let mut missing = Vec::new();
    for claim in claims {
        for address in claim.addresses() {
            let Some((terms, pool)) = pool_of(claim, address, terms) else {
                continue;
            };
            // A pool that nobody has made yet has lost nothing.
            let is_there = held.pools.contains(&pool.name);
            if is_there && !held.held.contains(&(pool.name.clone(), address)) {
                let owner = Owner::new(claim.holder(), claim.interface());
                missing.push(Unheld {
                    pool,
                    address,
                    record: Record::new(owner, Handle::new(claim.name())),
                    overlap_checks: terms.overlap_checks,
                });
            }
        }
    }
    missing
}

/// The pool that keeps a claim's address: of a network of the claim's namespace, else of the only one of that name.
fn pool_of<'a>(
    claim: &Claim,
    address: Address,
    terms: &'a Terms,
) -> Option<(&'a PoolTerms, PoolKey)> {
    let named = |terms: &&PoolTerms| terms.names.iter().any(|(_, name)| name == claim.network());
    let with_pool = |terms: &'a PoolTerms| Some((terms, terms.pool.clone()?));
    let within = |(_, pool): &(&PoolTerms, PoolKey)| {
        pool.network
            .is_some_and(|network| network.contains(address))
    };
    let found: Vec<(&PoolTerms, PoolKey)> = terms
        .pools()
        .filter(|terms| terms.wishes.claims)
        .filter(named)
        .filter_map(with_pool)
        .filter(within)
        .collect();
    let own = (claim.namespace().to_owned(), claim.network().to_owned());
    let near = found.iter().find(|(terms, _)| terms.names.contains(&own));
    match (near, found.as_slice()) {
        (Some(near), _) => Some(near.clone()),
        (None, [only]) => Some(only.clone()),
        // Which of them, nobody can say.
        (None, _) => None,
    }
}

/// Enters it, unless somebody has the address by now.
pub(super) async fn enter(ledger: &SharedLedger, unheld: &Unheld) -> Result<bool, LedgerError> {
    let Unheld {
        pool,
        address,
        record,
        ..
    } = unheld;
    let now = ledger.load(pool).await?;
    if now.pool.is_held(*address) {
        return Ok(false);
    }
    if let Some(key) = &reservation(unheld)
        && !make(&**ledger, key, record).await?
    {
        tracing::warn!(%address, %pool, owner = %record.owner, "a claim's address is another's in a pool that overlaps");
        return Ok(false);
    }
    // Not through a desk: one that finds the owner's own entry would give it this handle.
    let change = Change::Claim {
        address: *address,
        record: record.clone(),
    };
    ledger.commit(pool, &now.version, &[change]).await?;
    tracing::info!(%address, %pool, owner = %record.owner, "an address that a claim records was entered again");
    Ok(true)
}

fn reservation(unheld: &Unheld) -> Option<ClaimKey> {
    let held = Held {
        pool: unheld.pool.clone(),
        address: unheld.address,
        record: unheld.record.clone(),
        note: Note::default(),
    };
    let name = expected_name(&held).filter(|_| unheld.overlap_checks)?;
    Some(ClaimKey::new(ClaimKind::Reservation, name))
}
