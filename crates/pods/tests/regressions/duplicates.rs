//! One address, two pods.

use std::collections::BTreeSet;
use std::sync::Arc;

use berth_ledger::{MemoryLedger, PoolKey, SharedRecordLedger, SqliteLedger};
use futures::future::join_all;
use serde_json::json;

use crate::bench::{Bench, addresses, bare, error};
use crate::crowd::Together;

/// Two ranges within one CIDR gave the same address twice.
#[tokio::test]
async fn whereabouts_722_two_ranges_in_one_cidr() {
    let bench = Bench::new();
    let ipam = json!({"ipRanges": [
        {"range": "10.0.0.0/24", "range_start": "10.0.0.10", "range_end": "10.0.0.20"},
        {"range": "10.0.0.0/24", "range_start": "10.0.0.15", "range_end": "10.0.0.25"}]});
    let given = addresses(&bench.add("a", ipam.clone()).await);
    assert_eq!(given, ["10.0.0.10/24", "10.0.0.15/24"]);
    assert_eq!(addresses(&bench.add("a", ipam.clone()).await), given);
    bench.del("a", ipam).await;
    assert_eq!(bench.held_and_reserved().await, (0, 0));
}

/// Nodes read the pool before any of them had written it, and each wrote its own idea of it: #97 with two of them, #110
/// with five hundred pods on a hundred. Here a claim holds only where the address is free at the write.
#[tokio::test(flavor = "multi_thread")]
async fn whereabouts_97_110_nodes_that_read_before_any_has_written() {
    const NODES: usize = 32;
    let truth: SharedRecordLedger = Arc::new(MemoryLedger::new());
    let together: SharedRecordLedger = Arc::new(Together::over(truth, NODES));
    let ipam = json!({"range": "10.0.0.0/24", "enable_overlapping_ranges": false});
    let nodes: Vec<Bench> = (0..NODES)
        .map(|_| Bench::agent(SharedRecordLedger::clone(&together), "this-boot"))
        .collect();
    let adds = nodes.iter().enumerate().map(|(n, node)| {
        let ipam = ipam.clone();
        async move { node.add(&format!("p{n}"), ipam).await }
    });
    let given: BTreeSet<String> = join_all(adds).await.iter().map(bare).collect();
    assert_eq!(given.len(), NODES, "{given:?}");
    assert_eq!(nodes[0].held_and_reserved().await, (NODES, 0));
}

/// Many at once, overlapping ranges: no address twice, none lost.
#[tokio::test(flavor = "multi_thread")]
async fn whereabouts_97_110_no_duplicates_when_ranges_overlap() {
    let bench = Bench::new();
    let ranges = ["10.0.0.0/24", "10.0.0.0/25", "10.0.0.0/26", "10.0.0.0/23"];
    let ipam = |n: usize| json!({"range": ranges[n % 4], "range_end": "10.0.0.62"});
    let adds = (0..60).map(|n| {
        let (bench, ipam) = (&bench, ipam(n));
        async move { (n, bench.add(&format!("p{n}"), ipam).await) }
    });
    let mut given = BTreeSet::new();
    for (n, answer) in join_all(adds).await {
        let address = bare(&answer);
        assert!(
            given.insert(address.clone()),
            "p{n} got {address} a second time"
        );
    }
    assert_eq!(bench.held_and_reserved().await, (60, 60));
    let ends = (0..60).map(|n| {
        let (bench, ipam) = (&bench, ipam(n));
        async move { bench.del(&format!("p{n}"), ipam).await }
    });
    join_all(ends).await;
    assert_eq!(bench.held_and_reserved().await, (0, 0));
}

/// Containerd restarted: the DEL of the old container came after the ADD of the pod's next one, went by the pod's
/// name, and freed what a live container had.
#[tokio::test]
async fn azure_885_del_goes_by_container() {
    let bench = Bench::new();
    let ipam = json!({"range": "10.0.0.0/24"});
    addresses(&bench.call("ADD", "web-0", "old", ipam.clone()).await);
    addresses(&bench.call("ADD", "web-0", "new", ipam.clone()).await);
    assert_eq!(
        bench.call("DEL", "web-0", "old", ipam.clone()).await.exit,
        0
    );
    assert_eq!(bench.held_and_reserved().await, (1, 1));
    assert_eq!(addresses(&bench.add("other", ipam).await), ["10.0.0.2/24"]);
}

/// The daemon restarted, asked for the node's pods, was told of none because its cache was empty, and gave what they
/// had. Here what was given is in the file, and no list is asked.
#[tokio::test]
async fn aws_711_an_agent_that_begins_gives_nothing_that_pods_have() {
    let dir = tempfile::tempdir().unwrap();
    let open = || -> SharedRecordLedger {
        Arc::new(SqliteLedger::open(dir.path().join("berth.db")).unwrap())
    };
    let ipam = json!({"range": "10.0.0.0/24"});
    let mut given = BTreeSet::new();
    for n in 0..5 {
        let begun = Bench::over(open());
        let address = bare(&begun.add(&format!("p{n}"), ipam.clone()).await);
        assert!(
            given.insert(address),
            "p{n} got what another has: {given:?}"
        );
    }
    assert_eq!(Bench::over(open()).held_and_reserved().await, (5, 5));
}

/// A static address was given to whoever asked.
#[tokio::test]
async fn whereabouts_static_addresses_are_nobody_elses() {
    let bench = Bench::new();
    let fixed = json!({"addresses": [{"address": "10.0.0.5/24"}]});
    addresses(&bench.add("a", fixed.clone()).await);
    let refused = error(&bench.add("b", fixed).await);
    assert!(
        refused["msg"].as_str().unwrap().contains("ns/a"),
        "{refused}"
    );
    let pool = PoolKey::of_network("10.0.0.0-24", "10.0.0.0/24".parse().unwrap());
    assert_eq!(bench.ledger.load(&pool).await.unwrap().pool.len(), 1);
}
