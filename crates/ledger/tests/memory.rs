//! The memory ledger keeps the promises of all ledgers.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout
)]

use std::sync::Arc;

use berth_ledger::{MemoryLedger, PoolKey, SharedRecordLedger};

#[tokio::test(flavor = "multi_thread")]
async fn conforms() {
    let ledger: SharedRecordLedger = Arc::new(MemoryLedger::new());
    let pool = PoolKey::of_network("10.0.0.0-16", "10.0.0.0/16".parse().unwrap());
    berth_conformance::suite(berth_conformance::Subject {
        guarded: true,
        ..berth_conformance::Subject::with_records(pool, &[Arc::clone(&ledger), ledger])
    })
    .await;
}
