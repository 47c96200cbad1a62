//! A failed ADD leaves what its owner held before, with its reservation, and nothing else.

use std::sync::Arc;

use berth_cni::wire::Answer;
use berth_desk::DeskMetrics;
use berth_ledger::{ClaimKind, MemoryLedger, SharedRecordLedger};
use berth_testkit::PodCall;
use serde_json::{Value, json};

use crate::Front;
use crate::store::Store;

const FIRST: &str = "10.0.0.0/30";

async fn add(front: &Front, container: &str, ranges: Value) -> Answer {
    let network = json!({"cniVersion": "1.1.0", "name": "net", "type": "macvlan",
        "ipam": {"type": "whereabouts", "ipRanges": ranges}});
    let call = PodCall::new("whereabouts", "ADD", container).of_container(container);
    front.answer(&call.request_of(&network.to_string())).await
}

/// Every record and every reservation.
async fn held(ledger: &SharedRecordLedger) -> Vec<String> {
    let mut held = Vec::new();
    for pool in ledger.pools().await.unwrap() {
        let now = ledger.load(&pool).await.unwrap();
        let records = now.pool.records();
        held.extend(records.map(|(address, record)| format!("{pool} {address} {}", record.handle)));
    }
    let reserved = ledger.list(ClaimKind::Reservation).await.unwrap();
    held.extend(reserved.iter().map(|(key, _)| key.to_string()));
    held.sort();
    held
}

#[tokio::test]
async fn a_failed_repeat_keeps_what_was_held_before_and_its_reservation() {
    let ledger: SharedRecordLedger = Arc::new(MemoryLedger::new());
    let store = Store::cluster_once(SharedRecordLedger::clone(&ledger), DeskMetrics::default());
    let front = Front::new(Arc::new(Arc::new(store)), "node").with_flat_places(Vec::new());
    let first = add(&front, "a", json!([{"range": FIRST}])).await;
    assert_eq!(first.exit, 0, "{}", first.stdout);
    let before = held(&ledger).await;
    assert_eq!(before.len(), 2, "{before:?}");
    // The second range has only the address that the owner holds of the first one: the call itself is the other owner.
    let overlapping = json!([{"range": FIRST},
        {"range": "10.0.0.0/24", "range_start": "10.0.0.1", "range_end": "10.0.0.1"}]);
    let repeat = add(&front, "a", overlapping.clone()).await;
    assert!(
        repeat.stdout.contains("Could not allocate IP"),
        "{}",
        repeat.stdout
    );
    assert_eq!(held(&ledger).await, before);
    // Another owner fails in the same way, and leaves nothing.
    let other = add(&front, "b", overlapping).await;
    assert_ne!(other.exit, 0, "{}", other.stdout);
    assert_eq!(held(&ledger).await, before);
}
