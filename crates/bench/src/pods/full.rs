//! One ADD when the pool already holds thousands.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use berth_api::whereabouts::{IPAllocation, IPPool, IPPoolSpec};
use kube::Api;
use kube::api::PostParams;

use super::memory::fill;
use super::one::{Manner, Turn, in_turns};
use super::testbed::{Home, RANGE, Testbed};
use super::{median, plugin::container};
use crate::figure::{Figure, Target};

/// Writes of an object of this size take a second.
const FEW: usize = 9;
/// How long the API server is busy after one: it reads the object twice more for its watchers, and collects garbage.
const SETTLED: Duration = Duration::from_secs(1);

pub async fn full(testbed: &Testbed, held: usize, rounds: usize) -> Result<Vec<Figure>> {
    let (empty, full) = (testbed.node("empty").await?, testbed.node("full").await?);
    fill(&full, &testbed.berth(&full), held)?;
    let turns = [
        Turn {
            plugin: testbed.berth(&empty),
            ledger: Some(empty.ledger()?),
        },
        Turn {
            plugin: testbed.berth(&full),
            ledger: Some(full.ledger()?),
        },
    ];
    // The two end with different counts, so the other figures are not compared here.
    let manner = Manner {
        rounds,
        held: None,
        pause: Duration::ZERO,
    };
    let times = in_turns("ADD, SQLite, empty and full pool", &turns, manner).await?;
    let [of_empty, of_full] = times.as_slice() else {
        bail!("two plugins took turns, {} were timed", times.len());
    };
    let (of_empty, of_full) = (median(of_empty), median(of_full));

    let (ours, theirs) = (testbed.home().await?, testbed.home().await?);
    write(testbed, &ours, held).await?;
    write(testbed, &theirs, held).await?;
    let turns = [
        Turn {
            plugin: testbed.berth_in(&empty, &ours),
            ledger: Some(ours.ledger.clone()),
        },
        Turn {
            plugin: testbed.whereabouts(&theirs)?,
            ledger: Some(theirs.ledger.clone()),
        },
    ];
    let what = "ADD, API server, full pool";
    let manner = Manner {
        rounds: rounds.min(FEW),
        held: Some(held),
        pause: SETTLED,
    };
    let times = in_turns(what, &turns, manner).await?;
    let [us, them] = times.as_slice() else {
        bail!("two plugins took turns, {} were timed", times.len());
    };
    let (us, them) = (median(us), median(them));
    Ok(vec![
        Figure::new(
            format!("ADD, SQLite, {held} held: {of_full:.2} ms, empty {of_empty:.2} ms"),
            of_full / of_empty,
            "x",
            Target::AtMost(1.5),
        ),
        Figure::new(
            format!("ADD, API server, {held} held: berth {us:.0} ms, whereabouts {them:.0} ms"),
            them / us,
            "x faster",
            Target::AtLeast(2.0),
        ),
    ])
}

/// An IPPool object that holds so many, written at once.
async fn write(testbed: &Testbed, home: &Home, held: usize) -> Result<()> {
    let allocations: BTreeMap<String, IPAllocation> = (1..=held)
        .map(|offset| {
            let pod = format!("replica-{offset:05}");
            let entry = IPAllocation {
                id: container(&pod),
                podref: format!("default/{pod}"),
                ifname: "net1".to_owned(),
            };
            (offset.to_string(), entry)
        })
        .collect();
    let spec = IPPoolSpec {
        range: RANGE.to_owned(),
        allocations,
    };
    let mut pool = IPPool::new(&RANGE.replace('/', "-"), spec);
    // Without them an object of this size fits into etcd; a pool that grew entry by entry had them dropped too.
    pool.metadata.managed_fields = Some(vec![Default::default()]);
    let api: Api<IPPool> =
        Api::namespaced(testbed.cluster.client().await?, &home.account.namespace);
    api.create(&PostParams::default(), &pool)
        .await
        .with_context(|| format!("write a pool of {held}"))?;
    Ok(())
}
