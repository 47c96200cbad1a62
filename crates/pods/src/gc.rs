//! GC: releases what is not among the attachments that the runtime says are alive, of this network and this node
//! only.
//!
//! Which records those are, the store itself says where it is this machine's alone; in a cluster the node's
//! journal does. Goes on past an error and reports them all.

use std::collections::{BTreeMap, HashSet};

use berth_cni::Attachment as Valid;
use berth_core::{Address, Record};
use berth_ledger::PoolKey;

use crate::config::PodNetwork;
use crate::error::PodError;
use crate::layout::Layout;
use crate::local_pools;
use crate::release::free;
use crate::store::Store;
use crate::teardown::Errors;

type ByPool = BTreeMap<PoolKey, Vec<(Address, Record)>>;

/// Releases the records of dead attachments; returns which addresses they had.
pub async fn gc(
    store: &Store,
    network: &PodNetwork,
    valid: &[Valid],
) -> Result<Vec<Address>, PodError> {
    let alive: HashSet<(&str, &str)> = valid
        .iter()
        .map(|one| (one.container_id.as_str(), one.ifname.as_str()))
        .collect();
    let is_dead = |record: &Record| {
        let key = (record.handle.as_str(), record.owner.part.as_str());
        !alive.contains(&key)
    };
    let mut ours = match &store.journal {
        Some(journal) => {
            let mut ours = ByPool::new();
            for entry in journal.entries(&network.name).await? {
                let held = (entry.address, entry.record);
                ours.entry(entry.pool).or_default().push(held);
            }
            ours.extend(of_slices(store, network).await?);
            ours
        }
        None if store.in_cluster => ByPool::new(),
        None => standalone(store, network).await?,
    };
    let mut freed = Vec::new();
    let mut errors = Errors::default();
    for (pool, held) in &mut ours {
        held.retain(|(_, record)| is_dead(record));
        let freeing = match store.in_cluster {
            true => free_held(store, network, pool, held).await,
            false => free_held(store, &local_pools::as_it_was(network, pool), pool, held).await,
        };
        match freeing {
            Ok(some) => freed.extend(some),
            Err(error) => {
                tracing::warn!(%pool, %error, "GC goes on with the other pools");
                errors.push(error);
                held.clear();
            }
        }
    }
    if let Some(journal) = &store.journal {
        for (_, record) in ours.values().flatten() {
            journal
                .forget(&network.name, &record.handle, &record.owner.part)
                .await;
        }
    }
    errors.into_result(freed)
}

/// Releases those that the pool still has. A journal's entry of a pod that was made again elsewhere is history, and must not
/// end the reservation that the pod has now.
async fn free_held(
    store: &Store,
    network: &PodNetwork,
    pool: &PoolKey,
    held: &[(Address, Record)],
) -> Result<Vec<Address>, PodError> {
    if held.is_empty() {
        return Ok(Vec::new());
    }
    let now = store.load(pool).await?;
    let still = |(address, record): &&(Address, Record)| {
        let mut holders = now.pool.holders(*address);
        holders.any(|holder| holder.same_holder(record))
    };
    let held = held.iter().filter(still).cloned().collect();
    free(store, network, pool, held).await
}

/// The records of this machine that were made for this network, in whichever of its pools.
async fn standalone(store: &Store, network: &PodNetwork) -> Result<ByPool, PodError> {
    let mut ours = ByPool::new();
    for pool in local_pools::pools(&store.ledger).await? {
        let held = local_pools::records(store, network, &pool).await?;
        ours.insert(pool, held);
    }
    Ok(ours)
}

/// The same of the node's slices, which the network allocates from.
async fn of_slices(store: &Store, network: &PodNetwork) -> Result<ByPool, PodError> {
    let mut ours = ByPool::new();
    for pool in &Layout::of(network).pools {
        if pool.sliced.is_some() {
            let held = local_pools::records(store, network, &pool.key).await?;
            ours.insert(pool.key.clone(), held);
        }
    }
    Ok(ours)
}
