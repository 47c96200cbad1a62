//! The memory ledger keeps the promises of all ledgers.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout
)]

use std::sync::Arc;

use berth_ledger::{MemoryLedger, PoolKey, SharedLedger};

mod conformance;

#[tokio::test(flavor = "multi_thread")]
async fn conforms() {
    let ledger: SharedLedger = Arc::new(MemoryLedger::new());
    conformance::suite(conformance::Subject {
        pool: PoolKey::of_network("10.0.0.0-16", "10.0.0.0/16".parse().unwrap()),
        ledgers: vec![Arc::clone(&ledger), ledger],
        cooldowns: true,
        named: true,
        guarded: true,
    })
    .await;
}
