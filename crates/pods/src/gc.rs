//! GC: frees what is not among the attachments that the runtime says are alive, of this network and this node
//! only.

use std::collections::HashSet;

use berth_cni::Attachment as Valid;
use berth_core::{Address, Record};

use crate::attachment::attribute;
use crate::config::PodNetwork;
use crate::error::PodError;
use crate::layout::Layout;
use crate::release::free;
use crate::store::Store;

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
    let mut freed = Vec::new();
    let mut first = None;
    for pool in &Layout::of(network).pools {
        let now = store.look(&pool.key).await?;
        let dead: Vec<(Address, Record)> = now
            .pool
            .records()
            .filter(|(_, record)| {
                let key = (record.handle.as_str(), record.owner.part.as_str());
                !alive.contains(&key) && is_ours(record, network)
            })
            .map(|(address, record)| (address, record.clone()))
            .collect();
        match free(store, network, &pool.key, dead).await {
            Ok(some) => freed.extend(some),
            Err(error) => {
                tracing::warn!(pool = %pool.key, %error, "GC goes on with the other pools");
                first = first.or(Some(error));
            }
        }
    }
    match first {
        Some(error) => Err(error),
        None => Ok(freed),
    }
}

/// Whether the record was made for this network. What does not say so is somebody else's.
fn is_ours(record: &Record, network: &PodNetwork) -> bool {
    record.attribute(attribute::NETWORK) == Some(network.name.as_str())
}
