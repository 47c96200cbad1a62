//! Nodes that come, go, reboot and race.

use std::time::Duration;

use berth_nodes::objects::{ENACTMENT, NODE_IP_POOL};
use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::bed::{Bed, all_different, available, message, offsets, state_kind, upkeep};

/// 50 handlers, each with its own client and desk, race for 50 addresses: each gets one, none twice.
#[tokio::test(flavor = "multi_thread")]
async fn fifty_handlers_race_for_fifty_addresses() {
    let bed = Bed::new("race").await;
    let pool = bed.pool("traffic-1", "10.22.1.1", "10.22.1.50").await;
    for number in 1..=50 {
        bed.add_node(number).await;
    }
    let mut handlers = Vec::new();
    for number in 1..=50 {
        handlers.push(bed.handler(&bed.node(number)).await);
    }
    let policy = bed.policy(&[&pool]).await;
    for number in 1..=50 {
        bed.until_enacted(&bed.node(number), &policy, "Available")
            .await;
    }
    let addresses = bed.addresses(&policy).await;
    assert_eq!(addresses.len(), 50);
    all_different(&addresses);
    let pool = bed.get(NODE_IP_POOL, &pool).await.unwrap();
    assert_eq!(offsets(&pool), (0..50).collect::<Vec<u64>>());
    assert_eq!(pool["status"]["free"], 0);
}

/// Two addresses per node from two pools, one of them IPv6, one of them by the shorter syntax.
#[tokio::test(flavor = "multi_thread")]
async fn two_pools_per_node_and_dual_stack() {
    let bed = Bed::new("dual").await;
    let four = bed.pool("four", "10.22.2.1", "10.22.2.9").await;
    let six = bed
        .pool_with("six", json!({ "range": { "cidr": "fd00:22::/64", "start": "fd00:22::10", "end": "fd00:22::1f" }, "gateway": "fd00:22::1" }))
        .await;
    let policy = bed
        .policy_with(
            "static-ip",
            json!({
                "nodeSelector": { "bed": bed.name },
                "capture": { "a": format!("ippool.{six}.allocate") },
                "desiredState": {
                    "interfaces": [{
                        "name": "eth1", "type": "ethernet", "state": "up",
                        "ipv4": { "enabled": true, "address": [{ "ipam": { "pool": four } }] },
                        "ipv6": { "enabled": true, "address": [{ "ip": "{{ capture.a.ip }}", "prefix-length": "{{ capture.a.prefix-length }}" }] },
                    }],
                    "routes": { "config": [{ "destination": "::/0", "next-hop-interface": "eth1", "next-hop-address": "{{ capture.a.gateway }}" }] },
                },
            }),
        )
        .await;
    let _handlers = bed.handlers(3).await;
    bed.until_policy(&policy, "Available").await;
    let addresses = bed.addresses(&policy).await;
    all_different(&addresses);
    for (node, list) in &addresses {
        assert!(
            list.len() == 2 && list[0].starts_with("10.22.2.") && list[1].starts_with("fd00:22::1"),
            "{node}: {list:?}"
        );
    }
    let enactment = bed.enactment(&bed.node(1), &policy).await.unwrap();
    let route = &enactment["status"]["desiredState"]["routes"]["config"][0];
    assert_eq!(route["next-hop-address"], "fd00:22::1");
}

/// A reboot: the handler starts again on a host that has lost the address, and applies the same one again while the node is not Ready.
#[tokio::test(flavor = "multi_thread")]
async fn a_reboot_keeps_the_address() {
    let bed = Bed::new("reboot").await;
    let pool = bed.pool("traffic-1", "10.22.3.1", "10.22.3.9").await;
    let policy = bed.policy(&[&pool]).await;
    let mut handlers = bed.handlers(2).await;
    bed.until_policy(&policy, "Available").await;
    let before = bed.addresses(&policy).await;
    handlers.pop().unwrap().kill().await;
    let node = bed.node(2);
    bed.set_ready(&node, false).await;
    std::fs::remove_file(bed.host_dir(&node).join("state")).unwrap();
    let _again = bed.handler(&node).await;
    let state = bed.host_dir(&node).join("state");
    let begun = std::time::Instant::now();
    while !std::fs::read_to_string(&state).is_ok_and(|text| text.contains(&before[1].1[0])) {
        assert!(begun.elapsed().as_secs() < 60, "it is not applied again");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    bed.until_enacted(&node, &policy, "Available").await;
    assert_eq!(bed.addresses(&policy).await, before);
    bed.set_ready(&node, true).await;
    let pool = bed.get(NODE_IP_POOL, &pool).await.unwrap();
    assert_eq!(offsets(&pool).len(), 2);
}

/// Only a Ready node gets a new address; it says what it waits for.
#[tokio::test(flavor = "multi_thread")]
async fn only_a_ready_node_gets_a_new_address() {
    let bed = Bed::new("notready").await;
    let pool = bed.pool("traffic-1", "10.22.4.1", "10.22.4.9").await;
    bed.until_pool(&pool, "ReconciledPool").await;
    let policy = bed.policy(&[&pool]).await;
    let node = bed.add_node(1).await;
    bed.set_ready(&node, false).await;
    let _handler = bed.handler(&node).await;
    let waits = bed.until_enacted(&node, &policy, "Pending").await;
    assert!(message(&waits).contains("not Ready"), "{}", message(&waits));
    let idle = bed.get(NODE_IP_POOL, &pool).await.unwrap();
    assert!(offsets(&idle).is_empty());
    bed.set_ready(&node, true).await;
    bed.until_enacted(&node, &policy, "Available").await;
}

/// A node is deleted while its handler is dead, and returns before its address was given to another.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_deleted_and_returns_gets_an_address() {
    let bed = Bed::new("returns").await;
    let pool = bed.pool("traffic-1", "10.22.5.1", "10.22.5.9").await;
    let policy = bed.policy(&[&pool]).await;
    let mut handlers = bed.handlers(2).await;
    bed.until_policy(&policy, "Available").await;
    let node = bed.node(2);
    handlers.pop().unwrap().kill().await;
    bed.delete_node(&node).await;
    bed.until(NODE_IP_POOL, &pool, |pool| offsets(pool).len() == 1)
        .await;
    bed.until_gone(ENACTMENT, &format!("{node}.{policy}")).await;
    bed.add_node(2).await;
    let _back = bed.handler(&node).await;
    bed.until_enacted(&node, &policy, "Available").await;
    all_different(&bed.addresses(&policy).await);
    bed.until(NODE_IP_POOL, &pool, |pool| offsets(pool).len() == 2)
        .await;
}

/// A pool is deleted and created again, larger, while nodes join: addresses are kept, none is given twice.
#[tokio::test(flavor = "multi_thread")]
async fn a_pool_is_created_again_larger_under_load() {
    let bed = Bed::new("larger").await;
    let pool = bed.pool("traffic-1", "10.22.6.1", "10.22.6.6").await;
    let policy = bed.policy(&[&pool]).await;
    let _first = bed.handlers(6).await;
    bed.until_policy(&policy, "Available").await;
    let before = bed.addresses(&policy).await;
    let mut more = Vec::new();
    for number in 7..=12 {
        let node = bed.add_node(number).await;
        more.push(bed.handler(&node).await);
    }
    bed.delete(NODE_IP_POOL, &pool).await;
    bed.pool("traffic-1", "10.22.6.1", "10.22.6.20").await;
    for number in 1..=12 {
        bed.until_enacted(&bed.node(number), &policy, "Available")
            .await;
    }
    let after = bed.addresses(&policy).await;
    assert_eq!(after.len(), 12);
    all_different(&after);
    assert_eq!(after[..6], before[..], "kept");
    bed.until(NODE_IP_POOL, &pool, |pool| offsets(pool).len() == 12)
        .await;
}

/// The leader is lost, and another one looks after the pools; handlers allocate all the same.
#[tokio::test(flavor = "multi_thread")]
async fn a_second_leader_does_no_harm_and_takes_over() {
    let bed = Bed::new("leader").await;
    let second = upkeep(bed.controller().await.client().await.unwrap());
    let stop = tokio_util::sync::CancellationToken::new();
    let both = {
        let stop = stop.clone();
        tokio::spawn(async move { tokio::join!(second.follow(stop.clone()), second.lead(stop)) })
    };
    let pool = bed.pool("traffic-1", "10.22.7.1", "10.22.7.9").await;
    let policy = bed.policy(&[&pool]).await;
    let mut handlers = bed.handlers(3).await;
    bed.until_policy(&policy, "Available").await;
    all_different(&bed.addresses(&policy).await);
    stop.cancel();
    both.await.unwrap();
    handlers.pop().unwrap().kill().await;
    bed.delete_node(&bed.node(3)).await;
    bed.until(NODE_IP_POOL, &pool, |pool| offsets(pool).len() == 2)
        .await;
}

/// Enactments that somebody else deletes or overwrites are written again, with the same address.
#[tokio::test(flavor = "multi_thread")]
async fn enactments_deleted_or_overwritten_by_somebody_else_come_back() {
    let bed = Bed::new("foreign").await;
    let pool = bed.pool("traffic-1", "10.22.9.1", "10.22.9.9").await;
    let policy = bed.policy(&[&pool]).await;
    let _handlers = bed.handlers(3).await;
    bed.until_policy(&policy, "Available").await;
    let before = bed.addresses(&policy).await;
    // As kubernetes-nmstate does at a selector mismatch.
    let name = format!("{}.{policy}", bed.node(1));
    bed.delete(ENACTMENT, &name).await;
    bed.until_enacted(&bed.node(1), &policy, "Available").await;
    // As its typed status updates do: unknown fields of the status are gone.
    let name = format!("{}.{policy}", bed.node(2));
    let patch = json!({ "status": null });
    let (params, patch) = (PatchParams::default(), Patch::Merge(&patch));
    let api = bed.api(ENACTMENT);
    api.patch_status(&name, &params, &patch).await.unwrap();
    bed.until_enacted(&bed.node(2), &policy, "Available").await;
    assert_eq!(bed.addresses(&policy).await, before);
}

/// An enactment that is edited to claim another node's address is a collision that names both; the address stays whose it was.
#[tokio::test(flavor = "multi_thread")]
async fn an_enactment_that_claims_anothers_address_is_a_collision() {
    let bed = Bed::new("collision").await;
    let pool = bed.pool("traffic-1", "10.22.10.1", "10.22.10.9").await;
    let policy = bed.policy(&[&pool]).await;
    let mut handlers = bed.handlers(2).await;
    bed.until_policy(&policy, "Available").await;
    let addresses = bed.addresses(&policy).await;
    // Its handler is dead, and so does not put it right.
    handlers.pop().unwrap().kill().await;
    let taken = &addresses[0].1[0];
    let claim = json!({ pool.as_str(): { "captures": { "address-1": taken } } });
    let name = format!("{}.{policy}", bed.node(2));
    bed.annotate(ENACTMENT, &name, "berth.dev/ippool", &claim.to_string())
        .await;
    let told = bed.until_pool(&pool, "IPCollision").await;
    let text = available(&told).2;
    let start = format!(
        "The IP address {taken} at node {} and interface eth1 is is colliding with node {}",
        bed.node(1),
        bed.node(2)
    );
    assert!(text.starts_with(&start), "{text}");
}

/// Two hosts that show one address are a collision that names both, the owner first.
#[tokio::test(flavor = "multi_thread")]
async fn two_hosts_that_show_one_address_are_a_collision() {
    let bed = Bed::new("twoshow").await;
    let pool = bed.pool("traffic-1", "10.22.13.1", "10.22.13.9").await;
    let policy = bed.policy(&[&pool]).await;
    let mut handlers = bed.handlers(2).await;
    bed.until_policy(&policy, "Available").await;
    let addresses = bed.addresses(&policy).await;
    let taken = &addresses[0].1[0];
    let (owner, other) = (bed.node(1), bed.node(2));
    bed.until(state_kind(), &owner, |state| {
        state.to_string().contains(taken)
    })
    .await;
    // Somebody configures the second host by hand; its handler is dead, and a later one shows it.
    handlers.pop().unwrap().kill().await;
    let interface = json!({ "name": "eth7", "type": "ethernet", "ipv4": {
        "enabled": true, "address": [{ "ip": taken, "prefix-length": 24 }] } });
    let own = json!({ "name": "eth1", "type": "ethernet", "ipv4": {
        "enabled": true, "address": [{ "ip": addresses[1].1[0], "prefix-length": 24 }] } });
    let state = json!({ "interfaces": [own, interface] });
    std::fs::write(bed.host_dir(&other).join("state"), state.to_string()).unwrap();
    let _again = bed.handler(&other).await;
    let told = bed.until_pool(&pool, "IPCollision").await;
    let start = format!(
        "The IP address {taken} at node {owner} and interface eth1 is is colliding with node {other}"
    );
    let text = available(&told).2;
    assert!(text.starts_with(&start), "{text}");
}

/// Two pools that overlap name each other, and nothing new is allocated from either.
#[tokio::test(flavor = "multi_thread")]
async fn pools_that_overlap_name_each_other() {
    let bed = Bed::new("overlap").await;
    let one = bed.pool("one", "10.22.11.1", "10.22.11.20").await;
    let two = bed.pool("two", "10.22.11.15", "10.22.11.30").await;
    for (pool, other) in [(&one, &two), (&two, &one)] {
        let told = bed.until_pool(pool, "OverlappingIPPool").await;
        let text = available(&told).2;
        let start = format!("The NodeIPPool {other} is overlapping with this one.");
        assert!(text.starts_with(&start), "{text}");
    }
}
