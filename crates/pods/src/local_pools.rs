//! The pools of a standalone machine, as its file has them: more than its networks allocate from today.
//!
//! A range that was changed leaves its pool, and an address that a call named may be of a pool that no later call
//! names. What is in them is found by what its record says: the network, the container, the interface. Pools of a
//! cluster's slices and the node's journal are not among them.

use berth_core::{Address, Record};
use berth_ledger::{LedgerError, PoolKey, SharedRecordLedger};
use berth_node::journal::OLD_POOLS;
use berth_slices::sliced;

use crate::attachment::attribute;
use crate::config::PodNetwork;
use crate::error::PodError;
use crate::garbage::reservation_index::network_name;
use crate::layout::{Layout, PoolWants};
use crate::store::Store;

/// The pools of this machine alone.
pub(crate) async fn pools(ledger: &SharedRecordLedger) -> Result<Vec<PoolKey>, LedgerError> {
    let of_others = [OLD_POOLS, sliced::POOLS, sliced::HOLDINGS, sliced::NOTES];
    let mut pools = ledger.pools().await?;
    pools.retain(|pool| !of_others.iter().any(|prefix| pool.name.starts_with(prefix)));
    Ok(pools)
}

/// Those among them that `network` does not name now.
pub(crate) async fn former(store: &Store, network: &PodNetwork) -> Result<Vec<PoolKey>, PodError> {
    let mut pools = pools(&store.ledger).await?;
    let named = Layout::of(network).pools;
    pools.retain(|pool| named.iter().all(|now| now.key.name != pool.name));
    Ok(pools)
}

/// The records of a pool that name the network.
pub(crate) async fn records(
    store: &Store,
    network: &PodNetwork,
    pool: &PoolKey,
) -> Result<Vec<(Address, Record)>, PodError> {
    let now = store.load(pool).await?;
    let records = now.pool.records();
    let of_network = records.filter(|(_, record)| is_of(network, record));
    let records = of_network.map(|(address, record)| (address, record.clone()));
    Ok(records.collect())
}

/// Whether a record was made for the network. What was allocated by hand is no container's: only a person releases it.
pub(crate) fn is_of(network: &PodNetwork, record: &Record) -> bool {
    let of_network = record.attribute(attribute::NETWORK) == Some(network.name.as_str());
    of_network && !record.is_by_hand()
}

/// The network as it was when it allocated from that pool: the pool's name has its `network_name`. Whether it had checks
/// for overlaps is unknown, so its reservations are ended if there are any.
pub(crate) fn as_it_was(network: &PodNetwork, pool: &PoolKey) -> PodNetwork {
    let mut network = network.clone();
    let is_named = |now: &PoolWants| now.key.name == pool.name;
    if Layout::of(&network).pools.iter().any(is_named) {
        return network;
    }
    if let Some(name) = network_name(pool) {
        network.network_name = name.to_owned();
    }
    network.overlap_checks = true;
    network
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use berth_desk::DeskMetrics;
    use berth_ledger::{ClaimKind, MemoryLedger};
    use berth_testkit::PodCall;
    use serde_json::{Value, json};

    use super::*;
    use crate::Front;

    struct Machine {
        ledger: SharedRecordLedger,
        front: Front,
    }

    impl Machine {
        fn new() -> Machine {
            let ledger: SharedRecordLedger = Arc::new(MemoryLedger::new());
            let store =
                Store::standalone(SharedRecordLedger::clone(&ledger), DeskMetrics::default());
            let front = Front::new(Arc::new(Arc::new(store)), "machine");
            Machine {
                ledger,
                front: front.with_flat_places(Vec::new()),
            }
        }

        async fn call(&self, verb: &str, container: &str, args: &str, network: &Value) {
            let call = PodCall::new("berth", verb, "").of_container(container);
            let call = call.of_interface("eth0").with_args(args);
            let call = call.request_of(&network.to_string());
            let answer = self.front.answer(&call).await;
            assert_eq!(answer.exit, 0, "{verb} {container}: {}", answer.stdout);
        }

        /// Everything that is held, and reserved.
        async fn held(&self) -> Vec<String> {
            let mut held = Vec::new();
            for pool in self.ledger.pools().await.unwrap() {
                let now = self.ledger.load(&pool).await.unwrap();
                let records = now.pool.records();
                held.extend(
                    records.map(|(address, record)| format!("{address} {}", record.handle)),
                );
            }
            let reserved = self.ledger.list(ClaimKind::Reservation).await.unwrap();
            held.extend(reserved.iter().map(|(key, _)| key.to_string()));
            held.sort();
            held
        }
    }

    fn network(name: &str, ipam: Value) -> Value {
        let mut ipam = ipam;
        ipam["type"] = json!("berth");
        json!({"cniVersion": "1.1.0", "name": name, "type": "bridge", "ipam": ipam})
    }

    #[tokio::test]
    async fn gc_releases_what_the_network_allocated_from_another_range_and_nothing_of_others() {
        let machine = Machine::new();
        let before = network(
            "blue",
            json!({"range": "10.0.0.0/24", "network_name": "old"}),
        );
        let green = network(
            "green",
            json!({"range": "10.0.0.0/24", "network_name": "old"}),
        );
        machine.call("ADD", "dead", "", &before).await;
        machine.call("ADD", "alive", "", &before).await;
        machine.call("ADD", "theirs", "", &green).await;
        let mut now = network("blue", json!({"range": "10.1.0.0/24"}));
        machine
            .call("ADD", "named", "IP=192.168.7.7/24", &now)
            .await;
        now["cni.dev/valid-attachments"] = json!([{"containerID": "alive", "ifname": "eth0"}]);
        machine.call("GC", "x", "", &now).await;
        let left = [
            "10.0.0.2 alive",
            "10.0.0.3 theirs",
            "reservation old-10.0.0.2",
            "reservation old-10.0.0.3",
        ];
        assert_eq!(machine.held().await, left);
    }

    #[tokio::test]
    async fn del_releases_what_was_named_in_the_add_alone_and_what_is_of_another_range() {
        let machine = Machine::new();
        let before = network("blue", json!({"range": "10.0.0.0/24"}));
        machine.call("ADD", "a", "IP=192.168.7.7/24", &before).await;
        // Another network of the same container's interface.
        let green = network("green", json!({"range": "10.2.0.0/24"}));
        machine.call("ADD", "a", "", &green).await;
        machine.call("ADD", "b", "", &before).await;
        let now = network("blue", json!({"range": "10.1.0.0/24"}));
        machine.call("DEL", "a", "", &now).await;
        let left = [
            "10.0.0.2 b",
            "10.2.0.1 a",
            "reservation 10.0.0.2",
            "reservation 10.2.0.1",
        ];
        assert_eq!(machine.held().await, left);
    }
}
