//! STATUS on a cluster: what an ADD would fail with, without making one.

use serde_json::{Value, json};

use crate::home::home;
use crate::node::{Outcome, TestNode, pod};

fn status(node: &TestNode, ipam: Value) -> Outcome {
    node.run("STATUS", &pod("x"), &node.conf("1.1.0", ipam))
}

#[test]
fn addresses_that_overlapping_pools_have_reserved_are_not_available() {
    let home = home();
    let node = home.node();
    let ipam = json!({"range": "10.0.0.0/29"});
    status(&node, ipam.clone()).succeeded();
    for n in 1..=6 {
        let holder = json!({"podref": format!("other/p{n}"), "ifname": "net1"});
        home.create(
            "OverlappingRangeIPReservation",
            &format!("10.0.0.{n}"),
            holder,
        );
    }
    let (code, message) = status(&node, ipam.clone()).error();
    assert_eq!(code, 50);
    assert!(message.contains("exhausted"), "{message}");
    let apart = json!({"range": "10.0.0.0/29", "enable_overlapping_ranges": false});
    status(&node, apart).succeeded();
    // It asked, and left nothing behind.
    assert_eq!(home.specs("IPPool"), []);
}

/// whereabouts' ADD succeeds there, unrecorded.
#[test]
fn an_object_that_takes_no_more_entries_is_said_by_add_and_status() {
    let home = home();
    // 1.5 MiB is what etcd takes in one request; a few hundred bytes are left.
    let entry = |n: u32, bytes: usize| json!({"id": "c", "podref": format!("other/{n:0>bytes$}"), "ifname": "net1"});
    let mut allocations: serde_json::Map<String, Value> = (1..=155)
        .map(|n| (n.to_string(), entry(n, 10_000)))
        .collect();
    let size = json!(allocations).to_string().len();
    allocations.insert("156".to_owned(), entry(156, 1_571_000 - size));
    let spec = json!({"range": "10.0.0.0/16", "allocations": allocations});
    home.create("IPPool", "10.0.0.0-16", spec);
    let node = home.node();
    let ipam = json!({"range": "10.0.0.0/16"});
    status(&node, ipam.clone()).succeeded();
    let mut allocated = 0;
    let (code, message) = loop {
        let name = format!("p{allocated}");
        let outcome = node.run("ADD", &pod(&name), &node.conf("1.1.0", ipam.clone()));
        if outcome.exit != 0 {
            break outcome.error();
        }
        allocated += 1;
        assert!(allocated < 40, "it never filled up");
    };
    assert_eq!(code, 11, "{message}");
    assert!(message.contains("is full"), "{message}");
    assert!(message.contains("fast_ipam"), "{message}");
    let (code, message) = status(&node, ipam.clone()).error();
    assert_eq!(code, 50);
    assert!(message.contains("is full"), "{message}");
    let recorded = &home.specs("IPPool")[0].1["allocations"];
    assert_eq!(
        recorded.as_object().unwrap().len(),
        156 + allocated,
        "all of it recorded (I2)"
    );
    assert_eq!(home.specs("OverlappingRangeIPReservation").len(), allocated);
}

#[test]
fn two_holders_of_one_address_limit_connectivity_where_no_pod_can_be_served() {
    let home = home();
    let entry = |pod: &str| json!({"id": pod, "podref": format!("other/{pod}"), "ifname": "net1"});
    let mut allocations = json!({"1": entry("a"), "01": entry("b")});
    let pool = |allocations: &Value| json!({"range": "10.0.0.0/30", "allocations": allocations});
    home.create("IPPool", "10.0.0.0-30", pool(&allocations));
    let node = home.node();
    let ipam = json!({"range": "10.0.0.0/30"});
    // The other address is free: pods can be served.
    status(&node, ipam).succeeded();
    allocations["2"] = entry("c");
    let named = json!({"range": "10.0.0.0/30", "network_name": "full"});
    home.create("IPPool", "full-10.0.0.0-30", pool(&allocations));
    let (code, message) = status(&node, named).error();
    assert_eq!(code, 51);
    assert!(message.contains("exhausted"), "{message}");
    assert!(message.contains("10.0.0.1 is held by"), "{message}");
}

#[test]
fn a_store_that_can_not_be_reached_is_said() {
    let nowhere = json!({"apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "users": [{"name": "u", "user": {"token": "t"}}]});
    let dir = tempfile::tempdir().unwrap();
    let kubeconfig = dir.path().join("kubeconfig");
    std::fs::write(&kubeconfig, nowhere.to_string()).unwrap();
    let ipam = json!({"range": "10.0.0.0/29"});
    let node = TestNode::with_defaults(json!({"kubernetes": {"kubeconfig": kubeconfig}}));
    let (code, message) = status(&node, ipam.clone()).error();
    assert_eq!(code, 50);
    assert!(message.contains("can't be reached"), "{message}");
    let absent = TestNode::with_defaults(json!({"kubernetes": {"kubeconfig": "/nowhere"}}));
    let (code, message) = status(&absent, ipam).error();
    assert_eq!(code, 50);
    assert!(message.contains("/nowhere"), "{message}");
}
