//! One call at a time: VERSION, and ADD on an empty pool.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use berth_ledger::SharedRecordLedger;

use super::median;
use super::plugin::{Plugin, spawn};
use super::testbed::{Testbed, borne_out, recorded};
use crate::figure::{Figure, Target, progress};

pub async fn version(testbed: &Testbed, rounds: usize) -> Result<Vec<Figure>> {
    // A VERSION costs a tenth of anything else here, and is compared with the smallest possible process.
    let rounds = rounds * 10;
    let node = testbed.node("node-0").await?;
    let home = testbed.home().await?;
    let dir = tempfile::tempdir()?;
    let plugins = [
        testbed.berth(&node),
        testbed.host_local(dir.path()),
        testbed.whereabouts(&home)?,
    ];
    let mut empty = Vec::new();
    let mut times = [const { Vec::new() }; 3];
    let bar = progress("VERSION", rounds as u64);
    for _ in 0..rounds {
        empty.push(spawn(Path::new("/bin/true"))?);
        for (plugin, times) in plugins.iter().zip(&mut times) {
            times.push(plugin.version()?);
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    let empty = median(&empty);
    let [ours, host_local, whereabouts] = times.map(|times| median(&times));
    let figure = |what: String, ratio, target| Figure::new(what, ratio, "x", target);
    Ok(vec![
        figure(
            format!("VERSION: berth {ours:.2} ms, /bin/true {empty:.2} ms"),
            ours / empty,
            Target::AtMost(1.3),
        ),
        figure(
            format!("VERSION: host-local {host_local:.2} ms, of berth's"),
            host_local / ours,
            Target::None,
        ),
        figure(
            format!("VERSION: whereabouts {whereabouts:.2} ms, of berth's"),
            whereabouts / ours,
            Target::None,
        ),
    ])
}

/// A plugin, and the ledger in which its answers are recorded.
pub struct Turn {
    pub plugin: Plugin,
    /// `None`: its store is private, and only its answers are checked.
    pub ledger: Option<SharedRecordLedger>,
}

pub async fn add(testbed: &Testbed, rounds: usize) -> Result<Vec<Figure>> {
    let node = testbed.node("node-0").await?;
    let dir = tempfile::tempdir()?;
    let homes = [
        testbed.home().await?,
        testbed.home().await?,
        testbed.home().await?,
        testbed.home().await?,
    ];
    let [ours_on, ours_off, theirs_on, theirs_off] = &homes;
    const OVERLAP: &str = "enable_overlapping_ranges";
    let turns = [
        Turn {
            plugin: testbed.berth(&node),
            ledger: Some(node.ledger()?),
        },
        Turn {
            plugin: testbed.host_local(dir.path()),
            ledger: None,
        },
        Turn {
            plugin: testbed.berth_in(&node, ours_on),
            ledger: Some(ours_on.ledger.clone()),
        },
        Turn {
            plugin: testbed.berth_in(&node, ours_off).with(OVERLAP, false),
            ledger: Some(ours_off.ledger.clone()),
        },
        Turn {
            plugin: testbed.whereabouts(theirs_on)?,
            ledger: Some(theirs_on.ledger.clone()),
        },
        Turn {
            plugin: testbed.whereabouts(theirs_off)?.with(OVERLAP, false),
            ledger: Some(theirs_off.ledger.clone()),
        },
    ];
    let manner = Manner {
        rounds,
        held: Some(0),
        pause: Duration::ZERO,
    };
    let times = in_turns("ADD, empty pool", &turns, manner).await?;
    let [sqlite, host_local, on, off, their_on, their_off] = times.as_slice() else {
        bail!("six plugins took turns, {} were timed", times.len());
    };
    let faster = |what: &str, ours: &[Duration], them: &[Duration], name: &str, least| {
        let (ours, theirs) = (median(ours), median(them));
        Figure::new(
            format!("{what}: berth {ours:.2} ms, {name} {theirs:.2} ms"),
            theirs / ours,
            "x faster",
            Target::AtLeast(least),
        )
    };
    Ok(vec![
        faster(
            "ADD, SQLite, durable",
            sqlite,
            host_local,
            "host-local",
            1.0,
        ),
        faster(
            "ADD, API server, overlap checks",
            on,
            their_on,
            "whereabouts",
            8.0,
        ),
        faster(
            "ADD, API server, without",
            off,
            their_off,
            "whereabouts",
            12.0,
        ),
    ])
}

/// How plugins alternate.
#[derive(Clone, Copy, Debug)]
pub struct Manner {
    pub rounds: usize,
    /// What each pool holds besides, if it is the same in all.
    pub held: Option<usize>,
    /// A pause before each call: work that the previous one left to the API server is not charged to this one.
    pub pause: Duration,
}

/// Each plugin allocates one address and releases it, alternating, every other round in reverse; the times of the ADDs.
pub async fn in_turns(what: &str, turns: &[Turn], manner: Manner) -> Result<Vec<Vec<Duration>>> {
    let Manner {
        rounds,
        held,
        pause,
    } = manner;
    let mut times = vec![Vec::new(); turns.len()];
    let bar = progress(what, rounds as u64);
    // One extra round: the first connects, loads and fills caches, once in an agent's life.
    for round in 0..=rounds {
        let pod = format!("workload-{round:05}");
        let mut order: Vec<(&Turn, &mut Vec<Duration>)> = turns.iter().zip(&mut times).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for (turn, times) in order {
            let plugin = &turn.plugin;
            tokio::time::sleep(pause).await;
            let added = tokio::task::block_in_place(|| plugin.add(&pod))?;
            if let Some(ledger) = &turn.ledger {
                borne_out(ledger, plugin, &pod, &added).await?;
            }
            tokio::task::block_in_place(|| plugin.del(&pod))?;
            if round > 0 {
                times.push(added.took);
            }
        }
        bar.inc(u64::from(round > 0));
    }
    bar.finish_and_clear();
    for turn in turns {
        let Some(ledger) = &turn.ledger else { continue };
        let left = recorded(ledger).await.context("read what is left")?.len();
        if held.is_some_and(|held| left != held) {
            bail!(
                "{}: {left} records are left, held were {held:?}",
                turn.plugin.name
            );
        }
    }
    Ok(times)
}
