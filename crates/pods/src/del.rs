//! DEL: releases what was allocated to this container's interface, in every pool of the network; on a machine without a
//! cluster also in pools that the network used before, or for a call that named an address.
//!
//! Goes on past an error, so that one pool's failure does not keep another's addresses; all errors are reported, so that
//! the runtime repeats the call. Releasing nothing is a success: a repeat must be one.
//!
//! Where a repeat could not succeed it succeeds too, and the address is left to the collector: a plugin without an agent has
//! the token of the agent's pod, which is valid for as long as that pod exists. Its next pod brings another, and on a full
//! node it may be waiting for just the pod that leaves.

use std::time::Duration;

use berth_core::plan::Selector;
use berth_core::{Address, Answer, Handle, Record};
use berth_ledger::PoolKey;

use crate::config::PodNetwork;
use crate::error::PodError;
use crate::layout::Layout;
use crate::local_pools;
use crate::release::{free, release};
use crate::slice_claim;
use crate::sticky::Retention;
use crate::store::Store;
use crate::teardown::Errors;

/// How long a pool that the network does not allocate from any more may take.
const ELSEWHERE_LIMIT: Duration = Duration::from_secs(3);

/// Releases the addresses of `ifname` of the container `handle`; returns which they were.
pub async fn del(
    store: &Store,
    network: &PodNetwork,
    handle: &Handle,
    ifname: &str,
) -> Result<Vec<Address>, PodError> {
    let mut freed = Vec::new();
    let mut errors = Errors::default();
    let mut left = false;
    for pool in &Layout::of(network).pools {
        if let Some(other) = slice_claim::elsewhere(store, pool) {
            match tokio::time::timeout(
                ELSEWHERE_LIMIT,
                del_in(store, network, &other, handle, ifname),
            )
            .await
            {
                Ok(Ok(some)) => freed.extend(some),
                // No caller waits for it: what stays is released when its pod is seen to be gone.
                Ok(Err(error)) => {
                    left = true;
                    tracing::warn!(pool = %other, %handle, %error, "left to the collector");
                }
                Err(_) => {
                    left = true;
                    tracing::warn!(pool = %other, %handle, "no answer; left to the collector");
                }
            }
        }
        match del_in(store, network, &pool.key, handle, ifname).await {
            Ok(some) => freed.extend(some),
            Err(error) if store.once && error.is_unauthenticated() => {
                left = true;
                tracing::warn!(pool = %pool.key, %handle, %error, "left to the collector");
            }
            Err(error) => {
                tracing::warn!(pool = %pool.key, %handle, %error, "DEL goes on with the other pools");
                errors.push(error);
            }
        }
    }
    if !store.in_cluster {
        match del_in_former(store, network, handle, ifname).await {
            Ok(some) => freed.extend(some),
            Err(error) => {
                tracing::warn!(%handle, %error, "DEL in pools that the network used before");
                errors.push(error);
            }
        }
    }
    let freed = errors.into_result(freed)?;
    // The collector finds what is left to it by its entry.
    if let Some(journal) = store.journal.as_ref().filter(|_| !left) {
        journal.forget(&network.name, handle, ifname).await;
    }
    Ok(freed)
}

/// Releases in pools that the network does not name now. They may be others', so a record must say that it is of the
/// network.
async fn del_in_former(
    store: &Store,
    network: &PodNetwork,
    handle: &Handle,
    ifname: &str,
) -> Result<Vec<Address>, PodError> {
    let mut freed = Vec::new();
    for pool in local_pools::former(store, network).await? {
        let mut held = store.find(&pool, handle).await?;
        held.retain(|(_, record)| {
            local_pools::is_of(network, record) && record.owner.part == ifname
        });
        if !held.is_empty() {
            let network = local_pools::as_it_was(network, &pool);
            freed.extend(free(store, &network, &pool, held).await?);
        }
    }
    Ok(freed)
}

async fn del_in(
    store: &Store,
    network: &PodNetwork,
    pool: &PoolKey,
    handle: &Handle,
    ifname: &str,
) -> Result<Vec<Address>, PodError> {
    if network.overlap_checks || Retention::from(&network.settings).any() {
        let mut held: Vec<(Address, Record)> = store.find(pool, handle).await?;
        held.retain(|(_, record)| record.owner.part == ifname);
        return free(store, network, pool, held).await;
    }
    let selector = Selector::Handle {
        handle: handle.clone(),
        part: Some(ifname.to_owned()),
    };
    match release(store, pool, selector, network.settings.cooldown).await? {
        Answer::Released(freed) => Ok(freed.into_iter().map(|(address, _)| address).collect()),
        _ => Ok(Vec::new()),
    }
}
