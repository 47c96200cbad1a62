//! DEL: frees what was given to this container's interface, in every pool of the network; on a machine by itself also in
//! pools that the network gave from before, or for a call that named an address.
//!
//! Goes on past an error, so that one pool's trouble does not keep another's addresses; the first error is
//! reported, so that the runtime comes back. Freeing nothing is a success: a repeat must be one.
//!
//! Where coming back could be in vain it succeeds too, and the address is left to the collector: a plugin without an agent has
//! the token of the agent's pod, which is good for as long as that pod is there. Its next pod brings another, and on a full node
//! it may be waiting for just the pod that leaves.

use std::time::Duration;

use berth_core::plan::Selector;
use berth_core::{Address, Answer, Handle, Record};
use berth_ledger::PoolKey;

use crate::config::PodNetwork;
use crate::cut;
use crate::error::PodError;
use crate::layout::Layout;
use crate::own;
use crate::release::{free, release};
use crate::sticky::Wishes;
use crate::store::Store;

/// How long a pool that the network does not give from any more may take.
const ELSEWHERE_LIMIT: Duration = Duration::from_secs(3);

/// Frees the addresses of `ifname` of the container `handle`; gives back which they were.
pub async fn del(
    store: &Store,
    network: &PodNetwork,
    handle: &Handle,
    ifname: &str,
) -> Result<Vec<Address>, PodError> {
    let mut freed = Vec::new();
    let mut first = None;
    let mut left = false;
    for pool in &Layout::of(network).pools {
        if let Some(other) = cut::elsewhere(store, pool) {
            match tokio::time::timeout(
                ELSEWHERE_LIMIT,
                del_in(store, network, &other, handle, ifname),
            )
            .await
            {
                Ok(Ok(some)) => freed.extend(some),
                // Nobody waits for it: what stays is freed when its pod is seen to be gone.
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
                first = first.or(Some(error));
            }
        }
    }
    if !store.in_cluster {
        match del_in_former(store, network, handle, ifname).await {
            Ok(some) => freed.extend(some),
            Err(error) => {
                tracing::warn!(%handle, %error, "DEL in pools of before");
                first = first.or(Some(error));
            }
        }
    }
    match first {
        Some(error) => Err(error),
        None => {
            // What is left to the collector is found by its note.
            if let Some(journal) = store.journal.as_ref().filter(|_| !left) {
                journal.forget(&network.name, handle, ifname).await;
            }
            Ok(freed)
        }
    }
}

/// Frees in pools that the network does not name now. They may be others', so a record must say that it is of the network.
async fn del_in_former(
    store: &Store,
    network: &PodNetwork,
    handle: &Handle,
    ifname: &str,
) -> Result<Vec<Address>, PodError> {
    let mut freed = Vec::new();
    for pool in own::former(store, network).await? {
        store.settle(&pool, handle).await?;
        let mut held = own::records(store, network, &pool).await?;
        held.retain(|(_, record)| record.handle == *handle && record.owner.part == ifname);
        if !held.is_empty() {
            let network = own::as_it_was(network, &pool);
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
    if network.overlap_checks || Wishes::from(&network.settings).any() {
        // An ADD of this container that was given up may have a commit under way, which a look would not see.
        store.settle(pool, handle).await?;
        let now = store.look(pool).await?;
        let held: Vec<(Address, Record)> = now
            .pool
            .held_under(handle)
            .filter(|(_, record)| record.owner.part == ifname)
            .map(|(address, record)| (address, record.clone()))
            .collect();
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
