//! One ADD from a node's own slice, the whole process: compared with whereabouts, and with and without thousands of
//! addresses held by other nodes of the network.

use std::time::Duration;

use anyhow::{Context, Result};
use berth_api::claim::{self, SliceClaim, SliceClaimSpec};
use berth_api::names;
use berth_api::whereabouts::{IPAllocation, IPPool, IPPoolSpec};
use berth_core::{Address, Prefix};
use kube::Api;
use kube::api::PostParams;
use serde_json::json;

use super::median;
use super::one::{Manner, Turn, in_turns};
use super::plugin::container;
use super::testbed::{Home, Testbed};
use crate::figure::{Figure, Target};
use crate::parallel;

const OVERLAP: &str = "enable_overlapping_ranges";
/// Addresses of a slice of such a range.
const SLICE: usize = 64;
const SLICE_LENGTH: u8 = 26;
const FULL: &str = "10.64.0.0/12";
const EMPTY: &str = "10.80.0.0/12";
/// Requests at a time while other nodes' objects are made.
const HANDS: usize = 32;

pub async fn add(testbed: &Testbed, rounds: usize, live: usize) -> Result<Vec<Figure>> {
    let rules = json!([
        {"apiGroups": ["berth.dev"], "resources": ["*"], "verbs": ["*"]},
        {"apiGroups": [""], "resources": ["nodes", "pods"], "verbs": ["get", "list", "watch"]},
    ]);
    let (ours, theirs) = (testbed.home_with(&rules).await?, testbed.home().await?);
    let name = "node-0";
    // Slices are claimed only under the name of a Node.
    let object = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": name } });
    testbed.cluster.apply_object(object).await?;
    let node = testbed.node(name).await?;
    let sliced = |network: &str, range: &str| {
        testbed
            .berth_in(&node, &ours)
            .with("fast_ipam", true)
            .with(OVERLAP, false)
            .with("network_name", network)
            .with("range", range)
    };
    let manner = Manner {
        rounds,
        held: None,
        // Without a pause, like a node that starts pods: idle cores alone would change both times.
        pause: Duration::ZERO,
    };
    let turns = [
        Turn {
            plugin: sliced("small", super::testbed::RANGE),
            ledger: Some(node.ledger()?),
        },
        Turn {
            plugin: testbed.whereabouts(&theirs)?.with(OVERLAP, false),
            ledger: Some(theirs.ledger.clone()),
        },
    ];
    let times = in_turns("ADD, slice, and whereabouts", &turns, manner).await?;
    let (us, them) = (median(&times[0]), median(&times[1]));

    let ledger = node.ledger()?;
    let held = fill(testbed, &ours, "full", live).await?;
    let turns = [("full", FULL), ("empty", EMPTY)].map(|(network, range)| Turn {
        plugin: sliced(network, range),
        ledger: Some(ledger.clone()),
    });
    let times = in_turns("ADD, slice, full and empty network", &turns, manner).await?;
    let (of_full, of_empty) = (median(&times[0]), median(&times[1]));
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

/// Claims and published pools of other nodes whose slices are full: at least so many addresses.
async fn fill(testbed: &Testbed, home: &Home, network: &str, live: usize) -> Result<usize> {
    let client = testbed.cluster.client().await?;
    let namespace = &home.account.namespace;
    let claims: Api<SliceClaim> = Api::namespaced(client.clone(), &claim::namespace(namespace));
    let pools: Api<IPPool> = Api::namespaced(client, namespace);
    let whole: Prefix = FULL.parse().context("a range")?;
    let slices = live.div_ceil(SLICE);
    let what = "other nodes' addresses are made";
    parallel::each(what, slices, HANDS, async |n| {
        let first = whole.network().plus((n * SLICE) as u128);
        let first: Address = first.context("the range is too small")?;
        let slice = Prefix::containing(first, SLICE_LENGTH).context("a slice")?;
        let node = format!("other-{n:05}");
        let spec = SliceClaimSpec {
            network: network.to_owned(),
            range: slice.to_string(),
            node: node.clone(),
            epoch: 1,
            ..SliceClaimSpec::default()
        };
        let mut claim = SliceClaim::new(&names::slice(network, slice), spec);
        let labels = [
            ("berth.dev/node", node.clone()),
            ("berth.dev/range", names::pool(network, "", whole)),
            ("berth.dev/network", network.to_owned()),
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
        Ok(())
    })
    .await?;
    Ok(slices * SLICE)
}
