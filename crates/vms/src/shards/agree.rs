//! What the agents of a pool agree on, in annotations of its ConfigMaps: the number of ConfigMaps, and which have
//! spilled over.

use futures::future::try_join_all;

use super::is_unreadable;
use crate::pool::{PoolError, Store, VmPool};

/// How many ConfigMaps the pool is spread over.
const COUNT: &str = "vms.berth.dev/configmap-count";
/// IDs whose home is this ConfigMap may be in others.
const SPILLED: &str = "vms.berth.dev/spilled";

pub(super) async fn is_marked(shard: &VmPool) -> Result<bool, PoolError> {
    match shard.place() {
        (Store::ConfigMap(ledger), key) => Ok(ledger.annotation(key, SPILLED).await?.is_some()),
        (Store::Local(_), _) => Ok(false),
    }
}

pub(super) async fn mark(shard: &VmPool) -> Result<(), PoolError> {
    if let (Store::ConfigMap(ledger), key) = shard.place() {
        let unless_marked = |value: Option<&str>| value.is_none().then(|| "true".to_owned());
        ledger.annotate(key, SPILLED, unless_marked).await?;
    }
    Ok(())
}

/// Makes all agents spread a pool over the same number of ConfigMaps: with two numbers a VM would be listed in two of
/// them (I1). What was allocated before the number is set may be in any of them.
pub(crate) async fn agree(shards: &[&VmPool], count: u32) -> Result<(), PoolError> {
    let Some((Store::ConfigMap(ledger), key)) = shards.first().map(|first| first.place()) else {
        return Ok(());
    };
    let mut agreed = ledger.annotation(key, COUNT).await?;
    let count = count.to_string();
    if agreed.is_none() && shards.len() > 1 {
        for shard in shards {
            let is_empty = match shard.list().await {
                Ok(all) => all.is_empty(),
                // Its contents are unknown.
                Err(error) if is_unreadable(&error) => false,
                Err(error) => return Err(error),
            };
            if !is_empty {
                try_join_all(shards.iter().map(|shard| mark(shard))).await?;
                break;
            }
        }
        let unless_set = |value: Option<&str>| value.is_none().then(|| count.clone());
        ledger.annotate(key, COUNT, unless_set).await?;
        agreed = ledger.annotation(key, COUNT).await?;
    }
    match agreed {
        Some(agreed) if agreed != count => Err(PoolError::Starting {
            why: format!(
                "ConfigMap {} is one of {agreed} of its pool, and pool-configmap-count is {count}: set it to \
                 {agreed}, or stop all agents of the pool and remove the annotation {COUNT}",
                key.name
            ),
        }),
        _ => Ok(()),
    }
}
