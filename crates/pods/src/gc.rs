//! GC: frees what is not among the attachments that the runtime says are alive, of this network and this node
//! only.
//!
//! Which records those are, the store itself says where it is this machine's alone; in a cluster the node's
//! journal does.

use std::collections::{BTreeMap, HashSet};

use berth_cni::Attachment as Valid;
use berth_core::{Address, Record};
use berth_ledger::PoolKey;

use crate::attachment::attribute;
use crate::config::PodNetwork;
use crate::error::PodError;
use crate::layout::Layout;
use crate::release::free;
use crate::store::Store;

type ByPool = BTreeMap<PoolKey, Vec<(Address, Record)>>;

/// Frees the records of dead attachments; gives back which addresses they had.
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
            ours.extend(standalone(store, network, true).await?);
            ours
        }
        None if store.in_cluster => ByPool::new(),
        None => standalone(store, network, false).await?,
    };
    let mut freed = Vec::new();
    let mut first = None;
    for (pool, held) in &mut ours {
        held.retain(|(_, record)| is_dead(record));
        match free(store, network, pool, held.clone()).await {
            Ok(some) => freed.extend(some),
            Err(error) => {
                tracing::warn!(%pool, %error, "GC goes on with the other pools");
                first = first.or(Some(error));
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
    match first {
        Some(error) => Err(error),
        None => Ok(freed),
    }
}

/// The records of this machine that were made for this network. What does not say so is somebody else's.
async fn standalone(
    store: &Store,
    network: &PodNetwork,
    only_slices: bool,
) -> Result<ByPool, PodError> {
    let mut ours = ByPool::new();
    for pool in &Layout::of(network).pools {
        if only_slices && pool.sliced.is_none() {
            continue;
        }
        let now = store.look(&pool.key).await?;
        let of_network = now.pool.records().filter(|(_, record)| {
            record.attribute(attribute::NETWORK) == Some(network.name.as_str())
        });
        let held = of_network.map(|(address, record)| (address, record.clone()));
        ours.insert(pool.key.clone(), held.collect());
    }
    Ok(ours)
}
