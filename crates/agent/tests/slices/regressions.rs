//! Failures that others had with blocks of addresses, under the names of their issues; docs/regressions.md lists all of
//! them.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::whereabouts::IPPool;
use berth_testkit::Cluster;
use futures::future::join_all;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::cni_call::{bare, fast_cut};
use crate::test_cluster::World;
use crate::test_node::{Machine, Site, until};

/// A node's list of addresses was compared with another view of it, which was outdated and had as many addresses;
/// what was missing there was released while pods had it, and allocated again. Here what is published is a view: the
/// node's own file is the truth.
#[tokio::test(flavor = "multi_thread")]
async fn aws_3019_an_outdated_view_releases_nothing_that_is_in_use() {
    let site = Site::shared().await;
    let whole = "10.110.0.0/29";
    let ipam = fast_cut(whole, "/29");
    let mut machine = Machine::start(&site, "viewed").await;
    let mut given = BTreeMap::new();
    for pod in ["a", "b"] {
        given.insert(bare(&machine.add(pod, &ipam).await), format!("ns/{pod}"));
    }
    site.shows("published", &given).await;
    let pool = "viewed-10.110.0.0-29";
    let old = |pod: &str| json!({ "id": pod, "podref": format!("ns/{pod}"), "ifname": "net1" });
    // As many entries as there are, and none of those.
    let view = json!({ "spec": { "allocations": { "1": null, "2": null, "5": old("x"), "6": old("y") } } });
    let pools = site.api::<IPPool>();
    let grow_old = async || {
        let params = PatchParams::default();
        let patch = Patch::Merge(&view);
        pools.patch(pool, &params, &patch).await.unwrap();
    };
    grow_old().await;
    let shown = site.entries(pool).await.unwrap();
    assert_eq!(shown.keys().collect::<Vec<_>>(), ["5", "6"]);
    for pod in ["c", "d"] {
        let address = bare(&machine.add(pod, &ipam).await);
        let twice = given.insert(address.clone(), format!("ns/{pod}"));
        assert_eq!(twice, None, "{address}");
        // An agent that starts has nothing but its file and that view.
        machine.stop().await;
        grow_old().await;
        machine.run().await;
    }
    for (pod, address) in [("a", "10.110.0.1"), ("b", "10.110.0.2")] {
        assert_eq!(bare(&machine.add(pod, &ipam).await), address);
    }
    until("what is in use is shown again", async || {
        let now: BTreeSet<String> = site.published().await.into_values().collect();
        let used = given.values().all(|pod| now.contains(pod));
        used.then_some(()).ok_or(format!("{now:?}"))
    })
    .await;
}

/// The agent was restarted, DEL was its first call, and it did not know the pod yet. Here a node's slices are open
/// before its socket is, and a release is published.
#[tokio::test(flavor = "multi_thread")]
async fn antrea_3384_an_agent_that_starts_releases_addresses_of_its_slices() {
    let site = Site::shared().await;
    let ipam = fast_cut("10.111.0.0/28", "/28");
    let mut machine = Machine::start(&site, "begins").await;
    let mut given = BTreeMap::new();
    for n in 0..8 {
        let pod = format!("p{n}");
        given.insert(bare(&machine.add(&pod, &ipam).await), format!("ns/{pod}"));
    }
    site.shows("published", &given).await;
    machine.stop().await;
    machine.run().await;
    let (machine, ipam) = (&machine, &ipam);
    join_all((0..8).map(|n| async move { machine.del(&format!("p{n}"), ipam).await })).await;
    site.shows("nothing is left", &BTreeMap::new()).await;
    assert_eq!(machine.add("next", ipam).await, "10.111.0.1/28");
}

/// A hundred pods of eight networks on three nodes, each with a /26 of a /24 of each: half of the pods never started.
/// Here all of them do, at once, and each has an address of every network.
#[tokio::test(flavor = "multi_thread")]
async fn whereabouts_558_a_hundred_pods_of_eight_sliced_networks() {
    let cluster = Cluster::start().await.unwrap();
    let site = Site::of(&cluster).await;
    let world = World::start(&site).await;
    let networks: Vec<Value> = (1..=8)
        .map(|n| {
            json!({ "range": format!("10.12{n}.0.0/24"), "node_slice_size": "/26",
                "network_name": format!("net-{n}") })
        })
        .collect();
    for (n, ipam) in networks.iter().enumerate() {
        world.define(&format!("range-{n}"), ipam).await;
    }
    let mut machines = Vec::new();
    for node in ["one", "two", "three"] {
        machines.push(Machine::start(&site, node).await);
    }
    // As the runtime does it: network after network, each until it succeeds.
    let starts = (0..100).map(|n| {
        let (machine, networks) = (&machines[n % 3], &networks);
        async move {
            let pod = format!("p{n}");
            let mut given = Vec::new();
            for ipam in networks {
                let address = until("an address is allocated", async || {
                    let got = machine.try_add(&pod, ipam).await;
                    got.map_err(|refused| format!("{refused:?}"))
                });
                given.push(bare(&address.await[0]));
            }
            given
        }
    });
    let given: Vec<String> = join_all(starts).await.into_iter().flatten().collect();
    let once: BTreeSet<&String> = given.iter().collect();
    assert_eq!((given.len(), once.len()), (800, 800));
    for n in 1..=8 {
        let of = format!("10.12{n}.0.");
        let count = given.iter().filter(|address| address.starts_with(&of));
        assert_eq!(count.count(), 100, "{of}");
    }
    world.stop().await;
}
