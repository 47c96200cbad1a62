//! etcd is restored from a backup that is older than claims of slices (I1).

use std::collections::BTreeMap;

use berth_testkit::Cluster;
use serde_json::Value;

use crate::allocated::Given;
use crate::cni_call::fast_cut;
use crate::test_node::{Machine, Site, until};

/// The slices that pods have addresses of, and their nodes.
fn in_use(given: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let slice = |address: &String| {
        let address = address.parse().unwrap();
        berth_core::Prefix::containing(address, 29)
            .unwrap()
            .to_string()
    };
    let node = |pod: &String| pod.rsplit_once('-').unwrap().0.to_owned();
    let of = |(address, pod)| (slice(address), node(pod));
    given.iter().map(of).collect()
}

async fn add(machine: &Machine, given: &mut Given, n: usize, ipam: &Value) {
    let pod = format!("{}-{n}", machine.node);
    let ips = until("an address", async || {
        let asked = machine.try_add(&pod, ipam).await;
        asked.map_err(|refused| format!("{refused:?}"))
    });
    given.note(&ips.await, &pod);
}

#[tokio::test(flavor = "multi_thread")]
async fn berth_20_3_an_older_etcd_has_every_node_claim_its_slices_again() {
    let cluster = Cluster::start().await.unwrap();
    let site = Site::of(&cluster).await;
    let (known, later) = (
        fast_cut("10.161.0.0/24", "/29"),
        fast_cut("10.162.0.0/26", "/29"),
    );
    let mut given = [Given::default(), Given::default()];
    let mut machines = Vec::new();
    for node in ["older-a", "older-b", "older-c", "older-d"] {
        let machine = Machine::start(&site, node).await;
        add(&machine, &mut given[0], 0, &known).await;
        machines.push(machine);
    }
    let scratch = tempfile::tempdir().unwrap();
    let backup = scratch.path().join("etcd");
    cluster.back_up(&backup).await.unwrap();
    // Second slices of a range that the backup knows, and a range that it does not.
    for machine in &machines {
        for n in 1..9 {
            add(machine, &mut given[0], n, &known).await;
        }
        add(machine, &mut given[1], 0, &later).await;
    }
    let holders = [in_use(given[0].all()), in_use(given[1].all())];
    cluster.restore(&backup).await.unwrap();
    // At once: as many as there are, of slices that others have not claimed again yet.
    for n in 9..12 {
        for machine in &machines {
            add(machine, &mut given[1], n, &later).await;
        }
    }
    for machine in &machines {
        for n in 9..18 {
            add(machine, &mut given[0], n, &known).await;
        }
    }
    until("every slice is its node's again", async || {
        let now = site.holders().await;
        let mut expected = holders.iter().flatten();
        let same = expected.all(|(slice, node)| now.get(slice) == Some(node));
        same.then_some(())
            .ok_or(format!("{now:?} instead of {holders:?}"))
    })
    .await;
    let all: BTreeMap<String, String> = given
        .iter()
        .flat_map(|given| given.all())
        .map(|(address, pod)| (address.clone(), format!("ns/{pod}")))
        .collect();
    site.shows("published again", &all).await;
}
