//! The built plugin and an agent on a real API server: pools in whereabouts' objects, under a service account with
//! only the rights that the agent needs.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

#[path = "../cases/mod.rs"]
mod cases;
mod coexistence;
mod home;
#[path = "../node/mod.rs"]
mod node;
mod outage;
mod status;

use home::home;
use node::{TestNode, pod};
use serde_json::json;

run_cases!(on_cluster);

fn on_cluster() -> TestNode {
    home().node()
}

#[test]
fn objects_are_those_of_whereabouts() {
    let home = home();
    let node = home.node();
    let ipam = json!({"range": "10.0.0.5/24", "network_name": "blue", "ipRanges": [{"range": "fd00::/64"}]});
    node.add(&pod("a"), ipam.clone()).result();
    // The node is Berth's addition: whereabouts ignores it.
    let entry = json!({"id": "a-container", "podref": "ns/a", "ifname": "net1", "node": "node-1"});
    assert_eq!(
        home.specs("IPPool"),
        [
            (
                "blue-10.0.0.0-24".to_owned(),
                json!({"range": "10.0.0.0/24", "allocations": {"1": entry}})
            ),
            (
                "blue-fd00---64".to_owned(),
                json!({"range": "fd00::/64", "allocations": {"1": entry}})
            ),
        ]
    );
    let reservation = json!({"containerid": "a-container", "podref": "ns/a", "ifname": "net1"});
    assert_eq!(
        home.specs("OverlappingRangeIPReservation"),
        [
            ("blue-10.0.0.1".to_owned(), reservation.clone()),
            ("blue-fd00--1".to_owned(), reservation),
        ]
    );
    node.del(&pod("a"), ipam).succeeded();
    assert_eq!(home.specs("OverlappingRangeIPReservation"), []);
    assert!(
        home.specs("IPPool")
            .iter()
            .all(|(_, spec)| spec["allocations"] == json!({}))
    );
}

#[test]
fn an_entry_that_another_program_made_is_taken_over_and_freed() {
    let home = home();
    let entry = json!({"id": "old", "podref": "ns/a", "ifname": "net1"});
    home.create(
        "IPPool",
        "192.168.1.0-24",
        json!({"range": "192.168.1.0/24", "allocations": {"7": entry}}),
    );
    home.create(
        "OverlappingRangeIPReservation",
        "192.168.1.7",
        json!({"podref": "ns/a", "ifname": "net1"}),
    );
    let node = home.node();
    let ipam = json!({"range": "192.168.1.0/24"});
    assert_eq!(
        node.add(&pod("a"), ipam.clone()).addresses(),
        ["192.168.1.7/24"]
    );
    assert_eq!(
        home.specs("IPPool")[0].1["allocations"]["7"]["id"],
        "a-container"
    );
    node.del(&pod("a"), ipam).succeeded();
    assert_eq!(home.specs("IPPool")[0].1["allocations"], json!({}));
    assert_eq!(home.specs("OverlappingRangeIPReservation"), []);
}

#[test]
fn a_crash_between_record_and_reservation_is_made_good() {
    let home = home();
    let entry = json!({"id": "a-container", "podref": "ns/a", "ifname": "net1"});
    home.create(
        "IPPool",
        "10.0.0.0-24",
        json!({"range": "10.0.0.0/24", "allocations": {"1": entry}}),
    );
    let node = home.node();
    let ipam = json!({"range": "10.0.0.0/24"});
    assert_eq!(node.add(&pod("a"), ipam).addresses(), ["10.0.0.1/24"]);
    assert_eq!(home.specs("OverlappingRangeIPReservation").len(), 1);
}

#[test]
fn a_long_run_of_foreign_reservations_is_passed_over() {
    let home = home();
    for n in 1..=120 {
        home.create(
            "OverlappingRangeIPReservation",
            &format!("10.0.0.{n}"),
            json!({"podref": format!("other/p{n}"), "ifname": "net1"}),
        );
    }
    let node = home.node();
    let outcome = node.add(&pod("a"), json!({"range": "10.0.0.0/24"}));
    assert_eq!(outcome.addresses(), ["10.0.0.121/24"]);
    assert_eq!(
        home.specs("IPPool")[0].1["allocations"]
            .as_object()
            .unwrap()
            .len(),
        1
    );
}

#[test]
fn a_call_without_a_pod_is_refused() {
    let node = on_cluster();
    let (code, message) = node
        .add(&pod("").container("c1"), json!({"range": "10.0.0.0/24"}))
        .error();
    assert_eq!(code, 4);
    assert!(message.contains("K8S_POD_NAME"), "{message}");
}

/// There was no table at all, and the plugin panicked at the first ADD.
#[test]
fn whereabouts_518_a_node_without_a_table_is_told_what_it_waits_for() {
    let node = home().node();
    let (code, message) = node
        .add(
            &pod("a"),
            json!({"range": "10.0.0.0/16", "node_slice_size": "/26"}),
        )
        .error();
    assert_eq!(code, 11);
    assert!(message.contains("NodeSlicePool net"), "{message}");
}

#[test]
fn a_pool_of_another_range_under_our_name_is_left_alone() {
    let home = home();
    let foreign = json!({"range": "10.9.0.0/16", "allocations": {}});
    home.create("IPPool", "10.0.0.0-24", foreign.clone());
    let node = home.node();
    let (code, message) = node.add(&pod("a"), json!({"range": "10.0.0.0/24"})).error();
    assert_eq!(code, 999);
    assert!(message.contains("10.9.0.0/16"), "{message}");
    assert_eq!(home.specs("IPPool"), [("10.0.0.0-24".to_owned(), foreign)]);
    assert_eq!(home.specs("OverlappingRangeIPReservation"), []);
}

/// Nodes that allocate from overlapping ranges at once: no address is allocated twice, none is leaked, in every order
/// of the reservations.
#[test]
fn overlapping_ranges_give_no_address_twice_from_many_nodes() {
    let home = home();
    let ranges = ["10.0.0.0/24", "10.0.0.0/25", "10.0.0.0/26"];
    let nodes: Vec<_> = ranges.iter().map(|_| home.node()).collect();
    let ipam = |n: usize| json!({"range": ranges[n % 3], "range_end": "10.0.0.40"});
    let who = |n: usize| pod(&format!("p{n}"));
    let allocated: Vec<String> = std::thread::scope(|scope| {
        // Every node allocates from two of the ranges, every range serves two nodes.
        let lanes: Vec<_> = (0..6)
            .map(|lane| {
                let node = &nodes[lane / 2];
                let add = move |n: usize| node.add(&who(n), ipam(n)).addresses().remove(0);
                scope.spawn(move || (lane..36).step_by(6).map(add).collect::<Vec<_>>())
            })
            .collect();
        let lanes = lanes.into_iter();
        lanes.flat_map(|lane| lane.join().unwrap()).collect()
    });
    let bare = allocated
        .iter()
        .map(|address| address.split('/').next().unwrap());
    let bare: std::collections::BTreeSet<&str> = bare.collect();
    assert_eq!(bare.len(), 36, "{allocated:?}");
    let reserved = home.specs("OverlappingRangeIPReservation");
    let names: std::collections::BTreeSet<&str> =
        reserved.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, bare);
    let entries = || -> usize {
        let pools = home.specs("IPPool").into_iter();
        pools
            .map(|(_, spec)| spec["allocations"].as_object().unwrap().len())
            .sum()
    };
    assert_eq!(entries(), 36);
    for n in 0..36 {
        // By another node than the one that allocated it.
        nodes[(n + 1) % 3].del(&who(n), ipam(n)).succeeded();
    }
    assert_eq!(entries(), 0);
    assert_eq!(home.specs("OverlappingRangeIPReservation"), []);
}
