//! STATUS: whether an ADD could be served now.

use berth_cni::{CniError, Code};
use berth_core::{Pool, Space};
use berth_slices::Mode;

use crate::config::PodNetwork;
use crate::cut;
use crate::layout::Layout;
use crate::store::Store;

/// Fails with code 50 when the store cannot be read or a range has no address left.
pub async fn status(store: &Store, network: &PodNetwork) -> Result<(), CniError> {
    let mut layout = Layout::of(network);
    cut::to_slices(store, &mut layout).await.map_err(|error| {
        let why = format!("no address can be given: {error}");
        CniError::new(Code::NotAvailable, why)
    })?;
    for pool in &layout.pools {
        let now = store.look(&pool.key).await.map_err(|error| {
            CniError::new(
                Code::NotAvailable,
                format!("no address can be given: {error}"),
            )
        })?;
        for (_, want) in pool.wants.iter().filter(|(_, want)| want.exact.is_none()) {
            let capacity = want.space.count();
            // A node that claims slices by itself may find another one.
            let grows = pool
                .sliced
                .as_ref()
                .is_some_and(|of| of.mode != Mode::Assigned);
            if !grows && held_of(&now.pool, &want.space) >= capacity {
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
