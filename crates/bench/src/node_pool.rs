//! A NodeIPPool of 2^20 offsets, half full: what an allocation costs in core, and how large the object is.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use berth_api::nmstate::{NodeIPPool, NodeIPPoolSpec, NodeIPPoolStatus, Range};
use berth_core::plan::Selector;
use berth_core::{
    AddressRequest, Allocate, Answer, Handle, Moment, Offset, Owner, Pool, Record, Release,
    Request, Space, plan,
};
use berth_nodes::pool::{Described, PoolSpace, encode};

use crate::figure::{Figure, Target};

const OFFSETS: u32 = 1 << 20;
const ROUNDS: u32 = 20_000;

pub fn run() -> anyhow::Result<Vec<Figure>> {
    let spec = NodeIPPoolSpec {
        range: Range {
            cidr: "fd00::/64".to_owned(),
            start: Some("fd00::1".to_owned()),
            end: Some("fd00::10:0".to_owned()),
            ..Range::default()
        },
        ..NodeIPPoolSpec::default()
    };
    let space = PoolSpace::read(&spec)?;
    ensure!(
        space.offsets() == u128::from(OFFSETS),
        "{} offsets",
        space.offsets()
    );
    let addresses = space.spaces().next().context("a pool without addresses")?;
    let addresses = Arc::new(addresses.clone());
    // Every second offset, so that the free ones are as scattered as they can be; and the first half, so that the first
    // free one is as far away as it can be.
    let scattered = allocate(&addresses, |n| n % 2 == 0)?;
    let behind = allocate(&addresses, |n| n < OFFSETS / 2)?;
    let size = object(spec, &space)?;
    let what = "core: allocate, NodeIPPool of 2^20 offsets";
    Ok(vec![
        Figure::new(
            format!("{what}, every second held"),
            scattered,
            "us",
            Target::AtMost(20.0),
        ),
        Figure::new(
            format!("{what}, the first half held"),
            behind,
            "us",
            Target::AtMost(20.0),
        ),
        Figure::new(
            "NodeIPPool of 2^20 offsets, half full: the object",
            size,
            "KB",
            Target::AtMost(300.0),
        ),
    ])
}

fn owner(n: u32) -> Record {
    Record::new(
        Owner::new(format!("node-{n}/static-ip"), "address-from-traffic-1"),
        Handle::new(format!("node-{n}/static-ip")),
    )
}

fn claim(n: u32, space: &Arc<Space>) -> Request {
    Request::Allocate(Allocate {
        record: owner(n),
        wants: vec![AddressRequest::any(Arc::clone(space))],
    })
}

fn release(n: u32) -> Request {
    let selector = Selector::Handle {
        handle: owner(n).handle,
        part: None,
    };
    Request::Release(Release {
        selector,
        cooldown: Duration::ZERO,
    })
}

/// The median time of one allocation in a pool that holds these, in microseconds.
fn allocate(space: &Arc<Space>, held: impl Fn(u32) -> bool) -> anyhow::Result<f64> {
    let mut pool = Pool::new();
    // First fit: the n-th claim gets the n-th offset.
    for n in 0..OFFSETS {
        plan(&mut pool, &[claim(n, space)], Moment(0));
    }
    for n in (0..OFFSETS).filter(|n| !held(*n)) {
        plan(&mut pool, &[release(n)], Moment(0));
    }
    ensure!(
        pool.len() == OFFSETS as usize / 2,
        "{} are held",
        pool.len()
    );
    let mut times = Vec::with_capacity(ROUNDS as usize);
    for n in 0..ROUNDS {
        let request = claim(OFFSETS + n, space);
        let started = Instant::now();
        let outcome = plan(&mut pool, std::slice::from_ref(&request), Moment(0));
        times.push(started.elapsed());
        if !matches!(outcome.answers.as_slice(), [Answer::Granted(_)]) {
            bail!("no address: {:?}", outcome.answers);
        }
        plan(&mut pool, &[release(OFFSETS + n)], Moment(0));
    }
    times.sort_unstable();
    let median = times.get(times.len() / 2).copied().unwrap_or_default();
    Ok(median.as_secs_f64() * 1e6)
}

/// The size of the object as it is stored, in KB.
fn object(spec: NodeIPPoolSpec, space: &PoolSpace) -> anyhow::Result<f64> {
    let held: BTreeSet<u64> = (0..u64::from(OFFSETS)).step_by(2).collect();
    let describe = |offset: u64| {
        Some(Described {
            offset,
            address: space.address(Offset(offset.into()))?,
            node: format!("worker-{offset:07}.region-1.example.org"),
            policy: "static-ip".to_owned(),
            capture: "address-from-traffic-1".to_owned(),
        })
    };
    let described: Vec<Described> = held.iter().copied().filter_map(describe).collect();
    let mut status = NodeIPPoolStatus::default();
    encode(&mut status, space, &held, &described);
    ensure!(status.allocated_bitmap.is_some(), "there is no bitmap");
    let mut pool = NodeIPPool::new("traffic-1", spec);
    pool.status = Some(status);
    Ok(serde_json::to_vec(&pool)?.len() as f64 / 1000.0)
}
