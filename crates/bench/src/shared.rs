//! One IPPool object and many requesters: through one desk, or with a desk each.
//!
//! Every run checks what it measures: each request is answered, no address is allocated twice (I1), and exactly what
//! was returned is in the object afterwards (I2).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use berth_core::{
    Address, AddressRequest, Allocate, Answer, Handle, Owner, Prefix, RangeSpec, Record, Request,
    Space, dialect,
};
use berth_desk::{Desk, DeskMetrics, DeskSettings};
use berth_ledger::{PoolKey, RetryPolicy, SharedLedger};

use crate::figure::progress;

/// What a run did.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    pub claims: usize,
    pub commits: u64,
    pub elapsed: Duration,
}

impl Run {
    pub fn rate(&self) -> f64 {
        self.claims as f64 / self.elapsed.as_secs_f64()
    }
}

/// When a run ends.
#[derive(Clone, Copy, Debug)]
pub struct End {
    pub claims: usize,
    pub after: Duration,
}

pub fn mk_pool(name: &str) -> Result<PoolKey> {
    let network: Prefix = "10.0.0.0/16".parse()?;
    Ok(PoolKey::of_network(name, network))
}

pub fn settings() -> DeskSettings {
    DeskSettings {
        retry: RetryPolicy {
            timeout: Duration::from_secs(600),
            retries: 100_000,
            ..RetryPolicy::default()
        },
        ..DeskSettings::default()
    }
}

fn mk_request(space: &Arc<Space>, who: usize, round: usize) -> Request {
    // As long as a real pod's: the object's size is part of what is measured.
    let owner = Owner::new(format!("default/workload-{who:03}-{round:05}"), "net1");
    let handle = Handle::new(format!("{who:032x}{round:032x}"));
    Request::Allocate(Allocate {
        record: Record::new(owner, handle),
        wants: vec![AddressRequest::any(Arc::clone(space))],
    })
}

/// Each requester asks for one address after another through its desk, until the end. `desks` are assigned round-robin:
/// one for all, or one each.
pub async fn run(
    what: &str,
    ledger: &SharedLedger,
    pool: &PoolKey,
    desks: Vec<Desk>,
    metrics: &DeskMetrics,
    requesters: usize,
    end: End,
) -> Result<Run> {
    let network = pool.network.context("a pool of a range")?;
    let (space, _) = Space::build(&RangeSpec::of(network), dialect::WHEREABOUTS)?;
    let space = Arc::new(space);
    let bar = progress(what, end.claims as u64);
    let asked = Arc::new(AtomicUsize::new(0));
    let started = Instant::now();
    let mut tasks = Vec::new();
    for who in 0..requesters {
        let desk = desks[who % desks.len()].clone();
        let (space, asked, bar) = (Arc::clone(&space), Arc::clone(&asked), bar.clone());
        tasks.push(tokio::spawn(async move {
            let mut got = Vec::new();
            while started.elapsed() < end.after
                && asked.fetch_add(1, Ordering::Relaxed) < end.claims
            {
                let request = mk_request(&space, who, got.len());
                match desk.submit(request).await? {
                    Answer::Granted(granted) if granted.len() == 1 => got.push(granted[0].address),
                    other => bail!("{other:?}"),
                }
                bar.inc(1);
            }
            Ok(got)
        }));
    }
    let mut allocated: BTreeSet<Address> = BTreeSet::new();
    for task in tasks {
        for address in task.await?? {
            ensure!(
                allocated.insert(address),
                "{address} was allocated twice (I1)"
            );
        }
    }
    let elapsed = started.elapsed();
    bar.finish_and_clear();
    let kept = ledger.load(pool).await?;
    let kept: BTreeSet<Address> = kept.pool.records().map(|(address, _)| address).collect();
    ensure!(
        kept == allocated,
        "{} were answered and {} are kept (I2)",
        allocated.len(),
        kept.len()
    );
    Ok(Run {
        claims: allocated.len(),
        commits: metrics.of(&pool.name).commits.get(),
        elapsed,
    })
}
