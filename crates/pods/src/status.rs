//! STATUS: whether an ADD could be served now.

use berth_cni::{CniError, Code};
use berth_core::{Pool, Space};

use crate::config::PodNetwork;
use crate::layout::Layout;
use crate::store::Store;

/// Fails with code 50 when the store cannot be read or a range has no address left.
pub async fn status(store: &Store, network: &PodNetwork) -> Result<(), CniError> {
    for pool in &Layout::of(network).pools {
        let now = store.look(&pool.key).await.map_err(|error| {
            CniError::new(
                Code::NotAvailable,
                format!("no address can be given: {error}"),
            )
        })?;
        for (_, want) in pool.wants.iter().filter(|(_, want)| want.exact.is_none()) {
            let capacity = want.space.count();
            if held_of(&now.pool, &want.space) >= capacity {
                return Err(CniError::new(
                    Code::NotAvailable,
                    format!(
                        "pool {} is exhausted: all {capacity} addresses are held",
                        pool.key
                    ),
                ));
            }
        }
    }
    Ok(())
}

fn held_of(pool: &Pool, space: &Space) -> u128 {
    pool.records()
        .filter(|(address, _)| space.contains(*address))
        .count() as u128
}
