//! One ADD from a node's own slice, the whole process: against whereabouts, and where the other nodes of the network
//! hold thousands of addresses against a network without any.

use std::time::Duration;

use anyhow::{Context, Result};
use berth_api::berth::{SliceClaim, SliceClaimSpec};
use berth_api::names;
use berth_api::whereabouts::{IPAllocation, IPPool, IPPoolSpec};
use berth_core::{Address, Prefix};
use berth_ledger::SharedLedger;
use futures::{StreamExt, TryStreamExt};
use kube::Api;
use kube::api::PostParams;
use serde_json::json;

use super::bed::{Bed, Home, borne_out};
use super::median;
use super::plugin::{Plugin, container};
use crate::figure::{Figure, Target, progress};

const OVERLAP: &str = "enable_overlapping_ranges";
/// What a slice of a range of this size has.
const SLICE: usize = 64;
const SLICE_LENGTH: u8 = 26;
const FULL: &str = "10.64.0.0/12";
const EMPTY: &str = "10.80.0.0/12";
/// Requests at a time while other nodes' objects are made.
const HANDS: usize = 32;

pub async fn add(bed: &Bed, rounds: usize, live: usize) -> Result<Vec<Figure>> {
    let rules = json!([
        {"apiGroups": ["berth.dev"], "resources": ["*"], "verbs": ["*"]},
        {"apiGroups": [""], "resources": ["nodes", "pods"], "verbs": ["get", "list", "watch"]},
    ]);
    let (ours, theirs) = (bed.home_with(&rules).await?, bed.home().await?);
    let node = bed.node("node-0").await?;
    let sliced = |network: &str, range: &str| {
        bed.berth_in(&node, &ours)
            .with("fast_ipam", true)
            .with(OVERLAP, false)
            .with("network_name", network)
            .with("range", range)
    };
    let (us, them) = in_turns(
        "ADD, slice, and whereabouts",
        (&sliced("small", super::bed::RANGE), Some(node.ledger()?)),
        (
            &bed.whereabouts(&theirs)?.with(OVERLAP, false),
            Some(theirs.ledger.clone()),
        ),
        rounds,
    )
    .await?;
    let (us, them) = (median(&us), median(&them));

    let held = fill(bed, &ours, "full", live).await?;
    let (of_full, of_empty) = in_turns(
        "ADD, slice, full and empty network",
        (&sliced("full", FULL), Some(node.ledger()?)),
        (&sliced("empty", EMPTY), Some(node.ledger()?)),
        rounds,
    )
    .await?;
    let (of_full, of_empty) = (median(&of_full), median(&of_empty));
    Ok(vec![
        Figure::new(
            format!("ADD from the node's slice: berth {us:.2} ms, whereabouts {them:.1} ms"),
            them / us,
            "x faster",
            Target::AtLeast(40.0),
        ),
        Figure::new(
            format!(
                "ADD from the node's slice, {held} addresses live: {of_full:.2} ms, none {of_empty:.2} ms"
            ),
            of_full / of_empty,
            "x",
            Target::AtMost(1.5),
        ),
    ])
}

type Peer<'a> = (&'a Plugin, Option<SharedLedger>);

/// Both give one address and take it back, each first in turn; the times of giving. The first round, in which an agent
/// connects and claims its slice, is not counted.
async fn in_turns(
    what: &str,
    one: Peer<'_>,
    other: Peer<'_>,
    rounds: usize,
) -> Result<(Vec<Duration>, Vec<Duration>)> {
    let mut times = [Vec::new(), Vec::new()];
    let bar = progress(what, rounds as u64);
    for round in 0..=rounds {
        let pod = format!("workload-{round:05}");
        let mut order = [(0, &one), (1, &other)];
        if round % 2 == 1 {
            order.reverse();
        }
        for (at, (plugin, ledger)) in order {
            let added = tokio::task::block_in_place(|| plugin.add(&pod))?;
            if let Some(ledger) = ledger {
                borne_out(ledger, plugin, &pod, &added).await?;
            }
            tokio::task::block_in_place(|| plugin.del(&pod))?;
            if round > 0 {
                times[at].push(added.took);
            }
        }
        bar.inc(u64::from(round > 0));
    }
    bar.finish_and_clear();
    let [one, other] = times;
    Ok((one, other))
}

/// The claims and published pools of other nodes whose slices are full: so many addresses, at least.
async fn fill(bed: &Bed, home: &Home, network: &str, live: usize) -> Result<usize> {
    let client = bed.cluster.client().await?;
    let namespace = &home.account.namespace;
    let claims: Api<SliceClaim> = Api::namespaced(client.clone(), namespace);
    let pools: Api<IPPool> = Api::namespaced(client, namespace);
    let whole: Prefix = FULL.parse().context("a range")?;
    let slices = live.div_ceil(SLICE);
    let bar = progress("other nodes' addresses are made", slices as u64);
    futures::stream::iter(0..slices)
        .map(|n| {
            let (claims, pools, bar) = (claims.clone(), pools.clone(), bar.clone());
            async move {
                let first = whole.network().plus((n * SLICE) as u128);
                let first: Address = first.context("the range is too small")?;
                let slice = Prefix::containing(first, SLICE_LENGTH).context("a slice")?;
                let node = format!("other-{n:05}");
                let spec = SliceClaimSpec {
                    network: network.to_owned(),
                    range: slice.to_string(),
                    node: node.clone(),
                    node_uid: String::new(),
                    epoch: 1,
                    offers: Vec::new(),
                    wants: Vec::new(),
                };
                let mut claim = SliceClaim::new(&names::slice(network, slice), spec);
                let labels = [
                    ("berth.dev/node", node.clone()),
                    ("berth.dev/range", names::pool(network, "", whole)),
                ];
                let labels = labels.map(|(key, value)| (key.to_owned(), value));
                claim.metadata.labels = Some(labels.into());
                claims.create(&PostParams::default(), &claim).await?;
                let entry = |offset: usize| {
                    let pod = format!("replica-{n:05}-{offset:02}");
                    let entry = IPAllocation {
                        id: container(&pod),
                        podref: format!("default/{pod}"),
                        ifname: "net1".to_owned(),
                    };
                    (offset.to_string(), entry)
                };
                let spec = IPPoolSpec {
                    range: slice.to_string(),
                    allocations: (0..SLICE).map(entry).collect(),
                };
                let mut pool = IPPool::new(&names::pool(network, &node, slice), spec);
                let mark = ("berth.dev/published-by".to_owned(), node);
                pool.metadata.annotations = Some([mark].into());
                pools.create(&PostParams::default(), &pool).await?;
                bar.inc(1);
                anyhow::Ok(())
            }
        })
        .buffer_unordered(HANDS)
        .try_collect::<()>()
        .await?;
    bar.finish_and_clear();
    Ok(slices * SLICE)
}
