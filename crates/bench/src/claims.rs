//! Claims by name compared with bare CREATEs of the same objects: what the ledger adds to a request.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use berth_api::names;
use berth_api::whereabouts::{OverlappingRangeIPReservation, OverlappingRangeIPReservationSpec};
use berth_core::{Address, Family, Handle, Owner, Record};
use berth_ledger::{ClaimKey, ClaimKind, SharedRecordLedger};
use kube::Api;
use kube::api::PostParams;

use crate::figure::progress;

/// What creates the objects.
#[derive(Clone)]
pub enum Maker {
    /// The client alone, with a typed object.
    Bare(Box<Api<OverlappingRangeIPReservation>>),
    Ledger(SharedRecordLedger),
}

impl Maker {
    async fn make(&self, n: u64) -> Result<()> {
        let address = Address::new(Family::V4, u128::from(0x0a00_0000 + n));
        let name = names::reservation("bench", address.context("an IPv4 address")?);
        let pod = format!("default/workload-{n:06}");
        let container = format!("{n:064x}");
        match self {
            Self::Bare(api) => {
                let spec = OverlappingRangeIPReservationSpec {
                    containerid: container,
                    podref: pod,
                    ifname: "net1".into(),
                };
                let object = OverlappingRangeIPReservation::new(&name, spec);
                api.create(&PostParams::default(), &object).await?;
            }
            Self::Ledger(ledger) => {
                let record = Record::new(Owner::new(pod, "net1"), Handle::new(container));
                let key = ClaimKey::new(ClaimKind::Reservation, name);
                ledger.create(&key, &record).await?;
            }
        }
        Ok(())
    }
}

/// `count` objects from `first` on, by `requesters` at once; the rate per second.
pub async fn run(
    what: &str,
    maker: &Maker,
    requesters: u64,
    first: u64,
    count: u64,
) -> Result<f64> {
    let bar = progress(what, count);
    let next = Arc::new(AtomicU64::new(first));
    let started = Instant::now();
    let mut tasks = Vec::new();
    for _ in 0..requesters {
        let (maker, next, bar) = (maker.clone(), Arc::clone(&next), bar.clone());
        tasks.push(tokio::spawn(async move {
            let mut made = 0;
            loop {
                let n = next.fetch_add(1, Ordering::Relaxed);
                if n >= first + count {
                    return Ok::<u64, anyhow::Error>(made);
                }
                maker.make(n).await?;
                made += 1;
                bar.inc(1);
            }
        }));
    }
    let mut made = 0;
    for task in tasks {
        made += task.await??;
    }
    let elapsed = started.elapsed();
    bar.finish_and_clear();
    ensure!(made == count, "{made} of {count} objects were made");
    Ok(count as f64 / elapsed.as_secs_f64())
}
