//! Pods that got no address though one was free, or waited for it in vain.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use berth_ledger::{MemoryLedger, SharedRecordLedger};
use futures::future::join_all;
use serde_json::json;

use crate::bench::{Bench, addresses, bare, error};
use crate::crowd::{Slower, Together};
use crate::faulty::Faulty;

/// Twelve addresses for twelve pods of as many nodes, all at once: each write met another's, five tries were not
/// enough, and pods failed beside addresses that were free. Here who met another plans again until its time is up.
#[tokio::test(flavor = "multi_thread")]
async fn antrea_7996_nodes_that_meet_serve_to_the_last_address() {
    let truth: SharedRecordLedger = Arc::new(MemoryLedger::new());
    let together: SharedRecordLedger = Arc::new(Together::over(truth, 12));
    let ipam = json!({"range": "10.0.0.0/28", "exclude": ["10.0.0.13", "10.0.0.14"]});
    let nodes: Vec<Bench> = (0..12)
        .map(|_| {
            // After the first write, which meets all the others, many more that meet somebody.
            let slower = Slower::over(SharedRecordLedger::clone(&together), 7);
            Bench::agent(Arc::new(slower), "this-boot")
        })
        .collect();
    let adds = nodes.iter().enumerate().map(|(n, node)| {
        let ipam = ipam.clone();
        async move { node.add(&format!("p{n}"), ipam).await }
    });
    let given: BTreeSet<String> = join_all(adds).await.iter().map(bare).collect();
    assert_eq!(given.len(), 12, "{given:?}");
    assert_eq!(nodes[0].held_and_reserved().await, (12, 12));
}

/// A pool with exactly as many addresses as pods, pods being replaced all the time: every one must get its address,
/// because one is always free by then.
#[tokio::test(flavor = "multi_thread")]
async fn antrea_7996_a_tight_pool_serves_to_the_last_address() {
    let bench = Bench::new();
    let ipam = json!({"range": "10.0.0.0/28", "exclude": ["10.0.0.13", "10.0.0.14"]});
    for n in 0..12 {
        addresses(&bench.add(&format!("p{n}"), ipam.clone()).await);
    }
    for round in 0..5 {
        let swaps = (0..12).map(|n| {
            let (bench, ipam) = (&bench, ipam.clone());
            async move {
                let old = if round == 0 {
                    format!("p{n}")
                } else {
                    format!("p{n}-{}", round - 1)
                };
                bench.del(&old, ipam.clone()).await;
                addresses(&bench.add(&format!("p{n}-{round}"), ipam).await)
            }
        });
        let given: BTreeSet<String> = join_all(swaps).await.into_iter().flatten().collect();
        assert_eq!(given.len(), 12);
    }
    assert_eq!(bench.held_and_reserved().await, (12, 12));
}

/// DEL needed a daemon that waited for the place of the pod that was to leave. A plugin without an agent whose token
/// went with the agent's pod can free nothing, and does not keep the pod; an agent is told to come again. `berth` has
/// the whole course.
#[tokio::test]
async fn azure_cns_2138_a_del_that_nobody_can_serve_keeps_no_pod() {
    let faulty = Arc::new(Faulty::new());
    let ledger = || Arc::clone(&faulty) as SharedRecordLedger;
    let ipam = json!({"range": "10.0.0.0/24"});
    addresses(&Bench::once(ledger()).add("a", ipam.clone()).await);
    faulty.stranger.store(true, Ordering::SeqCst);
    error(&Bench::once(ledger()).add("b", ipam.clone()).await);
    Bench::once(ledger()).del("a", ipam.clone()).await;
    let agent = Bench::agent(ledger(), "this-boot");
    error(&agent.call("DEL", "a", "a-c", ipam.clone()).await);
    faulty.stranger.store(false, Ordering::SeqCst);
    // It is the pod's until the collector knows better, or another DEL comes (I4).
    assert_eq!(agent.held_and_reserved().await, (1, 1));
    agent.del("a", ipam).await;
    assert_eq!(agent.held_and_reserved().await, (0, 0));
}

/// An ADD in a wide range took a minute: the cost must follow what is held, not the size of the range.
#[tokio::test]
async fn spiderpool_3541_wide_ranges_cost_nothing() {
    let bench = Bench::new();
    for ipam in [
        json!({"range": "10.0.0.0/8", "exclude": ["10.0.0.0/9", "10.128.0.0/10"]}),
        json!({"range": "fd00::/16", "exclude": ["fd00::/17"]}),
        json!({"range": "::/0", "range_start": "2000::"}),
    ] {
        assert_eq!(addresses(&bench.add("a", ipam).await).len(), 1);
    }
}
