//! Addresses that an IPAMClaim records and no pool holds: allocated again, so that no other pod gets them.
//!
//! A pool's entry is all that keeps a claim's address while no pod uses it, and whereabouts' own collector, or a
//! person, may have removed it. The entry is made under the name of the claim's last pod, as it was: the next pod of
//! the claim takes it over. An address that has another owner by now stays with that owner (I1); the ADD that wants it
//! reports it.

use std::collections::HashSet;

use berth_collector::ReadError;
use berth_collector::observed::{Held, Note};
use berth_core::{Address, Change, Handle, Owner, Record};
use berth_ledger::{ClaimKey, ClaimKind, LedgerError, PoolKey, SharedRecordLedger};

use super::pool_policies::{PoolPolicies, PoolPolicy};
use super::reservation_index::expected_name;
use crate::reserve::make;
use crate::sticky::{Claim, Sticky};

/// A claim's address that its pool lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MissingEntry {
    pool: PoolKey,
    address: Address,
    record: Record,
    overlap_checks: bool,
}

/// What is held in the pools of networks that use claims.
#[derive(Debug, Default)]
pub(super) struct ClaimedPools {
    pools: HashSet<String>,
    held: HashSet<(String, Address)>,
}

impl ClaimedPools {
    /// Adds a pool, as far as a network that uses claims may have it.
    pub fn add(&mut self, pool: &PoolKey, policy: Option<&PoolPolicy>, held: &[Held]) {
        if !policy.is_some_and(|policy| policy.retention.claims) {
            return;
        }
        let held = held.iter().map(|one| (pool.name.clone(), one.address));
        self.held.extend(held);
        self.pools.insert(pool.name.clone());
    }
}

/// The addresses that claims record and the pools of their networks lack.
pub(super) async fn find(
    sticky: &Sticky,
    held: &ClaimedPools,
    pool_policies: &PoolPolicies,
) -> Result<Vec<MissingEntry>, ReadError> {
    if !pool_policies.pools().any(|policy| policy.retention.claims) {
        return Ok(Vec::new());
    }
    let mut all = Vec::new();
    let add = |claim: Claim| all.extend(missing(&claim, held, pool_policies));
    sticky.all_claims(add).await?;
    Ok(all)
}

/// The addresses of one claim that its pools lack.
fn missing(claim: &Claim, held: &ClaimedPools, pool_policies: &PoolPolicies) -> Vec<MissingEntry> {
    let mut missing = Vec::new();
    for address in claim.addresses() {
        let Some((policy, pool)) = pool_of(claim, address, pool_policies) else {
            continue;
        };
        // A pool that does not exist yet has lost nothing.
        let exists = held.pools.contains(&pool.name);
        if exists && !held.held.contains(&(pool.name.clone(), address)) {
            let owner = Owner::new(claim.holder(), claim.interface());
            missing.push(MissingEntry {
                pool,
                address,
                record: Record::new(owner, Handle::new(claim.name())),
                overlap_checks: policy.overlap_checks,
            });
        }
    }
    missing
}

/// The pool that keeps a claim's address: of a network of the claim's namespace, else of the only one of that name.
fn pool_of<'a>(
    claim: &Claim,
    address: Address,
    pool_policies: &'a PoolPolicies,
) -> Option<(&'a PoolPolicy, PoolKey)> {
    let named = |policy: &&PoolPolicy| policy.names.iter().any(|(_, name)| name == claim.network());
    let with_pool = |policy: &'a PoolPolicy| Some((policy, policy.pool.clone()?));
    let within = |(_, pool): &(&PoolPolicy, PoolKey)| {
        pool.network
            .is_some_and(|network| network.contains(address))
    };
    let found: Vec<(&PoolPolicy, PoolKey)> = pool_policies
        .pools()
        .filter(|policy| policy.retention.claims)
        .filter(named)
        .filter_map(with_pool)
        .filter(within)
        .collect();
    let own = (claim.namespace().to_owned(), claim.network().to_owned());
    let near = found.iter().find(|(policy, _)| policy.names.contains(&own));
    match (near, found.as_slice()) {
        (Some(near), _) => Some(near.clone()),
        (None, [only]) => Some(only.clone()),
        // Which of them is not known.
        (None, _) => None,
    }
}

/// Allocates it to the claim's last pod, unless the address has an owner by now.
pub(super) async fn enter(
    ledger: &SharedRecordLedger,
    missing: &MissingEntry,
) -> Result<bool, LedgerError> {
    let MissingEntry {
        pool,
        address,
        record,
        ..
    } = missing;
    let now = ledger.load(pool).await?;
    if now.pool.is_held(*address) {
        return Ok(false);
    }
    if let Some(key) = &reservation(missing)
        && !make(&**ledger, key, record).await?
    {
        tracing::warn!(%address, %pool, owner = %record.owner, "the address that a claim records has another owner in a pool that overlaps; delete that pod or the claim");
        return Ok(false);
    }
    // Not through a desk: one that finds the owner's own entry would change its handle.
    let change = Change::Allocate {
        address: *address,
        record: record.clone(),
    };
    ledger.commit(pool, &now.version, &[change], None).await?;
    tracing::info!(%address, %pool, owner = %record.owner, "an address that a claim records was allocated to it again");
    Ok(true)
}

fn reservation(missing: &MissingEntry) -> Option<ClaimKey> {
    let held = Held {
        pool: missing.pool.clone(),
        address: missing.address,
        record: missing.record.clone(),
        note: Note::default(),
    };
    let name = expected_name(&held).filter(|_| missing.overlap_checks)?;
    Some(ClaimKey::new(ClaimKind::Reservation, name))
}
