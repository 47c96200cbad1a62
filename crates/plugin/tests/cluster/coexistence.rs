//! Berth and the real whereabouts v0.9.4 on the same pools at the same time.

use std::collections::BTreeMap;
use std::sync::Mutex;

use berth_testkit::Attachment;
use serde_json::{Value, json};

use crate::home::{Home, home};
use crate::node::{Interface, Outcome, TestNode, pod};

/// The real plugin.
struct Whereabouts(berth_testkit::Whereabouts);

impl Whereabouts {
    fn new(home: &Home) -> Whereabouts {
        let kubeconfig = home.of_whereabouts();
        Whereabouts(berth_testkit::Whereabouts::new(&kubeconfig, "node-1").unwrap())
    }

    fn run(&self, verb: &str, who: &Interface, ipam: &Value) -> Outcome {
        let who = Attachment {
            pod: &who.pod,
            container: &who.container,
            ifname: &who.ifname,
        };
        Outcome::of(self.0.call(verb, who, ipam).unwrap())
    }
}

/// Which pod holds which address, by the plugins' answers.
#[derive(Default)]
struct Held(Mutex<BTreeMap<String, String>>);

impl Held {
    /// An answer came: no other pod may have the address.
    fn gain(&self, who: &Interface, outcome: &Outcome) {
        let address = outcome.addresses().remove(0);
        let mut held = self.0.lock().unwrap();
        if let Some(other) = held.insert(address.clone(), who.pod.clone()) {
            panic!(
                "{address} was allocated to {} while {other} has it",
                who.pod
            );
        }
    }

    /// A DEL is about to be called: from now on any pod may get the address.
    fn lose(&self, who: &Interface) {
        self.0.lock().unwrap().retain(|_, pod| *pod != who.pod);
    }

    fn by_address(&self) -> BTreeMap<String, String> {
        let held = self.0.lock().unwrap();
        let bare = |address: &String| address.split('/').next().unwrap().to_owned();
        held.iter()
            .map(|(address, pod)| (bare(address), format!("ns/{pod}")))
            .collect()
    }
}

/// Address and pod of every pool entry.
fn pool_entries(home: &Home) -> BTreeMap<String, String> {
    let mut entries = BTreeMap::new();
    for (_, spec) in home.specs("IPPool") {
        for (offset, entry) in spec["allocations"].as_object().unwrap() {
            let offset: u32 = offset.parse().unwrap();
            let address =
                std::net::Ipv4Addr::from(u32::from(std::net::Ipv4Addr::new(10, 0, 0, 0)) + offset);
            entries.insert(
                address.to_string(),
                entry["podref"].as_str().unwrap().to_owned(),
            );
        }
    }
    entries
}

/// Address and pod of every reservation.
fn reservations(home: &Home) -> BTreeMap<String, String> {
    let reservations = home.specs("OverlappingRangeIPReservation").into_iter();
    reservations
        .map(|(name, spec)| (name, spec["podref"].as_str().unwrap().to_owned()))
        .collect()
}

#[test]
fn both_allocate_and_release_in_one_pool_at_once() {
    let home = home();
    let berth = home.node();
    let whereabouts = Whereabouts::new(&home);
    let ipam = json!({"range": "10.0.0.0/22"});
    let held = Held::default();
    // Each side makes 60 ADDs and 20 DELs at the same time; then each releases the other's 40.
    let of_berth = |n: usize| pod(&format!("berth-{n}"));
    let of_whereabouts = |n: usize| pod(&format!("where-{n}"));
    std::thread::scope(|scope| {
        for lane in 0..4 {
            let (berth, held, ipam) = (&berth, &held, &ipam);
            scope.spawn(move || {
                for n in (lane..60).step_by(4) {
                    let who = of_berth(n);
                    held.gain(&who, &berth.add(&who, ipam.clone()));
                    if n % 3 == 0 {
                        held.lose(&who);
                        berth.del(&who, ipam.clone()).succeeded();
                    }
                }
            });
        }
        for lane in 0..2 {
            let (whereabouts, held, ipam) = (&whereabouts, &held, &ipam);
            scope.spawn(move || {
                for n in (lane..60).step_by(2) {
                    let who = of_whereabouts(n);
                    held.gain(&who, &whereabouts.run("ADD", &who, ipam));
                    if n % 3 == 0 {
                        held.lose(&who);
                        whereabouts.run("DEL", &who, ipam).succeeded();
                    }
                }
            });
        }
    });
    let expected = held.by_address();
    assert_eq!(expected.len(), 80);
    assert_eq!(pool_entries(&home), expected);
    assert_eq!(reservations(&home), expected);

    // Each repeats the ADD of the other's pods, which keep their addresses, and releases them.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in (0..60).filter(|n| n % 3 != 0) {
                let who = of_whereabouts(n);
                let again = berth.add(&who, ipam.clone()).addresses().remove(0);
                assert_eq!(held.0.lock().unwrap().get(&again), Some(&who.pod));
                berth.del(&who, ipam.clone()).succeeded();
            }
        });
        scope.spawn(|| {
            for n in (0..60).filter(|n| n % 3 != 0) {
                whereabouts.run("DEL", &of_berth(n), &ipam).succeeded();
            }
        });
    });
    assert_eq!(pool_entries(&home), BTreeMap::new());
    assert_eq!(reservations(&home), BTreeMap::new());
}

#[test]
fn both_see_each_others_reservations_across_ranges() {
    let home = home();
    let berth = home.node();
    let whereabouts = Whereabouts::new(&home);
    let wide = json!({"range": "10.0.0.0/24"});
    let narrow = json!({"range": "10.0.0.0/28"});
    let mut allocated = Vec::new();
    for n in 0..3 {
        let (a, b) = (pod(&format!("a{n}")), pod(&format!("b{n}")));
        allocated.extend(whereabouts.run("ADD", &a, &wide).addresses());
        allocated.extend(berth.add(&b, narrow.clone()).addresses());
    }
    assert_eq!(
        allocated,
        [
            "10.0.0.1/24",
            "10.0.0.2/28",
            "10.0.0.3/24",
            "10.0.0.4/28",
            "10.0.0.5/24",
            "10.0.0.6/28"
        ]
    );
}

/// The pool without the field that Berth adds to whereabouts' own: the node of each entry.
fn without_nodes(mut spec: Value) -> Value {
    let entries = spec["allocations"].as_object_mut().unwrap();
    for entry in entries.values_mut() {
        let node = entry.as_object_mut().unwrap().remove("node");
        assert!(node.is_none_or(|node| node == "node-1"));
    }
    spec
}

#[test]
fn both_answer_alike() {
    let whereabouts_home = home();
    let berth_home = home();
    let berth: TestNode = berth_home.node();
    let whereabouts = Whereabouts::new(&whereabouts_home);
    let ipams = [
        json!({"range": "192.168.1.0/24", "gateway": "192.168.10.1"}),
        json!({"range": "192.168.2.11-192.168.2.23/24"}),
        json!({"range": "192.168.3.0/24", "exclude": ["192.168.3.0/28", "192.168.3.16/28"]}),
        json!({"range": "caa5::0/112", "exclude": ["caa5::0/113"]}),
        json!({"ipRanges": [{"range": "192.168.10.1/24"}], "range": "abcd::1/64",
            "routes": [{"dst": "0.0.0.0/0", "gw": "192.168.10.254"}],
            "dns": {"nameservers": ["10.0.0.53"], "search": ["example.org"]}}),
        json!({"range": "192.168.5.200/24", "range_start": "192.168.5.100", "range_end": "192.168.5.50"}),
        json!({"range": "00192.00168.6.0/24", "range_start": "00192.00168.6.44"}),
        json!({"addresses": [{"address": "10.10.0.1/24", "gateway": "10.10.0.254"}]}),
        json!({}),
    ];
    for (n, ipam) in ipams.iter().enumerate() {
        let who = pod(&format!("p{n}"));
        let theirs = whereabouts.run("ADD", &who, ipam);
        let ours = berth.add(&who, ipam.clone());
        assert_eq!(ours.result(), theirs.result(), "{ipam}");
        // And again: the same pod gets the same.
        assert_eq!(
            berth.add(&who, ipam.clone()).result(),
            theirs.result(),
            "{ipam}"
        );
    }
    // Static addresses have records here and none there.
    let without_static = |home: &Home| -> Vec<(String, Value)> {
        let pools = home.specs("IPPool").into_iter();
        let pools = pools.filter(|(name, _)| name != "10.10.0.0-24");
        pools
            .map(|(name, spec)| (name, without_nodes(spec)))
            .collect()
    };
    assert_eq!(
        without_static(&berth_home),
        without_static(&whereabouts_home)
    );
    let mut ours = reservations(&berth_home);
    ours.remove("10.10.0.1");
    assert_eq!(ours, reservations(&whereabouts_home));
    for (n, ipam) in ipams.iter().enumerate() {
        let who = pod(&format!("p{n}"));
        assert_eq!(
            berth.del(&who, ipam.clone()),
            whereabouts.run("DEL", &who, ipam)
        );
    }
    assert_eq!(
        without_static(&berth_home),
        without_static(&whereabouts_home)
    );
}
