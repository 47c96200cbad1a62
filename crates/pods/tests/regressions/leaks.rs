//! Addresses that nobody has and nobody gets.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use berth_ledger::{MemoryLedger, SharedRecordLedger};
use futures::future::join_all;
use serde_json::json;

use crate::bench::{Bench, addresses, error};
use crate::faulty::Faulty;

/// The pool could not be written, the reservation could, and the pod was told an address that nobody recorded.
#[tokio::test]
async fn whereabouts_712_an_address_that_is_not_recorded_is_not_given() {
    let faulty = Arc::new(Faulty::new());
    let bench = Bench::over(Arc::clone(&faulty) as SharedRecordLedger);
    faulty.full.store(true, Ordering::SeqCst);
    let refused = error(&bench.add("a", json!({"range": "10.0.0.0/24"})).await);
    assert!(
        refused["msg"].as_str().unwrap().contains("is full"),
        "{refused}"
    );
    assert_eq!(bench.held_and_reserved().await, (0, 0));
}

/// The record was written, the reservation could not be: the record must not stay.
#[tokio::test]
async fn whereabouts_409_pool_and_reservations_do_not_part() {
    let faulty = Arc::new(Faulty::new());
    let bench = Bench::over(Arc::clone(&faulty) as SharedRecordLedger);
    faulty.no_claims.store(true, Ordering::SeqCst);
    let both = json!({"ipRanges": [{"range": "10.0.0.0/24"}, {"range": "fd00::/64"}]});
    assert_eq!(error(&bench.add("a", both.clone()).await)["code"], 11);
    faulty.no_claims.store(false, Ordering::SeqCst);
    assert_eq!(bench.held_and_reserved().await, (0, 0));
    assert_eq!(
        addresses(&bench.add("a", both.clone()).await),
        ["10.0.0.1/24", "fd00::1/64"]
    );
    assert_eq!(bench.held_and_reserved().await, (2, 2));
    // What a failed repeat finds held stays held: the pod may be using it.
    faulty.no_claims.store(true, Ordering::SeqCst);
    assert_eq!(error(&bench.add("a", both.clone()).await)["code"], 11);
    faulty.no_claims.store(false, Ordering::SeqCst);
    assert_eq!(bench.held_and_reserved().await, (2, 2));
}

/// With every reboot the pods of a daemon set got addresses more, and no DEL came for those of before. Here the pod is
/// the owner, and its next container takes over what it has (I3).
#[tokio::test]
async fn calico_4190_a_reboot_takes_no_address_more() {
    let ledger: SharedRecordLedger = Arc::new(MemoryLedger::new());
    // As many as there are pods.
    let ipam = json!({"range": "10.0.0.0/29"});
    let mut before = Vec::new();
    for boot in ["first", "second", "third"] {
        let agent = Bench::agent(SharedRecordLedger::clone(&ledger), boot);
        let mut given = Vec::new();
        for n in 0..6 {
            let (pod, container) = (format!("daemon-{n}"), format!("{boot}-{n}"));
            let answer = agent.call("ADD", &pod, &container, ipam.clone()).await;
            given.extend(addresses(&answer));
        }
        assert_eq!(agent.held_and_reserved().await, (6, 6));
        assert!(before.is_empty() || before == given, "{before:?} {given:?}");
        before = given;
    }
}

/// The agent restarted, DEL was the first that it was asked, and it took the pod for another plugin's, for its
/// informers had nothing yet. Here DEL goes by the ledger alone.
#[tokio::test(flavor = "multi_thread")]
async fn antrea_3384_an_agent_that_begins_frees_what_it_is_told() {
    let ledger: SharedRecordLedger = Arc::new(MemoryLedger::new());
    let both = json!({"ipRanges": [{"range": "10.0.0.0/24"}, {"range": "fd00::/64"}]});
    let old = Bench::agent(SharedRecordLedger::clone(&ledger), "this-boot");
    for n in 0..8 {
        addresses(&old.add(&format!("p{n}"), both.clone()).await);
    }
    assert_eq!(old.held_and_reserved().await, (16, 16));
    drop(old);
    let begun = Bench::agent(ledger, "this-boot");
    let ends = (0..8).map(|n| {
        let (begun, both) = (&begun, both.clone());
        async move { begun.del(&format!("p{n}"), both).await }
    });
    join_all(ends).await;
    assert_eq!(begun.held_and_reserved().await, (0, 0));
}
