//! One object that can't be read withholds its own slice, and delays no other (I5).

use std::collections::BTreeMap;

use berth_api::whereabouts::IPPool;
use berth_core::Prefix;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};

use crate::allocated::Given;
use crate::cni_call::{bare, fast_cut};
use crate::test_cluster::World;
use crate::test_node::{Machine, Site, until};

async fn annotate(site: &Site, lease: &str, key: &str, value: &str) {
    let leases: Api<Lease> = Api::namespaced(
        site.client.clone(),
        &berth_api::claim::namespace(&site.namespace),
    );
    let patch = Patch::Merge(json!({ "metadata": { "annotations": { key: value } } }));
    let params = PatchParams::default();
    leases.patch(lease, &params, &patch).await.unwrap();
}

/// A Lease whose claim can't be parsed.
async fn break_claim(site: &Site, slice: Prefix) {
    let name = slice.to_string().replace('/', "-");
    annotate(site, &name, "berth.dev/slice", "{}").await;
}

/// An IPPool that can't be read.
async fn break_pool(site: &Site, pool: &str) {
    let broken: Value = json!({ "spec": { "range": "not a range" } });
    let (patch, params) = (Patch::Merge(broken), PatchParams::default());
    let pools = site.api::<IPPool>();
    pools.patch(pool, &params, &patch).await.unwrap();
}

/// Fills two slices of four addresses; what pods have, and the slices.
async fn two_slices(site: &Site, machine: &Machine, ipam: &Value) -> (Given, Vec<Prefix>) {
    let mut given = Given::default();
    let mut n = 0;
    loop {
        let slices: Vec<Prefix> = site
            .holders()
            .await
            .into_iter()
            .filter(|(_, node)| *node == machine.node)
            .map(|(slice, _)| slice.parse().unwrap())
            .collect();
        let used = |slice: &Prefix| {
            let mut all = given.all().keys();
            all.any(|address| slice.contains(address.parse().unwrap()))
        };
        let used: Vec<Prefix> = slices.into_iter().filter(used).collect();
        if used.len() >= 2 {
            return (given, used);
        }
        let pod = format!("p{n}");
        given.note(&machine.try_add(&pod, ipam).await.unwrap(), &pod);
        n += 1;
    }
}

/// Nothing is allocated from the withheld slice, and pods start all the same.
async fn serves_the_others(machine: &Machine, ipam: &Value, mut given: Given, withheld: Prefix) {
    for n in 0..6 {
        let pod = format!("more-{n}");
        let ips = machine.try_add(&pod, ipam).await.unwrap();
        let address = bare(&ips[0]).parse().unwrap();
        assert!(!withheld.contains(address), "{address} of {withheld}");
        given.note(&ips, &pod);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn berth_15_24_one_unreadable_lease_withholds_its_slice_alone() {
    let site = Site::shared().await;
    let ipam = fast_cut("10.86.0.0/24", "/29");
    let mut machine = Machine::start(&site, "odd-lease").await;
    let (given, slices) = two_slices(&site, &machine, &ipam).await;
    machine.stop().await;
    break_claim(&site, slices[0]).await;
    machine.run().await;
    serves_the_others(&machine, &ipam, given, slices[0]).await;
    // Another node is not delayed either, and does not get it.
    let other = Machine::start(&site, "odd-lease-other").await;
    let address = bare(&other.add("other", &ipam).await);
    assert!(!slices[0].contains(address.parse().unwrap()));
}

#[tokio::test(flavor = "multi_thread")]
async fn berth_15_24_one_unreadable_ippool_withholds_its_slice_alone() {
    let site = Site::shared().await;
    let ipam = fast_cut("10.87.0.0/24", "/29");
    let mut machine = Machine::start(&site, "odd-pool").await;
    let (given, slices) = two_slices(&site, &machine, &ipam).await;
    let pods = given.all().iter();
    let pods = pods.map(|(address, pod)| (address.clone(), format!("ns/{pod}")));
    site.shows("published", &pods.collect::<BTreeMap<_, _>>())
        .await;
    machine.stop().await;
    let name = slices[0].to_string().replace('/', "-");
    break_pool(&site, &format!("odd-pool-{name}")).await;
    machine.run().await;
    serves_the_others(&machine, &ipam, given, slices[0]).await;
}

/// The controller reclaims the other claims of a node that is gone.
#[tokio::test(flavor = "multi_thread")]
async fn berth_15_24_one_unreadable_lease_of_a_lost_node_delays_no_other() {
    let site = Site::shared().await;
    let world = World::start(&site).await;
    let ipam = fast_cut("10.88.0.0/24", "/29");
    let mut machine = Machine::start(&site, "odd-lost").await;
    let (given, slices) = two_slices(&site, &machine, &ipam).await;
    for pod in given.all().values() {
        machine.del(pod, &ipam).await;
    }
    site.shows("published", &BTreeMap::new()).await;
    machine.stop().await;
    break_claim(&site, slices[0]).await;
    let nodes: Api<Node> = Api::all(site.client.clone());
    let params = DeleteParams::default();
    nodes.delete("odd-lost", &params).await.unwrap();
    let leases: Api<Lease> = Api::namespaced(
        site.client.clone(),
        &berth_api::claim::namespace(&site.namespace),
    );
    let broken = slices[0].to_string().replace('/', "-");
    until("the others are taken back", async || {
        let all = leases
            .list(&kube::api::ListParams::default())
            .await
            .unwrap();
        let names = all.into_iter().filter_map(|lease| lease.metadata.name);
        let left: Vec<String> = names.collect();
        (left == [broken.clone()])
            .then_some(())
            .ok_or(format!("{left:?}"))
    })
    .await;
    world.stop().await;
}

/// An agent rewrites an annotation and a claim in which a newer version has fields of its own: they stay, and the
/// cluster's policies allow it (I7).
#[tokio::test(flavor = "multi_thread")]
async fn berth_15_24_an_agent_keeps_the_fields_of_a_newer_version() {
    let site = Site::shared().await;
    let newer = r#""newer":{"n":7}}"#;
    let mark = format!(r#"{{"state":"sliced","size":29,{newer}"#);
    site.create::<IPPool>(json!({
        "apiVersion": "whereabouts.cni.cncf.io/v1alpha1", "kind": "IPPool",
        "metadata": { "name": "10.91.0.0-24", "annotations": { "berth.dev/sliced": mark } },
        "spec": { "range": "10.91.0.0/24", "allocations": {} },
    }))
    .await;
    let ipam = fast_cut("10.91.0.0/24", "/29");
    let mut machine = Machine::start(&site, "keeps-fields").await;
    machine.add("first", &ipam).await;
    let pool = site.api::<IPPool>().get("10.91.0.0-24").await.unwrap();
    let now = pool.metadata.annotations.unwrap()["berth.dev/sliced"].clone();
    assert_ne!(now, mark, "the network allocates without reservations");
    assert!(now.ends_with(newer), "{now}");
    let leases: Api<Lease> = Api::namespaced(
        site.client.clone(),
        &berth_api::claim::namespace(&site.namespace),
    );
    let slice = site.holders().await.into_keys().next().unwrap();
    let name = slice.replace('/', "-");
    let words = async || {
        let annotations = leases.get(&name).await.unwrap().metadata.annotations;
        annotations.unwrap()["berth.dev/slice"].clone()
    };
    let planted = words().await.replace('}', &format!(",{newer}"));
    annotate(&site, &name, "berth.dev/slice", &planted).await;
    // A start that finds a claim of its own without a file writes it.
    machine.stop().await;
    machine.lose_ledger();
    let written = |lease: Lease| lease.metadata.annotations.unwrap()["berth.dev/file"].clone();
    let before = written(leases.get(&name).await.unwrap());
    machine.run().await;
    until("the claim is taken over", async || {
        let now = written(leases.get(&name).await.unwrap());
        (now != before).then_some(()).ok_or(now)
    })
    .await;
    assert!(words().await.ends_with(newer), "{}", words().await);
}
