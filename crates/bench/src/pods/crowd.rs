//! Many at once: the pods of one node, and independent nodes.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use berth_core::Address;
use indicatif::ProgressBar;

use super::plugin::Plugin;
use super::quantile;
use super::testbed::{Testbed, check};
use crate::figure::{Figure, Target, progress};

/// The results of many callers.
#[derive(Debug, Default)]
pub struct Run {
    pub allocated: Vec<(String, Address)>,
    /// The time of every call, of failed ones too.
    pub times: Vec<Duration>,
    failures: Vec<String>,
    pub elapsed: Duration,
}

impl Run {
    pub fn rate(&self) -> f64 {
        (self.times.len() - self.failures.len()) as f64 / self.elapsed.as_secs_f64()
    }

    pub fn add(&mut self, other: Run) {
        self.allocated.extend(other.allocated);
        self.times.extend(other.times);
        self.failures.extend(other.failures);
        self.elapsed += other.elapsed;
    }
}

/// Each caller adds its pods one after the other, all callers at once.
pub fn at_once(callers: Vec<(Plugin, Vec<String>)>, bar: &ProgressBar) -> Result<Run> {
    let start = Barrier::new(callers.len() + 1);
    std::thread::scope(|scope| {
        let threads: Vec<_> = callers
            .iter()
            .map(|(plugin, pods)| {
                let start = &start;
                scope.spawn(move || {
                    start.wait();
                    let mut run = Run::default();
                    for pod in pods {
                        let started = Instant::now();
                        let added = plugin.add(pod);
                        run.times.push(started.elapsed());
                        match added {
                            Ok(added) => run.allocated.push((pod.clone(), added.address)),
                            Err(error) => {
                                run.failures.push(format!("{error:#}"));
                                // A runtime does that; the call must leave nothing behind.
                                let _ = plugin.del(pod);
                            }
                        }
                        bar.inc(1);
                    }
                    run
                })
            })
            .collect();
        start.wait();
        let started = Instant::now();
        let mut all = Run::default();
        for thread in threads {
            let run = thread.join().ok().context("a caller's thread panicked")?;
            all.add(run);
        }
        all.elapsed = started.elapsed();
        Ok(all)
    })
}

pub async fn pods(testbed: &Testbed, pods: usize, crowds: usize) -> Result<Vec<Figure>> {
    let (ours, theirs) = (testbed.home().await?, testbed.home().await?);
    let node = testbed.node("node-0").await?;
    let plugins = [
        testbed.berth_in(&node, &ours),
        testbed.whereabouts(&theirs)?,
    ];
    for plugin in &plugins {
        // An agent connects and loads once in its life; that is not measured.
        tokio::task::block_in_place(|| plugin.add("first").and_then(|_| plugin.del("first")))?;
    }
    let mut runs = [Run::default(), Run::default()];
    let bar = progress("pods at once on one node", (2 * pods * crowds) as u64);
    for crowd in 0..crowds {
        for (plugin, run) in plugins.iter().zip(&mut runs) {
            let callers = (0..pods)
                .map(|pod| {
                    (
                        plugin.clone(),
                        vec![format!("workload-{crowd:02}-{pod:03}")],
                    )
                })
                .collect();
            run.add(tokio::task::block_in_place(|| at_once(callers, &bar))?);
        }
    }
    bar.finish_and_clear();
    let [us, them] = &runs;
    check(&ours.ledger, "berth", &us.allocated).await?;
    check(&theirs.ledger, "whereabouts", &them.allocated).await?;
    let (rate, their_rate) = (us.rate(), them.rate());
    let mut figures = vec![Figure::new(
        format!(
            "{pods} pods at once on one node: berth {rate:.0}/s, whereabouts {their_rate:.1}/s"
        ),
        rate / their_rate,
        "x the rate",
        Target::AtLeast(10.0),
    )];
    figures.extend(failures(us, them));
    Ok(figures)
}

pub async fn nodes(testbed: &Testbed, nodes: usize, each: usize) -> Result<Vec<Figure>> {
    let (ours, theirs) = (testbed.home().await?, testbed.home().await?);
    let total = (nodes * each) as u64;
    let mine = |node: usize| -> Vec<String> {
        (0..each)
            .map(|pod| format!("workload-{node:02}-{pod:03}"))
            .collect()
    };
    let mut agents = Vec::new();
    for node in 0..nodes {
        agents.push(testbed.node(&format!("node-{node}")).await?);
    }
    let callers = agents
        .iter()
        .enumerate()
        .map(|(at, agent)| (testbed.berth_in(agent, &ours), mine(at)))
        .collect();
    let bar = progress("nodes at once, berth", total);
    let us = tokio::task::block_in_place(|| at_once(callers, &bar))?;
    bar.finish_and_clear();
    drop(agents);

    let plugin = testbed.whereabouts(&theirs)?;
    let callers = (0..nodes)
        .map(|node| {
            let plugin = plugin.clone().within("NODENAME", format!("node-{node}"));
            (plugin, mine(node))
        })
        .collect();
    let bar = progress("nodes at once, whereabouts", total);
    let them = tokio::task::block_in_place(|| at_once(callers, &bar))?;
    bar.finish_and_clear();

    check(&ours.ledger, "berth", &us.allocated).await?;
    check(&theirs.ledger, "whereabouts", &them.allocated).await?;
    let (rate, their_rate) = (us.rate(), them.rate());
    let (p99, their_p99) = (quantile(&us.times, 0.99), quantile(&them.times, 0.99));
    let mut figures = vec![
        Figure::new(
            format!(
                "{nodes} nodes x {each} ADDs: berth {rate:.1}/s, whereabouts {their_rate:.1}/s"
            ),
            rate / their_rate,
            "x the rate",
            Target::AtLeast(2.0),
        ),
        Figure::new(
            format!("the same, p99; whereabouts' is {:.1} s", their_p99 / 1e3),
            p99 / 1e3,
            "s",
            Target::AtMost(their_p99 / 1e3),
        ),
    ];
    figures.extend(failures(&us, &them));
    Ok(figures)
}

/// Refused calls: none of Berth's may be.
pub fn failures(us: &Run, them: &Run) -> Vec<Figure> {
    let what = |run: &Run| {
        run.failures
            .first()
            .map_or(String::new(), |first| format!(": {first}"))
    };
    let mut figures = vec![Figure::new(
        format!("the same, berth's failed ADDs{}", what(us)),
        us.failures.len() as f64,
        "",
        Target::AtMost(0.0),
    )];
    if !them.failures.is_empty() {
        figures.push(Figure::new(
            format!("the same, whereabouts' failed ADDs{}", what(them)),
            them.failures.len() as f64,
            "",
            Target::None,
        ));
    }
    figures
}
