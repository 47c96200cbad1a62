use std::collections::HashMap;

use berth_collector::observed::{Phase, Pod, PodState};
use berth_core::{Handle, Pool, Record};
use berth_ledger::{ClaimKey, ClaimKind};

use super::super::address_index::{AddressIndex, Shared};
use super::*;
use crate::by_hand::network_of_text;

fn mk_held(pool: &str, range: &str, address: &str, pod: &str) -> Held {
    Held {
        pool: PoolKey::of_network(pool, range.parse().unwrap()),
        address: address.parse().unwrap(),
        record: Record::new(Owner::new(pod, "net1"), Handle::new("c1")),
        note: Note::default(),
    }
}

fn mk_reservation(name: &str, pod: &str) -> Reservation {
    Reservation {
        key: ClaimKey::new(ClaimKind::Reservation, name),
        record: Record::new(Owner::new(pod, "net1"), Handle::default()),
    }
}

fn mk_attached(pod: &str, network: &str, address: &str) -> Attached {
    Attached {
        owner: Owner::new(pod, "net1"),
        uid: "u1".to_owned(),
        network: ("ux".to_owned(), network.to_owned()),
        address: address.parse().unwrap(),
    }
}

fn mk_policies() -> PoolPolicies {
    let mut pool_policies = PoolPolicies::default();
    for (name, range, network) in [
        ("web", "10.0.0.0/28", ""),
        ("wide", "10.0.0.0/24", ""),
        ("blue", "10.0.0.0/24", "blue"),
    ] {
        let text = format!(
            r#"{{"cniVersion":"1.0.0","type":"macvlan",
                "ipam":{{"type":"berth","range":"{range}","network_name":"{network}"}}}}"#
        );
        let network = network_of_text(name, &text, true, &[]).unwrap();
        pool_policies.add_network("ux", name, &network);
    }
    pool_policies
}

fn mk_index(held: &[Held], published: &BTreeMap<String, String>) -> AddressIndex {
    let mut index = AddressIndex::default();
    for held in held {
        let mut pool = Pool::new();
        pool.restore(held.address, held.record.clone());
        let publisher = published.get(&held.pool.name).map(String::as_str);
        index.add_pool(&held.pool, publisher, &pool);
    }
    index.sort();
    index
}

fn found(held: &[Held], reservations: &[Reservation], attached: &[Attached]) -> Vec<Duplicate> {
    let published = BTreeMap::from([("blue-n-1-10.0.0.0-26".to_owned(), "n-1".to_owned())]);
    let networks = mk_index(held, &published).networks();
    Sources {
        networks: &networks,
        held,
        reservations,
        attached,
        published: &published,
        pool_policies: &mk_policies(),
    }
    .duplicates()
}

fn texts(found: &[Duplicate]) -> Vec<String> {
    found.iter().map(ToString::to_string).collect()
}

#[test]
fn pools_whose_ranges_overlap_are_compared_and_networks_with_names_are_apart() {
    let held = [
        mk_held("10.0.0.0-28", "10.0.0.0/28", "10.0.0.1", "ux/a"),
        mk_held("10.0.0.0-24", "10.0.0.0/24", "10.0.0.1", "ux/b"),
        mk_held("blue-10.0.0.0-24", "10.0.0.0/24", "10.0.0.1", "ux/c"),
        // The same owner in two pools: on its way from one to the other.
        mk_held("10.0.0.0-28", "10.0.0.0/28", "10.0.0.2", "ux/d"),
        mk_held("10.0.0.0-24", "10.0.0.0/24", "10.0.0.2", "ux/d"),
    ];
    assert_eq!(
        texts(&found(&held, &[], &[])),
        [
            "10.0.0.1 has 2 holders: ux/a (net1) in pool 10.0.0.0-28, ux/b (net1) in pool 10.0.0.0-24"
        ]
    );
}

#[test]
fn berth_15_4_a_pool_of_any_other_name_is_compared_with_networks_without_a_name() {
    let held = [
        mk_held("10.0.0.0-28", "10.0.0.0/28", "10.0.0.1", "ux/a"),
        mk_held("by-hand", "10.0.0.0/24", "10.0.0.1", "ux/b"),
        mk_held("blue-10.0.0.0-24", "10.0.0.0/24", "10.0.0.1", "ux/c"),
    ];
    let reported = texts(&found(&held, &[], &[]));
    let expected =
        "10.0.0.1 has 2 holders: ux/a (net1) in pool 10.0.0.0-28, ux/b (net1) in pool by-hand";
    assert_eq!(reported, [expected]);
    let index = mk_index(&held, &BTreeMap::new());
    assert_eq!(index.shared().len(), 1);
}

#[test]
fn a_slice_that_a_node_publishes_is_of_its_network() {
    let held = [
        mk_held("blue-10.0.0.0-24", "10.0.0.0/24", "10.0.0.1", "ux/a"),
        mk_held("blue-n-1-10.0.0.0-26", "10.0.0.0/26", "10.0.0.1", "ux/b"),
    ];
    assert_eq!(found(&held, &[], &[]).len(), 1);
}

#[test]
fn reservations_and_network_status_count() {
    let held = [mk_held("10.0.0.0-28", "10.0.0.0/28", "10.0.0.1", "ux/a")];
    let theirs = [
        mk_reservation("10.0.0.1", "ux/b"),
        mk_reservation("blue-10.0.0.1", "ux/x"),
    ];
    assert_eq!(
        texts(&found(&held, &theirs, &[])),
        [
            "10.0.0.1 has 2 holders: ux/a (net1) in pool 10.0.0.0-28, ux/b (net1) by reservation 10.0.0.1"
        ]
    );
    let said = [
        mk_attached("ux/a", "web", "10.0.0.1"),
        mk_attached("ux/b", "web", "10.0.0.1"),
        mk_attached("ux/y", "blue", "10.0.0.1"),
        mk_attached("ux/z", "unknown", "10.0.0.1"),
    ];
    assert_eq!(
        texts(&found(&held, &[], &said)),
        [
            "10.0.0.1 has 2 holders: ux/a (net1) in pool 10.0.0.0-28, ux/b (net1) by its network-status"
        ]
    );
    assert!(found(&held, &[mk_reservation("10.0.0.1", "ux/a")], &said[..1]).is_empty());
}

#[test]
fn a_network_status_that_its_pool_agrees_with_is_not_kept() {
    let held = [
        mk_held("10.0.0.0-28", "10.0.0.0/28", "10.0.0.2", "ux/b"),
        mk_held("10.0.0.0-28", "10.0.0.0/28", "10.0.0.1", "ux/a"),
        mk_held("blue-10.0.0.0-24", "10.0.0.0/24", "10.0.0.1", "ux/x"),
    ];
    let (index, pool_policies) = (mk_index(&held, &BTreeMap::new()), mk_policies());
    for (pod, network, address, differs) in [
        ("ux/a", "web", "10.0.0.1", false),
        ("ux/b", "web", "10.0.0.1", true),
        ("ux/x", "blue", "10.0.0.1", false),
        // No pool has it, or no definition is known.
        ("ux/a", "web", "10.0.0.9", true),
        ("ux/a", "unknown", "10.0.0.9", false),
    ] {
        let attached = mk_attached(pod, network, address);
        assert_eq!(
            index.differ(&attached, &pool_policies),
            differs,
            "{pod} {network} {address}"
        );
    }
}

/// The index keeps numbers alone, and must not miss what the comparison of the texts would find.
#[test]
fn the_index_finds_the_shared_addresses_and_no_others() {
    let held = [
        mk_held("10.0.0.0-28", "10.0.0.0/28", "10.0.0.1", "ux/a"),
        mk_held("10.0.0.0-24", "10.0.0.0/24", "10.0.0.1", "ux/b"),
        mk_held("10.0.0.0-24", "10.0.0.0/24", "10.0.0.2", "ux/c"),
        mk_held("blue-10.0.0.0-24", "10.0.0.0/24", "10.0.0.2", "ux/d"),
        mk_held("10.0.0.0-28", "10.0.0.0/28", "10.0.0.3", "ux/e"),
        mk_held("fd00---64", "fd00::/64", "fd00::3", "ux/f"),
    ];
    let mut index = mk_index(&held, &BTreeMap::new());
    let unnamed = Owner::new("ux/e", "");
    for (name, owner) in [
        ("10.0.0.3", &unnamed),
        ("fd00--3", &Owner::new("ux/g", "net1")),
        ("red-10.0.0.3", &Owner::new("ux/h", "net1")),
    ] {
        index.add_reservation(name, owner);
    }
    index.sort();
    let shared: Vec<String> = index.shared().iter().map(ToString::to_string).collect();
    assert_eq!(shared, ["10.0.0.1", "fd00::3"]);
    let mut whole = Shared::of(&index, &[]);
    for held in &held {
        let mut pool = Pool::new();
        pool.restore(held.address, held.record.clone());
        whole.add_pool(&held.pool, &pool);
    }
    let reservation = mk_reservation("fd00--3", "ux/g");
    whole.add_reservation(reservation.key, reservation.record);
    assert_eq!((whole.held.len(), whole.reservations.len()), (3, 1));
}

#[test]
fn an_owner_that_is_gone_is_no_holder() {
    let held = [
        mk_held("10.0.0.0-28", "10.0.0.0/28", "10.0.0.1", "ux/a"),
        mk_held("10.0.0.0-24", "10.0.0.0/24", "10.0.0.1", "ux/b"),
    ];
    let duplicate = found(&held, &[], &[]).remove(0);
    let alive = PodState::Present(Pod {
        uids: vec!["u1".to_owned()],
        phase: Phase::Open,
        node: None,
    });
    let pods = |second: PodState| {
        HashMap::from([
            (PodRef::new("ux", "a"), alive.clone()),
            (PodRef::new("ux", "b"), second),
        ])
    };
    let owners = |second: PodState| Owners {
        pods: pods(second),
        ..Owners::default()
    };
    let gone = duplicate.clone().living(&owners(PodState::Absent));
    assert_eq!(gone, None);
    let both = duplicate.living(&owners(alive.clone())).unwrap();
    assert_eq!(both.pods().count(), 2);
}
