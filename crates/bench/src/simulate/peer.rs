//! whereabouts for comparison: fewer nodes, the same networks, the same API server, a process per call.

use std::sync::Barrier;
use std::time::Instant;

use anyhow::{Context, Result};

use super::node::Network;
use crate::figure::{Figure, Target, progress};
use crate::pods::testbed::{Testbed, check};

pub async fn run(
    testbed: &Testbed,
    nodes: usize,
    networks: &[Network],
    rate: f64,
) -> Result<Vec<Figure>> {
    let home = testbed.home().await?;
    let plugin = testbed
        .whereabouts(&home)?
        .with("enable_overlapping_ranges", false);
    let bar = progress("the same by whereabouts", (nodes * networks.len()) as u64);
    let start = Barrier::new(nodes + 1);
    let work = |node: usize| -> Result<Vec<_>> {
        start.wait();
        let mut allocated = Vec::new();
        for network in networks {
            let pod = format!("theirs-{node:04}-{}", network.name);
            let plugin = plugin.clone().with("range", network.range.as_str());
            let plugin = plugin.with("network_name", network.name.as_str());
            let added = plugin
                .within("NODENAME", format!("theirs-{node:04}"))
                .add(&pod)?;
            allocated.push((pod, added.address));
            bar.inc(1);
        }
        Ok(allocated)
    };
    let (allocated, elapsed) = tokio::task::block_in_place(|| {
        std::thread::scope(|scope| {
            let work = &work;
            let threads: Vec<_> = (0..nodes)
                .map(|node| scope.spawn(move || work(node)))
                .collect();
            start.wait();
            let started = Instant::now();
            let mut allocated = Vec::new();
            for thread in threads {
                allocated.extend(thread.join().ok().context("a caller's thread panicked")??);
            }
            anyhow::Ok((allocated, started.elapsed().as_secs_f64()))
        })
    })?;
    bar.finish_and_clear();
    check(&home.ledger, "whereabouts", &allocated).await?;
    let theirs = allocated.len() as f64 / elapsed;
    Ok(vec![
        Figure::new(
            format!("whereabouts, {nodes} nodes x {} networks", networks.len()),
            theirs,
            "/s",
            Target::None,
        ),
        Figure::new("berth's rate of it", rate / theirs, "x", Target::None),
    ])
}
