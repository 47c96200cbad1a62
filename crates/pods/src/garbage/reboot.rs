//! A machine without a cluster: what a reboot cut short is freed when the agent starts (host-local keeps it: plugins#252 #697).
//!
//! The proof is the boot that a record was made under: no container outlives its kernel (I4). A container that is made
//! again under its id after the reboot renews its record ([`renew`]); the commit that frees holds only for the pool
//! as it was read, so it can't free what was renewed meanwhile.

use std::collections::HashSet;

use berth_api::names;
use berth_collector::observed::{Held, Note};
use berth_core::{Address, Change, Pool, Record, Request};
use berth_ledger::{ClaimKey, ClaimKind, LedgerError, PoolKey, SharedRecordLedger};

use super::reservation_index::expected_name;
use crate::attachment::attribute;
use crate::error::PodError;
use crate::local_pools;
use crate::store::Store;

/// Frees what older boots than `boot` left in this machine's own ledger, and the reservations that no record is left
/// for; returns the addresses.
pub async fn sweep(ledger: &SharedRecordLedger, boot: &str) -> Result<Vec<Address>, LedgerError> {
    if boot.is_empty() {
        return Ok(Vec::new());
    }
    // Before the pools: a reservation is made after its record, so one without a record has no owner.
    let reservations = ledger.list(ClaimKind::Reservation).await?;
    let mut freed = Vec::new();
    let mut kept = Kept::default();
    // A cluster's pods are judged by the cluster.
    for pool in local_pools::pools(ledger).await? {
        freed.extend(sweep_pool(ledger, &pool, boot, &mut kept).await?);
    }
    for (key, record) in reservations {
        if !kept.need(&key.name) {
            end(ledger, &key, &record).await?;
        }
    }
    Ok(freed)
}

/// The records that stay.
#[derive(Default)]
struct Kept {
    reservations: HashSet<String>,
    addresses: HashSet<Address>,
}

impl Kept {
    /// Whether a reservation may be of one of them: of its name, or, for a pool that a person named, of its address.
    fn need(&self, name: &str) -> bool {
        self.reservations.contains(name)
            || self
                .addresses
                .iter()
                .any(|address| names::reserves(name, *address))
    }
}

async fn sweep_pool(
    ledger: &SharedRecordLedger,
    pool: &PoolKey,
    boot: &str,
    kept: &mut Kept,
) -> Result<Vec<Address>, LedgerError> {
    loop {
        let now = ledger.load(pool).await?;
        let left = left_behind(&now.pool, boot);
        let releases: Vec<Change> = left
            .iter()
            .map(|(address, record)| Change::Release {
                address: *address,
                expected: record.clone(),
                cooldown: None,
            })
            .collect();
        if !releases.is_empty() {
            match ledger.commit(pool, &now.version, &releases, None).await {
                Ok(_) => {}
                Err(error) if error.needs_reload() => continue,
                Err(error) => return Err(error),
            }
        }
        let freed: HashSet<Address> = left.into_iter().map(|(address, _)| address).collect();
        for (address, record) in now.pool.records() {
            if !freed.contains(&address) {
                kept.addresses.insert(address);
                kept.reservations.extend(reservation(pool, address, record));
            }
        }
        return Ok(freed.into_iter().collect());
    }
}

/// What was made under a boot that is over. A record that names none stays.
fn left_behind(pool: &Pool, boot: &str) -> Vec<(Address, Record)> {
    let old = |record: &Record| {
        let made = record.attribute(attribute::BOOT);
        made.is_some_and(|made| made != boot)
    };
    pool.records()
        .filter(|(_, record)| old(record))
        .map(|(address, record)| (address, record.clone()))
        .collect()
}

fn reservation(pool: &PoolKey, address: Address, record: &Record) -> Option<String> {
    expected_name(&Held {
        pool: pool.clone(),
        address,
        record: record.clone(),
        note: Note::default(),
    })
}

async fn end(
    ledger: &SharedRecordLedger,
    key: &ClaimKey,
    record: &Record,
) -> Result<(), LedgerError> {
    match ledger.delete(key, record).await {
        Err(LedgerError::Taken { .. }) => Ok(()),
        other => other,
    }
}

/// Brings the records of addresses that a container held before up to `record`: it may have been made again, under its
/// old id, in another boot.
pub(crate) async fn renew(
    store: &Store,
    held: &[(PoolKey, Address)],
    record: &Record,
) -> Result<(), PodError> {
    for (pool, address) in held {
        let now = store.load(pool).await?;
        let stale = now
            .pool
            .holders(*address)
            .find(|found| found.same_holder(record) && found.attributes != record.attributes);
        if let Some(stale) = stale {
            let renewal = Request::Transfer {
                address: *address,
                expected: stale.clone(),
                record: record.clone(),
            };
            store.ask(pool, renewal).await?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use berth_desk::DeskMetrics;
    use berth_ledger::SqliteLedger;
    use berth_testkit::PodCall;
    use serde_json::{Value, json};

    use super::*;
    use crate::{Front, Store};

    fn mk_front(ledger: &SharedRecordLedger, boot: &str) -> Front {
        let store = Store::standalone(SharedRecordLedger::clone(ledger), DeskMetrics::default());
        Front::new(Arc::new(Arc::new(store)), "machine")
            .with_boot(boot)
            .with_flat_places(Vec::new())
    }

    async fn add(front: &Front, container: &str) -> String {
        let network = json!({
            "cniVersion": "1.0.0", "name": "blue", "type": "bridge",
            "ipam": { "type": "berth", "range": "10.0.0.0/24" },
        });
        let call = PodCall::new("berth", "ADD", "").of_container(container);
        let call = call.with_args("").request_of(&network.to_string());
        let answer = front.answer(&call).await;
        assert_eq!(answer.exit, 0, "{}", answer.stdout);
        let result: Value = serde_json::from_str(&answer.stdout).unwrap();
        result["ips"][0]["address"].as_str().unwrap().to_owned()
    }

    #[tokio::test]
    async fn plugins_252_697_a_reboot_frees_what_the_old_boot_left() {
        let dir = tempfile::tempdir().unwrap();
        let ledger: SharedRecordLedger =
            Arc::new(SqliteLedger::open(dir.path().join("berth.db")).unwrap());
        let before = mk_front(&ledger, "old");
        for (container, address) in [("c1", "10.0.0.1/24"), ("c2", "10.0.0.2/24")] {
            assert_eq!(add(&before, container).await, address);
        }
        assert_eq!(sweep(&ledger, "old").await.unwrap(), []);
        assert_eq!(sweep(&ledger, "").await.unwrap(), [], "no boot is known");

        // c2 is made again under its id before the agent starts: it keeps its address.
        let after = mk_front(&ledger, "new");
        assert_eq!(add(&after, "c2").await, "10.0.0.2/24");
        let freed = sweep(&ledger, "new").await.unwrap();
        assert_eq!(freed, ["10.0.0.1".parse().unwrap()]);
        let left = ledger.list(ClaimKind::Reservation).await.unwrap();
        let left: Vec<&str> = left.iter().map(|(key, _)| key.name.as_str()).collect();
        assert_eq!(left, ["10.0.0.2"], "reservations go with their records");
        let after = mk_front(&ledger, "new");
        assert_eq!(add(&after, "c3").await, "10.0.0.1/24");
        assert_eq!(sweep(&ledger, "new").await.unwrap(), []);
    }
}
