//! A live range is moved to slices and back: no pod loses its address, and whereabouts alone can continue.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::cni_call::bare;
use crate::test_node::{Machine, Site, until};
use crate::whereabouts::Whereabouts;

struct Given(BTreeMap<String, String>);

impl Given {
    async fn add(&mut self, machine: &Machine, pod: &str, ipam: &Value) -> String {
        let address = bare(&machine.add(pod, ipam).await);
        self.note(&address, pod);
        address
    }

    fn note(&mut self, address: &str, pod: &str) {
        let twice = self.0.insert(address.to_owned(), format!("ns/{pod}"));
        assert_eq!(twice, None, "{address} is allocated to {pod}");
    }

    async fn del(&mut self, machine: &Machine, pod: &str, ipam: &Value) {
        machine.del(pod, ipam).await;
        self.0.retain(|_, holder| *holder != format!("ns/{pod}"));
    }

    async fn published(&self, site: &Site) {
        site.shows("published", &self.0).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn there_and_back_without_an_effect_on_pods() {
    let site = Site::shared().await;
    let whereabouts = Whereabouts::new(&site, "node-w").await;
    let a = Machine::start(&site, "node-a").await;
    let b = Machine::start(&site, "node-b").await;
    let plain = json!({ "range": "10.9.0.0/24", "enable_overlapping_ranges": false });
    let mut sliced = plain.clone();
    sliced["fast_ipam"] = json!(true);
    let mut given = Given(BTreeMap::new());
    for n in 0..4 {
        given.add(&a, &format!("p{n}"), &plain).await;
        given.add(&b, &format!("q{n}"), &plain).await;
    }
    let old = whereabouts.add("w", &plain);
    given.note(&old, "w");

    // There: addresses of the plain pool are not allocated again.
    for n in 0..30 {
        given.add(&a, &format!("sa{n}"), &sliced).await;
        given.add(&b, &format!("sb{n}"), &sliced).await;
    }
    // A pod that got an address before still has it, by the new definition too.
    let (p1, _) = given.0.iter().find(|(_, pod)| *pod == "ns/p1").unwrap();
    let p1 = format!("{p1}/24");
    a.check("p1", &sliced, &p1).await.unwrap();
    let moved = a.add("sa1", &sliced).await;
    a.check("sa1", &sliced, &moved).await.unwrap();
    assert!(a.check("nobody", &sliced, &p1).await.is_err());
    given.del(&a, "p0", &sliced).await;
    given.del(&b, "q1", &sliced).await;
    given.published(&site).await;
    let in_plain = site.entries("10.9.0.0-24").await.unwrap();
    assert_eq!(in_plain.len(), 7, "{in_plain:?}");
    let claims = async || site.claims().await.len();
    assert!(claims().await >= 4);

    // Back: all that is held is in the plain pool, nothing else is left.
    given.add(&a, "back-a", &plain).await;
    assert_eq!(claims().await, 0);
    given.published(&site).await;
    let in_plain = site.entries("10.9.0.0-24").await.unwrap();
    assert_eq!(in_plain.len(), given.0.len());
    given.add(&b, "back-b", &plain).await;
    given.del(&b, "sb3", &plain).await;

    // Whereabouts alone continues.
    let fresh = whereabouts.add("w2", &plain);
    given.note(&fresh, "w2");
    whereabouts.run("DEL", "sa5", &plain);
    given.0.retain(|_, pod| pod != "ns/sa5");
    given.published(&site).await;
}

/// The plain pool was empty when the range was sliced first, and is not when it is sliced again.
#[tokio::test(flavor = "multi_thread")]
async fn addresses_that_returned_from_slices_are_not_allocated_by_slices_again() {
    let site = Site::shared().await;
    let (a, b) = (
        Machine::start(&site, "again-a").await,
        Machine::start(&site, "again-b").await,
    );
    let plain = json!({ "range": "10.67.0.0/26", "enable_overlapping_ranges": false });
    let mut sliced = plain.clone();
    sliced["fast_ipam"] = json!(true);
    sliced["slice_size"] = json!("/28");
    let mut given = Given(BTreeMap::new());
    for n in 0..6 {
        given.add(&a, &format!("a{n}"), &sliced).await;
        given.add(&b, &format!("b{n}"), &sliced).await;
    }
    given.add(&a, "back", &plain).await;
    for n in 0..20 {
        given.add(&a, &format!("again-a{n}"), &sliced).await;
        given.add(&b, &format!("again-b{n}"), &sliced).await;
    }
    given.published(&site).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whereabouts_in_slice_mode_and_berth_take_over_each_others_nodes() {
    let site = Site::shared().await;
    let slices = [("node-1", "10.10.0.0/26"), ("node-w", "10.10.0.64/26")];
    site.assign("blue", "10.10.0.0/24", "/26", &slices).await;
    let ipam = json!({ "range": "10.10.0.0/24", "network_name": "blue", "node_slice_size": "/26",
        "enable_overlapping_ranges": false });
    let berth = Machine::start(&site, "node-1").await;
    let whereabouts = Whereabouts::new(&site, "node-w").await;
    let mut given = Given(BTreeMap::new());
    given.add(&berth, "a", &ipam).await;
    let theirs = whereabouts.add("w", &ipam);
    given.note(&theirs, "w");
    given.published(&site).await;

    // Berth on whereabouts' node: what it allocated is held, and released by its container's DEL.
    let taken_over = Machine::start(&site, "node-w").await;
    given.add(&taken_over, "b", &ipam).await;
    given.del(&taken_over, "w", &ipam).await;
    given.published(&site).await;

    // Whereabouts on Berth's node, beside the agent: each reads what the other allocated.
    let beside = Whereabouts::new(&site, "node-1").await;
    let next = beside.add("c", &ipam);
    given.note(&next, "c");
    until("the agent holds it too", async || {
        let now = berth.try_add("probe", &ipam).await.unwrap().remove(0);
        berth.del("probe", &ipam).await;
        (bare(&now) != next).then_some(()).ok_or(now)
    })
    .await;
    given.add(&berth, "d", &ipam).await;
    given.published(&site).await;
}
