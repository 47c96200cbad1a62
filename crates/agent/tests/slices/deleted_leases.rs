//! Leases that are deleted by hand while pods have addresses of their slices (I1).

use std::collections::BTreeMap;
use std::time::Duration;

use berth_testkit::Cluster;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Api, DeleteParams, PostParams};
use serde_json::json;

use crate::allocated::Given;
use crate::cni_call::{bare, fast_cut};
use crate::test_cluster::World;
use crate::test_node::{Machine, Site, quick, until};
use crate::without_agent::call_node;

async fn delete_claims(site: &Site) {
    let claims = site.claim_api();
    for range in site.holders().await.into_keys() {
        let name = range.replace('/', "-");
        let params = DeleteParams::default();
        claims.delete(&name, &params).await.unwrap();
    }
}

/// The slices that pods have addresses of, and their nodes.
async fn in_use(site: &Site, given: &Given) -> BTreeMap<String, String> {
    let is_used = |slice: &str| {
        let slice: berth_core::Prefix = slice.parse().unwrap();
        let mut addresses = given.all().keys();
        addresses.any(|address| slice.contains(address.parse().unwrap()))
    };
    let mut holders = site.holders().await;
    holders.retain(|slice, _| is_used(slice));
    holders
}

async fn until_held_by(site: &Site, holders: &BTreeMap<String, String>) {
    until("every slice is its node's again", async || {
        let now = site.holders().await;
        let same = holders
            .iter()
            .all(|(range, node)| now.get(range) == Some(node));
        same.then_some(()).ok_or(format!("{now:?}"))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn berth_15_16_all_leases_are_deleted_while_pods_live() {
    let site = Site::shared().await;
    let ipam = fast_cut("10.145.0.0/26", "/29");
    let mut given = Given::default();
    let mut machines = Vec::new();
    for node in ["vanished-a", "vanished-b", "vanished-c", "vanished-d"] {
        let machine = Machine::start(&site, node).await;
        for n in 0..2 {
            let pod = format!("{node}-{n}");
            given.note(&machine.try_add(&pod, &ipam).await.unwrap(), &pod);
        }
        machines.push(machine);
    }
    let holders = in_use(&site, &given).await;
    delete_claims(&site).await;
    until_held_by(&site, &holders).await;
    // Another node takes what is left, and all of them fill what they have.
    machines.push(Machine::start(&site, "vanished-e").await);
    for machine in &machines {
        for n in 2..20 {
            let pod = format!("{}-{n}", machine.node);
            match machine.try_add(&pod, &ipam).await {
                Ok(ips) => given.note(&ips, &pod),
                Err((code, why)) => {
                    assert_eq!(code, 11, "{why}");
                    break;
                }
            }
        }
    }
}

/// Deletes a namespace as its controller does, makes it again, and returns then. Its Leases are gone.
async fn make_again(site: &Site, name: &str) {
    let namespaces: Api<Namespace> = Api::all(site.client.clone());
    let old = namespaces.get(name).await.unwrap();
    namespaces
        .delete(name, &DeleteParams::default())
        .await
        .unwrap();
    delete_claims(site).await;
    let ended = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name }, "spec": { "finalizers": [] } });
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("ended.json");
    std::fs::write(&file, ended.to_string()).unwrap();
    let path = format!("/api/v1/namespaces/{name}/finalize");
    let arguments = ["replace", "--raw", &path, "-f", file.to_str().unwrap()];
    let cluster = Cluster::shared().await;
    let replaced = cluster.kubectl(&arguments).unwrap();
    assert!(replaced.status.success(), "{replaced:?}");
    let new = json!({ "metadata": { "name": name, "labels": old.metadata.labels } });
    let new: Namespace = serde_json::from_value(new).unwrap();
    until("the namespace is gone", async || {
        let made = namespaces.create(&PostParams::default(), &new).await;
        made.map(drop).map_err(|error| error.to_string())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_namespace_of_the_leases_is_deleted_and_made_again() {
    let site = Site::shared().await;
    let ipam = fast_cut("10.168.0.0/26", "/29");
    let (mut given, mut machines) = (Given::default(), Vec::new());
    for node in ["respaced-a", "respaced-b", "respaced-c", "respaced-d"] {
        let machine = Machine::start(&site, node).await;
        for n in 0..2 {
            let pod = format!("{node}-{n}");
            given.note(&machine.try_add(&pod, &ipam).await.unwrap(), &pod);
        }
        machines.push(machine);
    }
    let holders = in_use(&site, &given).await;
    let pods = given.all().iter();
    let pods = pods.map(|(address, pod)| (address.clone(), format!("ns/{pod}")));
    site.shows("published", &pods.collect()).await;
    make_again(&site, &berth_api::claim::namespace(&site.namespace)).await;
    until_held_by(&site, &holders).await;
    for machine in &machines {
        for n in 2..9 {
            let pod = format!("{}-{n}", machine.node);
            let ips = until("an address", async || {
                let asked = machine.try_add(&pod, &ipam).await;
                asked.map_err(|refused| format!("{refused:?}"))
            });
            given.note(&ips.await, &pod);
        }
    }
}

/// No periodic read: the controller notices that a Lease is deleted, and notifies its node.
#[tokio::test(flavor = "multi_thread")]
async fn berth_15_16_the_controller_notifies_the_nodes_whose_leases_are_deleted() {
    let site = Site::shared().await;
    let world = World::start(&site).await;
    let ipam = fast_cut("10.158.0.0/26", "/29");
    let mut settings = quick();
    settings.look = Duration::from_secs(3600);
    let (mut machines, mut given) = (Vec::new(), Given::default());
    for node in ["unlooked-a", "unlooked-b"] {
        let machine = Machine::start_with(&site, node, settings.clone()).await;
        given.note(&[machine.add(node, &ipam).await], node);
        machines.push(machine);
    }
    let holders = in_use(&site, &given).await;
    assert_eq!(holders.len(), 2, "{holders:?}");
    // A published pool protects a slice from other claims before its node has noticed.
    let pods = given.all().iter();
    let pods = pods.map(|(address, pod)| (address.clone(), format!("ns/{pod}")));
    site.shows("published", &pods.collect()).await;
    delete_claims(&site).await;
    until_held_by(&site, &holders).await;
    world.stop().await;
}

/// With parts lent: the lender's claim is restored with its offers, the borrower's beside it.
#[tokio::test(flavor = "multi_thread")]
async fn berth_15_16_leases_of_slices_and_their_parts_are_deleted() {
    let site = Site::shared().await;
    let ipam = fast_cut("10.146.0.0/28", "/28");
    let lender = Machine::start(&site, "parts-lender").await;
    let borrower = Machine::start(&site, "parts-borrower").await;
    let mut given = Given::default();
    for (machine, pod) in [(&lender, "l0"), (&borrower, "b0")] {
        given.note(&machine.try_add(pod, &ipam).await.unwrap(), pod);
    }
    let holders = site.holders().await;
    assert_eq!(holders.len(), 2, "{holders:?}");
    delete_claims(&site).await;
    for machine in [&lender, &borrower] {
        call_node(&site, &machine.node).await;
    }
    until_held_by(&site, &holders).await;
    for machine in [&lender, &borrower] {
        for n in 1..14 {
            let pod = format!("{}-{n}", machine.node);
            match machine.try_add(&pod, &ipam).await {
                Ok(ips) => given.note(&ips, &pod),
                Err((code, why)) => {
                    assert_eq!(code, 11, "{why}");
                    break;
                }
            }
        }
    }
}

/// There is no other slice: pods that hold addresses keep them, others get what is free.
#[tokio::test(flavor = "multi_thread")]
async fn the_only_slice_is_claimed_again() {
    let site = Site::shared().await;
    let ipam = fast_cut("10.84.0.0/28", "/28");
    let machine = Machine::start(&site, "only-slot").await;
    let first = machine.add("first", &ipam).await;
    delete_claims(&site).await;
    call_node(&site, &machine.node).await;
    let second = machine.add("second", &ipam).await;
    assert_ne!(first, second);
    assert_eq!(machine.add("first", &ipam).await, first);
    let given = [(first, "ns/first"), (second, "ns/second")];
    let given = given.map(|(address, pod)| (bare(&address), pod.to_owned()));
    site.shows("published", &BTreeMap::from(given)).await;
    let events = site.node_events("only-slot").await;
    assert!(events.is_empty(), "nothing was lost: {events:?}");
}

/// A new node claims the slice before its owner has noticed that the Lease is gone.
#[tokio::test(flavor = "multi_thread")]
async fn berth_15_16_a_new_node_claims_before_the_owner_notices() {
    let site = Site::shared().await;
    let ipam = fast_cut("10.85.0.0/28", "/28");
    let mut settings = quick();
    settings.look = Duration::from_secs(3600);
    let owner = Machine::start_with(&site, "unheard-owner", settings).await;
    let mut given = Given::default();
    for pod in ["first", "second"] {
        given.note(&owner.try_add(pod, &ipam).await.unwrap(), pod);
    }
    let pods = given.all().iter();
    let pods = pods.map(|(address, pod)| (address.clone(), format!("ns/{pod}")));
    site.shows("published", &pods.collect()).await;
    delete_claims(&site).await;
    let fresh = Machine::start(&site, "unheard-fresh").await;
    let (code, why) = fresh.try_add("fresh-0", &ipam).await.unwrap_err();
    assert_eq!(code, 11, "{why}");
    assert_eq!(site.holders().await, BTreeMap::new(), "it is not taken");
    call_node(&site, &owner.node).await;
    let whole = BTreeMap::from([("10.85.0.0/28".to_owned(), owner.node.clone())]);
    until_held_by(&site, &whole).await;
    for (machine, pod) in [(&owner, "third"), (&fresh, "fresh-1")] {
        given.note(&machine.try_add(pod, &ipam).await.unwrap(), pod);
    }
}
