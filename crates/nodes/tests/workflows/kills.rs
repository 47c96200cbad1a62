//! kill -9 between each pair of writes, of handlers and of leaders, under the rights and the policies of deploy/.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use berth_nodes::handler::Mode;
use berth_nodes::objects::{ENACTMENT, NODE_IP_POOL, POLICY};
use berth_testkit::{Fate, FaultProxy};

use crate::bed::{Bed, PATIENCE, all_different, applied, available, is_true, offsets};

/// Lets so many writes pass; the answer to the next is lost, which is the worst place to die, and no further one arrives.
fn passes(relay: &FaultProxy, allowed: usize) -> Arc<AtomicUsize> {
    let writes = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&writes);
    relay.rule(move |asked| {
        if asked.method == "GET" {
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
async fn until_lost(writes: &AtomicUsize, allowed: usize, is_done: impl AsyncFn() -> bool) {
    let begun = Instant::now();
    while writes.load(Ordering::SeqCst) <= allowed && !is_done().await {
        assert!(begun.elapsed() < PATIENCE, "write {allowed} does not come");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The next handler ends with one address, in pool, enactment and host alike.
#[tokio::test(flavor = "multi_thread")]
async fn a_handler_killed_after_each_of_its_writes_is_resumed() {
    let bed = Bed::new("killed").await;
    let pool = bed.pool("traffic-1", "10.22.8.1", "10.22.8.60").await;
    bed.until_pool(&pool, "ReconciledPool").await;
    let policy = bed.policy(&[&pool]).await;
    for allowed in 0..8 {
        let node = bed.add_node(allowed).await;
        let relay = bed.relay(&node).await;
        let writes = passes(&relay, allowed);
        let handler = bed.handler_through(&node, Mode::Host, &relay).await;
        let name = format!("{node}.{policy}");
        let is_done = async || {
            let done = bed.get(ENACTMENT, &name).await;
            done.is_some_and(|object| is_true(&object, "Available"))
        };
        until_lost(&writes, allowed, is_done).await;
        handler.kill().await;
        drop(relay);
        let _again = bed.handler(&node).await;
        let object = bed.until_enacted(&node, &policy, "Available").await;
        let address = applied(&object).pop().unwrap();
        let state = std::fs::read_to_string(bed.host_dir(&node).join("state")).unwrap();
        assert!(state.contains(&address), "after {allowed} writes: {state}");
    }
    let addresses = bed.addresses(&policy).await;
    all_different(&addresses);
    let pool = bed
        .until(NODE_IP_POOL, &pool, |pool| {
            offsets(pool).len() == addresses.len()
        })
        .await;
    assert_eq!(available(&pool).1, "ReconciledPool");
}

/// While it takes the address of a deleted policy off the host: the next handler ends it, and only then the address is free.
#[tokio::test(flavor = "multi_thread")]
async fn a_handler_killed_while_it_withdraws_is_resumed() {
    let bed = Bed::new("withdraws").await;
    let pool = bed.pool("traffic-1", "10.22.14.1", "10.22.14.60").await;
    bed.until_pool(&pool, "ReconciledPool").await;
    let node = bed.add_node(1).await;
    for allowed in 0..4 {
        let policy = bed.policy(&[&pool]).await;
        let handler = bed.handler(&node).await;
        let object = bed.until_enacted(&node, &policy, "Available").await;
        let address = applied(&object).pop().unwrap();
        bed.until(crate::bed::state_kind(), &node, |state| {
            state.to_string().contains(&address)
        })
        .await;
        handler.kill().await;
        let relay = bed.relay(&node).await;
        let writes = passes(&relay, allowed);
        bed.delete(POLICY, &policy).await;
        let killed = bed.handler_through(&node, Mode::Host, &relay).await;
        let name = format!("{node}.{policy}");
        let is_done = async || bed.get(ENACTMENT, &name).await.is_none();
        until_lost(&writes, allowed, is_done).await;
        killed.kill().await;
        let _again = bed.handler(&node).await;
        bed.until_gone(ENACTMENT, &name).await;
        bed.until(NODE_IP_POOL, &pool, |pool| offsets(pool).is_empty())
            .await;
        let state = std::fs::read_to_string(bed.host_dir(&node).join("state")).unwrap();
        assert!(!state.contains(&address), "after {allowed} writes: {state}");
    }
}

/// In `policy` mode: the next handler ends with one concrete policy, which has the address of pool and enactment.
#[tokio::test(flavor = "multi_thread")]
async fn a_handler_killed_while_it_renders_policies_is_resumed() {
    let bed = Bed::alone("renders").await;
    crate::beside::keeps_away(&bed).await;
    let _leader = bed.leader().await;
    let pool = bed.pool("traffic-1", "10.24.9.1", "10.24.9.60").await;
    bed.until_pool(&pool, "ReconciledPool").await;
    let policy = crate::beside::kept_away(&bed, bed.policy_spec(&[&pool])).await;
    let work = async {
        for allowed in 0..8 {
            let node = bed.add_node(allowed).await;
            let relay = bed.relay(&node).await;
            let writes = passes(&relay, allowed);
            let handler = bed.handler_through(&node, Mode::Policy, &relay).await;
            let name = format!("{node}.{policy}");
            let is_done = async || {
                let done = bed.get(ENACTMENT, &name).await;
                done.is_some_and(|object| is_true(&object, "Available"))
            };
            until_lost(&writes, allowed, is_done).await;
            handler.kill().await;
            let _again = bed.handler_in(&node, Mode::Policy).await;
            let object = bed.until_enacted(&node, &policy, "Available").await;
            let concrete = bed.get(POLICY, &format!("{policy}.{node}")).await.unwrap();
            let address = applied(&object).pop().unwrap();
            assert!(
                concrete["spec"].to_string().contains(&address),
                "after {allowed} writes"
            );
        }
    };
    tokio::select! {
        () = crate::beside::play_kubernetes_nmstate(&bed, &crate::beside::available) => {}
        () = work => {}
    }
    let addresses = bed.addresses(&policy).await;
    all_different(&addresses);
    bed.until(NODE_IP_POOL, &pool, |pool| {
        offsets(pool).len() == addresses.len()
    })
    .await;
}

/// While it rebuilds a pool that was deleted and created again: the addresses are kept, and the last leader ends what the others began.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_killed_after_each_of_its_writes_is_replaced() {
    let bed = Bed::alone("leaderkill").await;
    let first = bed.leader().await;
    let pool = bed.pool("traffic-1", "10.22.12.1", "10.22.12.5").await;
    let policy = bed.policy(&[&pool]).await;
    let _handlers = bed.handlers(3).await;
    bed.until_policy(&policy, "Available").await;
    let before = bed.addresses(&policy).await;
    first.abort();
    bed.delete(NODE_IP_POOL, &pool).await;
    bed.pool("traffic-1", "10.22.12.1", "10.22.12.9").await;
    bed.annotate(NODE_IP_POOL, &pool, "nmstate.io/reset-ippool", "")
        .await;
    // A node that joins meanwhile gets nothing before the others have theirs back.
    let node = bed.add_node(4).await;
    let _fourth = bed.handler(&node).await;
    for allowed in 0..6 {
        let relay = FaultProxy::of(&bed.controller().await).await.unwrap();
        let writes = passes(&relay, allowed);
        let leader = bed.leader_by(bed.client_of(&relay.kubeconfig()).await);
        let begun = Instant::now();
        let is_done = async || {
            let settled = bed.get(NODE_IP_POOL, &pool).await.unwrap();
            available(&settled).1 == "ReconciledPool" && begun.elapsed() > Duration::from_secs(3)
        };
        until_lost(&writes, allowed, is_done).await;
        leader.abort();
    }
    let _last = bed.leader().await;
    bed.until_enacted(&node, &policy, "Available").await;
    let after = bed.addresses(&policy).await;
    all_different(&after);
    assert_eq!(after[..3], before[..], "kept");
    let done = bed
        .until(NODE_IP_POOL, &pool, |pool| {
            let reset = pool["metadata"]["annotations"].get("nmstate.io/reset-ippool");
            reset.is_none() && available(pool).1 == "ReconciledPool" && offsets(pool).len() == 4
        })
        .await;
    assert_eq!(done["status"]["used"], 4);
}

/// While it releases the address of a node that is gone, and deletes its enactment, which no garbage collector does here.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_killed_while_it_scales_down_is_replaced() {
    let bed = Bed::alone("downkill").await;
    let pool = bed.pool("traffic-1", "10.22.15.1", "10.22.15.20").await;
    let policy = bed.policy(&[&pool]).await;
    let mut leader = bed.leader().await;
    let _stays = bed.handlers(1).await;
    bed.until_policy(&policy, "Available").await;
    let before = bed.addresses(&policy).await;
    for allowed in 0..5 {
        let node = bed.add_node(10 + allowed).await;
        let handler = bed.handler(&node).await;
        bed.until_enacted(&node, &policy, "Available").await;
        handler.kill().await;
        leader.abort();
        bed.delete_node(&node).await;
        // Its state went with it, as the garbage collector has it.
        if bed.get(crate::bed::state_kind(), &node).await.is_some() {
            bed.delete(crate::bed::state_kind(), &node).await;
        }
        let relay = FaultProxy::of(&bed.controller().await).await.unwrap();
        let writes = passes(&relay, allowed);
        let killed = bed.leader_by(bed.client_of(&relay.kubeconfig()).await);
        let name = format!("{node}.{policy}");
        let is_done = async || {
            let settled = bed.get(NODE_IP_POOL, &pool).await.unwrap();
            offsets(&settled).len() == 1 && bed.get(ENACTMENT, &name).await.is_none()
        };
        until_lost(&writes, allowed, is_done).await;
        killed.abort();
        leader = bed.leader().await;
        bed.until_gone(ENACTMENT, &name).await;
        bed.until(NODE_IP_POOL, &pool, |pool| offsets(pool).len() == 1)
            .await;
    }
    assert_eq!(bed.addresses(&policy).await, before);
    bed.until(POLICY, &policy, |policy| {
        crate::bed::message(policy) == "1/1 nodes successfully configured"
    })
    .await;
}
