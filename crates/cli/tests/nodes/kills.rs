//! kill -9 of the built programs between each pair of their writes: of an agent that serves a policy, and of a leader that rebuilds a pool.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use berth_testkit::{Fate, FaultProxy, Process};
use serde_json::Value;

use crate::site::{OBJECTS, PATIENCE, Site, message, metric};

/// Lets so many writes of nmstate.io's objects pass; the answer to the next is lost on its way, and no further one arrives.
fn passes(relay: &FaultProxy, allowed: usize) -> Arc<AtomicUsize> {
    let writes = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&writes);
    relay.rule(move |asked| {
        if asked.method == "GET" || !asked.path.starts_with("/apis/nmstate.io/") {
            return Fate::Pass;
        }
        match counter.fetch_add(1, Ordering::SeqCst) {
            nth if nth < allowed => Fate::Pass,
            nth if nth == allowed => Fate::Lose,
            _ => Fate::Cut,
        }
    });
    writes
}

/// Waits until the write after the allowed ones was carried out, or there is none more to come.
async fn until_lost(writes: &AtomicUsize, allowed: usize, is_done: impl Fn() -> bool) {
    let begun = Instant::now();
    while writes.load(Ordering::SeqCst) <= allowed && !is_done() {
        assert!(begun.elapsed() < PATIENCE, "write {allowed} does not come");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn is_available(object: &Value) -> bool {
    let conditions = object
        .pointer("/status/conditions")
        .and_then(Value::as_array);
    let mut all = conditions.into_iter().flatten();
    all.any(|one| one["type"] == "Available" && one["status"] == "True")
}

/// Without the leader's desk: the pool's write is the agent's own.
#[tokio::test(flavor = "multi_thread")]
async fn an_agent_killed_between_each_pair_of_its_writes_ends_with_one_address() {
    agents_are_killed(7, false).await;
}

/// Its claim is in the pool by the leader's write; what the agent writes itself begins with the enactment.
#[tokio::test(flavor = "multi_thread")]
async fn an_agent_killed_after_the_leader_answered_its_claim_ends_with_one_address() {
    agents_are_killed(6, true).await;
}

async fn agents_are_killed(kills: usize, by_desk: bool) {
    let site = Site::new().await;
    let _leader = site.controller("one");
    // With the address of its desk.
    site.until("lease", "berth-controller", |lease| {
        lease["metadata"]["annotations"]
            .get("berth.dev/desk-address")
            .is_some()
    });
    site.cluster.apply(OBJECTS).await.unwrap();
    site.until("nip", "traffic-1", is_available);
    let mut agents = Vec::new();
    for allowed in 0..kills {
        let node = format!("node{allowed:02}");
        site.node(&node).await;
        let account = site.agents.on(&node).await.unwrap();
        let relay = FaultProxy::of(&account).await.unwrap();
        let writes = passes(&relay, allowed);
        let token = site.desk_token(&node, &account).await;
        let desk = |command: &mut Command| {
            if by_desk {
                command.env("BERTH_DESK_TOKEN_FILE", &token);
            }
        };
        let mut killed = site.agent_by(&node, &relay.kubeconfig(), desk);
        let enactment = format!("{node}.static-ip");
        let is_done = || is_available(&site.get("nnce", &enactment));
        until_lost(&writes, allowed, is_done).await;
        if by_desk {
            assert_eq!(metric(&killed, "berth_desk_common_total"), 1.0);
            assert_eq!(metric(&killed, "berth_desk_alone_total"), 0.0);
        }
        killed.process.kill().unwrap();
        drop((killed, relay));
        agents.push(site.agent_by(&node, account.kubeconfig(), desk));
        site.until("nnce", &enactment, is_available);
    }
    let pool = site.until("nip", "traffic-1", |pool| {
        pool["status"]["used"] == kills && is_available(pool)
    });
    let allocations = site.allocations(&pool);
    let mut addresses: Vec<&String> = allocations.iter().map(|(_, ip)| ip).collect();
    addresses.sort();
    addresses.dedup();
    assert_eq!(addresses.len(), kills, "{allocations:?}");
    for (node, address) in &allocations {
        let state = std::fs::read_to_string(site.host_program(node).with_extension("state"));
        assert!(state.unwrap().contains(address), "{node} applies {address}");
        let enactment = site.get("nnce", &format!("{node}.static-ip"));
        let recorded = enactment["status"]["desiredState"].to_string();
        assert!(recorded.contains(address), "{node}: {recorded}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_killed_between_each_pair_of_its_writes_loses_and_frees_nothing() {
    let site = Site::new().await;
    let mut leader: Process = site.controller("one");
    site.cluster.apply(OBJECTS).await.unwrap();
    let mut agents = Vec::new();
    for node in ["node01", "node02", "node03"] {
        site.node(node).await;
        agents.push(site.agent(node, &[]).await);
    }
    let all = "3/3 nodes successfully configured";
    site.until("nncp", "static-ip", |policy| message(policy) == all);
    let before = site.allocations(&site.get("nip", "traffic-1"));
    leader.kill().unwrap();
    let has_reset = || {
        let pool = site.get("nip", "traffic-1");
        pool["metadata"]["annotations"]
            .get("nmstate.io/reset-ippool")
            .is_some()
    };
    for allowed in 0..5 {
        // A pool that was deleted and created again is rebuilt from the enactments, and one is asked for besides.
        site.kubectl(&["delete", "nip", "traffic-1"]);
        site.cluster.apply(OBJECTS).await.unwrap();
        site.kubectl(&["annotate", "nip", "traffic-1", "nmstate.io/reset-ippool="]);
        let relay = FaultProxy::of(&site.controller).await.unwrap();
        let writes = passes(&relay, allowed);
        let mut killed = site.controller_by("one", &relay.kubeconfig());
        until_lost(&writes, allowed, || !has_reset()).await;
        killed.kill().unwrap();
    }
    let _last = site.controller("one");
    let pool = site.until("nip", "traffic-1", |pool| {
        pool["status"]["used"] == 3
            && is_available(pool)
            && message(pool) == "The pool is up to date"
    });
    assert_eq!(site.allocations(&pool), before);
    site.until("nip", "traffic-1", |_| !has_reset());
    site.until("nncp", "static-ip", |policy| message(policy) == all);
    for (node, address) in before {
        let enactment = site.get("nnce", &format!("{node}.static-ip"));
        assert!(is_available(&enactment) && enactment["status"].to_string().contains(&address));
    }
}
