//! CHECK: the record is as ADD left it.

use berth_cni::result::IpamResult;
use berth_core::{Address, Handle};
use berth_ledger::PoolKey;
use serde_json::Value;

use crate::attachment::Attachment;
use crate::config::PodNetwork;
use crate::error::PodError;
use crate::layout::Layout;
use crate::reserve::Reservations;
use crate::slice_claim;
use crate::store::Store;

/// Verifies that `who` holds exactly what the previous result has, under its own container id.
pub async fn check(
    store: &Store,
    network: &PodNetwork,
    who: &Attachment,
    prev_result: Option<&Value>,
) -> Result<(), PodError> {
    let reported: Option<Vec<Address>> = match prev_result {
        Some(result) => {
            let nets =
                IpamResult::addresses_of(result).map_err(|error| PodError::Call(error.into()))?;
            Some(
                nets.into_iter()
                    .map(|net| Address::from(net.addr()))
                    .collect(),
            )
        }
        None => None,
    };
    let layout = Layout::of(network);
    let mut recorded = Vec::new();
    for pool in &layout.pools {
        let mut held = held_in(store, &pool.key, who).await?;
        // Allocated before the range was moved to slices, or back.
        if held.len() < pool.wants.len()
            && let Some(other) = slice_claim::elsewhere(store, pool)
        {
            let found = held_in(store, &other, who).await?;
            held.extend(found);
            held.sort();
            held.dedup();
        }
        if held.len() < pool.wants.len() {
            return Err(missing(
                &who.handle,
                &pool.key.to_string(),
                &recorded,
                &held,
                who,
            ));
        }
        recorded.extend(held);
    }
    let unrecorded = layout
        .slots
        .iter()
        .filter(|slot| slot.unrecorded)
        .filter_map(|slot| slot.named);
    let known: Vec<Address> = recorded.iter().copied().chain(unrecorded).collect();
    if let Some(reported) = reported {
        if let Some(stranger) = reported.iter().find(|address| !known.contains(address)) {
            return Err(PodError::Mismatch(format!(
                "prevResult has {stranger}, which is not recorded for {} ({})",
                who.owner, who.handle
            )));
        }
        if let Some(missing) = known.iter().find(|address| !reported.contains(address)) {
            return Err(PodError::Mismatch(format!(
                "{missing} is recorded for {} ({}), and prevResult does not have it",
                who.owner, who.handle
            )));
        }
    }
    if network.overlap_checks {
        let reservations = Reservations::of(store, &network.network_name);
        for address in &recorded {
            if !reservations.is_held(&who.owner, *address).await? {
                return Err(PodError::Mismatch(format!(
                    "{address} of {} has no reservation of its own ({})",
                    who.owner,
                    reservations.name(*address)
                )));
            }
        }
    }
    Ok(())
}

/// What the pool has for that interface of that container.
async fn held_in(
    store: &Store,
    pool: &PoolKey,
    who: &Attachment,
) -> Result<Vec<Address>, PodError> {
    let now = store.load(pool).await?;
    let its = |address: &Address| {
        let mut holders = now.pool.holders(*address);
        holders.any(|record| record.owner == who.owner && record.handle == who.handle)
    };
    Ok(now.pool.held_by(&who.owner).filter(its).collect())
}

/// Nothing at all is an unknown container; too little is a mismatch.
fn missing(
    handle: &Handle,
    pool: &str,
    recorded: &[Address],
    held: &[Address],
    who: &Attachment,
) -> PodError {
    if recorded.is_empty() && held.is_empty() {
        PodError::Unknown(format!(
            "container {handle} holds no address for {} in pool {pool}",
            who.owner
        ))
    } else {
        PodError::Mismatch(format!(
            "an address of {} is missing in pool {pool}",
            who.owner
        ))
    }
}
