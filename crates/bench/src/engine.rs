//! What one allocation costs in core, and how many durable ones SQLite takes through a desk.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use berth_core::dialect::WHEREABOUTS;
use berth_core::plan::Selector;
use berth_core::{
    AddressRequest, Allocate, Answer, Handle, Moment, Owner, Pool, RangeSpec, Record, Release,
    Request, Space, plan,
};
use berth_desk::{Desk, DeskMetrics, DeskSettings};
use berth_ledger::{PoolKey, SharedLedger, SqliteLedger};

use crate::figure::{Figure, Target};

const ROUNDS: u32 = 20_000;

pub async fn run() -> anyhow::Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for range in ["10.0.0.0/8", "fd00::/64"] {
        core(range, &mut figures)?;
    }
    sqlite(&mut figures).await?;
    plugin(&mut figures)?;
    Ok(figures)
}

fn mk_record(n: u32) -> Record {
    let name = format!("default/pod-{n}");
    Record::new(
        Owner::new(name.clone(), "net1"),
        Handle::new(format!("container-{n}")),
    )
}

fn mk_claim(n: u32, space: &Arc<Space>) -> Request {
    Request::Allocate(Allocate {
        record: mk_record(n),
        wants: vec![AddressRequest::any(Arc::clone(space))],
    })
}

fn mk_release(n: u32) -> Request {
    let selector = Selector::Handle {
        handle: mk_record(n).handle,
        part: Some("net1".into()),
    };
    Request::Release(Release {
        selector,
        cooldown: Duration::ZERO,
    })
}

fn mk_space(range: &str) -> anyhow::Result<Arc<Space>> {
    Ok(Arc::new(
        Space::build(&RangeSpec::parse(range)?, WHEREABOUTS)?.0,
    ))
}

/// The median times of one allocate and of one release in a pool that holds `size`, in
/// microseconds. Every third address is free, as in a pool that has been used for a while.
fn one_each(space: &Arc<Space>, size: u32) -> anyhow::Result<(f64, f64)> {
    let mut pool = Pool::new();
    for n in 0..size + size / 2 {
        plan(&mut pool, &[mk_claim(n, space)], Moment(0));
    }
    for n in (0..size + size / 2).step_by(3) {
        plan(&mut pool, &[mk_release(n)], Moment(0));
    }
    let mut allocate = Vec::with_capacity(ROUNDS as usize);
    let mut release = Vec::with_capacity(ROUNDS as usize);
    for n in 0..ROUNDS {
        let (claim, free) = (mk_claim(10_000_000 + n, space), mk_release(10_000_000 + n));
        let started = Instant::now();
        let outcome = plan(&mut pool, std::slice::from_ref(&claim), Moment(0));
        allocate.push(started.elapsed());
        if !matches!(outcome.answers.as_slice(), [Answer::Granted(_)]) {
            bail!("no address: {:?}", outcome.answers);
        }
        let started = Instant::now();
        let outcome = plan(&mut pool, std::slice::from_ref(&free), Moment(0));
        release.push(started.elapsed());
        if outcome.changes.len() != 1 {
            bail!("nothing was released");
        }
    }
    Ok((median(&mut allocate), median(&mut release)))
}

fn median(times: &mut [Duration]) -> f64 {
    times.sort_unstable();
    times
        .get(times.len() / 2)
        .map_or(0.0, |time| time.as_secs_f64() * 1e6)
}

fn core(range: &str, figures: &mut Vec<Figure>) -> anyhow::Result<()> {
    let space = mk_space(range)?;
    let small = one_each(&space, 100)?;
    let large = one_each(&space, 100_000)?;
    for (verb, small, large) in [
        ("allocate", small.0, large.0),
        ("release", small.1, large.1),
    ] {
        figures.push(Figure::new(
            format!("core: {verb}, {range}, 100,000 held"),
            large,
            "us",
            Target::AtMost(10.0),
        ));
        figures.push(Figure::new(
            format!("core: {verb}, {range}, against 100 held"),
            large / small,
            "x",
            Target::AtMost(2.0),
        ));
    }
    Ok(())
}

const REQUESTERS: u32 = 64;
const EACH: u32 = 200;

async fn sqlite(figures: &mut Vec<Figure>) -> anyhow::Result<()> {
    let directory = tempfile::tempdir()?;
    let alone = claims_a_second(&directory.path().join("one.db"), 1).await?;
    figures.push(Figure::new(
        "SQLite through a desk, 1 requester, durable claims",
        alone,
        "/s",
        Target::None,
    ));
    let rate = claims_a_second(&directory.path().join("many.db"), REQUESTERS).await?;
    figures.push(Figure::new(
        "SQLite through a desk, 64 requesters, durable claims",
        rate,
        "/s",
        Target::AtLeast(2000.0),
    ));
    Ok(())
}

async fn claims_a_second(path: &Path, requesters: u32) -> anyhow::Result<f64> {
    let ledger: SharedLedger = Arc::new(SqliteLedger::open(path)?);
    let pool = PoolKey::of_network("10.0.0.0-8", "10.0.0.0/8".parse()?);
    let metrics = DeskMetrics::default().of(&pool.name);
    let desk = Desk::open(
        ledger.clone(),
        pool.clone(),
        &DeskSettings::default(),
        metrics,
    );
    let space = mk_space("10.0.0.0/8")?;
    let started = Instant::now();
    let tasks = (0..requesters).map(|requester| {
        let (desk, space) = (desk.clone(), Arc::clone(&space));
        tokio::spawn(async move {
            let mut allocated = Vec::new();
            for n in 0..EACH {
                match desk.submit(mk_claim(requester * EACH + n, &space)).await? {
                    Answer::Granted(granted) => allocated.extend(granted.iter().map(|g| g.address)),
                    other => bail!("no address: {other:?}"),
                }
            }
            Ok(allocated)
        })
    });
    let tasks: Vec<_> = tasks.collect();
    let mut allocated = Vec::new();
    for task in tasks {
        allocated.extend(task.await??);
    }
    let elapsed = started.elapsed().as_secs_f64();
    allocated.sort_unstable();
    allocated.dedup();
    let held = ledger.load(&pool).await?.pool.len();
    let asked = (requesters * EACH) as usize;
    if allocated.len() != asked || held != asked {
        bail!(
            "asked for {asked}, got {} different ones, {held} are recorded",
            allocated.len()
        );
    }
    Ok(asked as f64 / elapsed)
}

fn plugin(figures: &mut Vec<Figure>) -> anyhow::Result<()> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../target/x86_64-unknown-linux-musl/plugin/berth-cni");
    let size = std::fs::metadata(&path)
        .with_context(|| format!("{} is not built: run `cargo xtask plugin`", path.display()))?
        .len();
    figures.push(Figure::new(
        "plugin binary, static musl",
        size as f64 / 1e6,
        "MB",
        Target::AtMost(1.0),
    ));
    Ok(())
}
