//! Finds all holders of an address, in all pools that could contain it.

use berth_core::{Address, Cooldown, Record};
use berth_ledger::{LedgerError, PoolKey};

use crate::store::{Store, Stores};

/// A holder of the address.
pub struct Holding<'a> {
    pub store: &'a Store,
    pub pool: PoolKey,
    /// The node whose slice contains it.
    pub publisher: Option<String>,
    pub record: Record,
}

/// A pool in which the address cools down.
pub struct Cooling<'a> {
    pub store: &'a Store,
    pub pool: PoolKey,
    pub publisher: Option<String>,
    pub cooldown: Cooldown,
}

/// A slice as its node has published it.
pub struct Slice<'a> {
    pub store: &'a Store,
    pub pool: PoolKey,
    pub node: String,
}

#[derive(Default)]
pub struct Found<'a> {
    pub held: Vec<Holding<'a>>,
    pub cooling: Vec<Cooling<'a>>,
    /// Published slices that contain the address and do not show it allocated. Whether it cools down there, only their
    /// nodes know: cooldowns of slices are not published.
    pub slices: Vec<Slice<'a>>,
    /// Pools that may contain it and can't be read, and why.
    pub unread: Vec<String>,
}

pub async fn find(stores: &Stores, address: Address) -> Result<Found<'_>, LedgerError> {
    let mut found = Found::default();
    for store in &stores.0 {
        store
            .visit(|view| {
                let elsewhere = |network: berth_core::Prefix| !network.contains(address);
                if view.key.network.is_some_and(elsewhere) {
                    return;
                }
                let pool = match view.snapshot {
                    Ok(snapshot) => snapshot.pool,
                    Err(error) => return found.unread.push(error.to_string()),
                };
                let before = found.held.len();
                for record in pool.holders(address) {
                    found.held.push(Holding {
                        store,
                        pool: view.key.clone(),
                        publisher: view.publisher.clone(),
                        record: record.clone(),
                    });
                }
                if let Some((_, cooldown)) =
                    pool.cooldowns().find(|(cooling, _)| *cooling == address)
                {
                    found.cooling.push(Cooling {
                        store,
                        pool: view.key.clone(),
                        publisher: view.publisher.clone(),
                        cooldown: cooldown.clone(),
                    });
                } else if let Some(node) = view.publisher.clone()
                    && found.held.len() == before
                {
                    found.slices.push(Slice {
                        store,
                        pool: view.key.clone(),
                        node,
                    });
                }
            })
            .await?;
    }
    Ok(found)
}
