//! Slices that nodes claim by themselves.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use berth_api::berth::SliceCall;
use berth_api::whereabouts::IPPool;
use futures::future::join_all;
use kube::api::{DeleteParams, ListParams};
use serde_json::{Value, json};

use crate::cni_call::{bare, fast, fast_cut};
use crate::test_cluster::World;
use crate::test_node::{Machine, Site, quick, until};
use crate::without_agent::claim;

async fn three(site: &Site) -> Vec<Machine> {
    let mut machines = Vec::new();
    for node in ["node-a", "node-b", "node-c"] {
        machines.push(Machine::start(site, node).await);
    }
    machines
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_claim_refill_and_return() {
    let site = Site::shared().await;
    let ipam = fast("10.5.0.0/24");
    let mut settings = quick();
    settings.idle = Duration::from_millis(400);
    settings.look = Duration::from_millis(300);
    let mut machines = Vec::new();
    for node in ["node-a", "node-b", "node-c"] {
        machines.push(Machine::start_with(&site, node, settings.clone()).await);
    }
    let adds = machines.iter().flat_map(|machine| {
        let ipam = &ipam;
        (0..14).map(move |n| async move {
            let pod = format!("{}-{n}", machine.node);
            (bare(&machine.add(&pod, ipam).await), format!("ns/{pod}"))
        })
    });
    let answers = join_all(adds).await;
    let given: BTreeMap<String, String> = answers.iter().cloned().collect();
    assert_eq!(given.len(), 42, "no address twice");
    site.shows("published", &given).await;
    // 14 of 16: a second slice is there before it is needed.
    until("refilled", async || {
        let now = site.holders().await;
        let of = |node: &str| now.values().filter(|holder| *holder == node).count();
        let enough = ["node-a", "node-b", "node-c"]
            .iter()
            .all(|node| of(node) >= 2);
        enough.then_some(()).ok_or(format!("{now:?}"))
    })
    .await;
    for range in site.holders().await.into_keys() {
        assert!(range.ends_with("/28"), "{range}");
    }
    for machine in &machines {
        for n in 0..14 {
            machine.del(&format!("{}-{n}", machine.node), &ipam).await;
        }
    }
    until("returned", async || {
        let now = site.holders().await;
        now.is_empty().then_some(()).ok_or(format!("{now:?}"))
    })
    .await;
    site.shows("published", &BTreeMap::new()).await;
    machines[0].add("again", &ipam).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn with_as_many_addresses_as_pods_every_pod_gets_one() {
    let site = Site::shared().await;
    let machines = three(&site).await;
    let ipam = fast_cut("10.6.0.0/27", "/28");
    let adds = (0..30).map(|n| {
        let (machine, ipam) = (&machines[n % 3], &ipam);
        async move {
            let pod = format!("p{n}");
            (bare(&machine.add(&pod, ipam).await), format!("ns/{pod}"))
        }
    });
    let mut given: BTreeMap<String, String> = BTreeMap::new();
    for (address, pod) in join_all(adds).await {
        let twice = given.insert(address.clone(), pod);
        assert_eq!(twice, None, "{address}");
    }
    assert_eq!(given.len(), 30);
    site.shows("published", &given).await;
    let (code, why) = machines[1]
        .try_add("one-too-many", &ipam)
        .await
        .unwrap_err();
    assert_eq!(code, 11, "{why}");
    // What one node releases, another gets, whichever slice it was cut from.
    for n in (0..30).step_by(3) {
        machines[0].del(&format!("p{n}"), &ipam).await;
        given.retain(|_, pod| *pod != format!("ns/p{n}"));
    }
    for n in 0..10 {
        let pod = format!("q{n}");
        let address = bare(&machines[1 + n % 2].add(&pod, &ipam).await);
        assert_eq!(
            given.insert(address.clone(), format!("ns/{pod}")),
            None,
            "{address}"
        );
    }
    site.shows("published", &given).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_ledger_is_rebuilt_from_what_is_published() {
    let site = Site::shared().await;
    let ipam = fast("10.7.0.0/24");
    let mut machine = Machine::start(&site, "node-a").await;
    let mut given = BTreeMap::new();
    for n in 0..5 {
        let pod = format!("p{n}");
        given.insert(bare(&machine.add(&pod, &ipam).await), format!("ns/{pod}"));
    }
    site.shows("published", &given).await;
    let before = site.holders().await;
    machine.stop().await;
    machine.lose_ledger();
    machine.run().await;
    for n in 0..8 {
        let pod = format!("p{n}");
        let address = bare(&machine.add(&pod, &ipam).await);
        let held = given.insert(address, format!("ns/{pod}"));
        assert!(
            n >= 5 && held.is_none() || held == Some(format!("ns/{pod}")),
            "{pod}: {held:?}"
        );
    }
    let slices: BTreeSet<String> = before.into_keys().collect();
    let now: BTreeSet<String> = site.holders().await.into_keys().collect();
    assert!(now.is_superset(&slices));
    site.shows("published", &given).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_claim_is_not_allocated_from() {
    let site = Site::shared().await;
    let ipam = fast("10.8.0.0/24");
    let machine = Machine::start(&site, "node-a").await;
    let first: Value = json!(machine.add("a", &ipam).await);
    let range = site.holders().await.into_keys().next().unwrap();
    let name = range.replace('/', "-");
    site.claim_api()
        .delete(&name, &DeleteParams::default())
        .await
        .unwrap();
    // A process that takes a claim notifies its node.
    site.create::<SliceCall>(json!({ "metadata": { "name": "node-a" }, "spec": { "call": "1" } }))
        .await;
    let mut n = 0;
    until("the node goes elsewhere", async || {
        n += 1;
        let given = machine.add(&format!("p{n}"), &ipam).await;
        let slice: berth_core::Prefix = range.parse().unwrap();
        let inside = slice.contains(bare(&given).parse().unwrap());
        (!inside).then_some(()).ok_or(given)
    })
    .await;
    assert_eq!(
        json!(machine.add("a", &ipam).await),
        first,
        "a pod keeps what it has"
    );
}

/// A controller reclaims the claims of nodes that do not exist: under a name without a Node nothing is claimed, and
/// no earlier claim is resumed.
#[tokio::test(flavor = "multi_thread")]
async fn without_a_node_object_nothing_is_claimed() {
    let site = Site::shared().await;
    let left = "10.88.0.0/28";
    claim(&site, left, left, "nameless", 1, json!([])).await;
    let machine = Machine::start(&site, "nameless").await;
    let nodes: kube::Api<k8s_openapi::api::core::v1::Node> = kube::Api::all(site.client.clone());
    let deleted = nodes.delete("nameless", &DeleteParams::default()).await;
    deleted.unwrap();
    for ipam in [fast("10.87.0.0/24"), fast_cut(left, "/28")] {
        let (code, why) = machine.try_add("a", &ipam).await.unwrap_err();
        assert_eq!(code, 11);
        assert!(why.contains("no Node nameless"), "{why}");
        assert!(why.contains("--node") && why.contains("NODENAME"), "{why}");
    }
    let holders = site.holders().await;
    assert_eq!(holders.into_keys().collect::<Vec<_>>(), [left]);
    site.register("nameless").await;
    machine.add("a", &fast("10.87.0.0/24")).await;
    machine.add("a", &fast_cut(left, "/28")).await;
}

/// What a controller leaves of a node that is gone while other nodes have parts of its slice
/// (docs/decisions/0006-slices.md, "Loss").
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_nodes_claim_is_taken_over_without_the_parts_that_are_others() {
    let site = Site::shared().await;
    let (whole, part) = ("10.14.0.0/28", "10.14.0.8/29");
    let lent = json!([{ "range": part, "node": "other" }]);
    claim(&site, whole, whole, "", 4, lent).await;
    claim(&site, whole, part, "other", 1, json!([])).await;
    let mut settings = quick();
    settings.donor_wait = Duration::from_millis(300);
    let machine = Machine::start_with(&site, "heir", settings).await;
    let ipam = fast_cut(whole, "/28");
    let mut given = BTreeSet::new();
    // .0 is the network's own.
    for n in 0..7 {
        given.insert(bare(&machine.add(&format!("p{n}"), &ipam).await));
    }
    let expected: BTreeSet<String> = (1..8).map(|n| format!("10.14.0.{n}")).collect();
    assert_eq!(given, expected);
    let taken = site.claim_api().get("10.14.0.0-28").await.unwrap();
    assert_eq!((taken.spec.node.as_str(), taken.spec.epoch), ("heir", 5));
    assert_eq!(taken.spec.offers.len(), 1);
    let (code, why) = machine.try_add("one-too-many", &ipam).await.unwrap_err();
    assert_eq!(code, 11, "{why}");
}

/// More addresses than could be set aside one by one.
#[tokio::test(flavor = "multi_thread")]
async fn large_slices_are_split_and_returned() {
    let site = Site::shared().await;
    let mut settings = quick();
    settings.idle = Duration::from_millis(400);
    settings.look = Duration::from_millis(300);
    let mut machines = Vec::new();
    for node in ["large-a", "large-b"] {
        machines.push(Machine::start_with(&site, node, settings.clone()).await);
    }
    for (range, size) in [("10.16.0.0/20", "/20"), ("fd00:16::/112", "/112")] {
        let ipam = fast_cut(range, size);
        let mut given = BTreeMap::new();
        for (n, machine) in [&machines[0], &machines[1], &machines[0], &machines[1]]
            .into_iter()
            .enumerate()
        {
            let pod = format!("p{n}");
            let twice = given.insert(bare(&machine.add(&pod, &ipam).await), format!("ns/{pod}"));
            assert_eq!(twice, None);
        }
        site.shows("published", &given).await;
        assert_eq!(
            site.holders().await.len(),
            2,
            "the second has a part of the first's"
        );
        for (n, machine) in [&machines[0], &machines[1], &machines[0], &machines[1]]
            .into_iter()
            .enumerate()
        {
            machine.del(&format!("p{n}"), &ipam).await;
        }
        until("returned", async || {
            let now = site.holders().await;
            now.is_empty().then_some(()).ok_or(format!("{now:?}"))
        })
        .await;
        site.shows("published", &BTreeMap::new()).await;
    }
}

/// A node labels the pool, a controller deletes it; claimed again, the slice is published again.
#[tokio::test(flavor = "multi_thread")]
async fn the_pool_of_a_returned_slice_is_deleted() {
    let site = Site::shared().await;
    let world = World::start(&site).await;
    let mut settings = quick();
    settings.idle = Duration::from_millis(400);
    settings.look = Duration::from_millis(300);
    let machine = Machine::start_with(&site, "leaver", settings).await;
    let ipam = fast("10.22.0.0/24");
    for _ in 0..2 {
        let given = bare(&machine.add("a", &ipam).await);
        site.shows("published", &BTreeMap::from([(given, "ns/a".to_owned())]))
            .await;
        machine.del("a", &ipam).await;
        until("nothing but the plain pool is left", async || {
            let pools = site.api::<IPPool>().list(&ListParams::default()).await;
            let names = pools.unwrap().into_iter().map(|pool| pool.metadata.name);
            let names: Vec<String> = names.flatten().collect();
            (names == ["10.22.0.0-24"])
                .then_some(())
                .ok_or(format!("{names:?}"))
        })
        .await;
    }
    world.stop().await;
}
