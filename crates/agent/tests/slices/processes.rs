//! A node whose agent is down, or about to start: each call is a process of its own, and all of them share one file.

use crate::allocated::Given;
use crate::cni_call::fast_cut;
use crate::test_node::{Machine, Site};

/// Pods that start at once, more than fit into one slice.
const PODS: usize = 12;

#[tokio::test(flavor = "multi_thread")]
async fn calls_without_an_agent_get_addresses_at_once_and_while_one_starts() {
    let site = Site::shared().await;
    let mut machine = Machine::start(&site, "processes").await;
    machine.stop().await;
    let ipam = fast_cut("10.45.0.0/24", "/29");
    let mut given = Given::default();
    for round in 0..2 {
        let calls = (0..PODS).map(|n| {
            let pod = format!("p{round}-{n}");
            (pod.clone(), tokio::spawn(machine.add_alone(&pod, &ipam)))
        });
        let calls: Vec<_> = calls.collect();
        if round == 1 {
            machine.run().await;
        }
        for (pod, call) in calls {
            match call.await.unwrap() {
                Ok(ips) => given.note(&ips, &pod),
                // It came after the agent, which owns the file from its start on, and asks again.
                Err((code, why)) => {
                    assert!(round == 1 && code == 11, "{why}");
                    assert!(why.contains("berth agent"), "{why}");
                    given.note(&[machine.add(&pod, &ipam).await], &pod);
                }
            }
        }
    }
    let last = machine.add("last", &ipam).await;
    given.note(&[last], "last");
    assert_eq!(given.all().len(), 2 * PODS + 1);
    machine.stop().await;
}
