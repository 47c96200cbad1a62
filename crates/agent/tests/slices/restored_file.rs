//! Agents whose file is older than what they have allocated: a restored copy of the file or of its disk (I1).

use std::collections::BTreeMap;

use berth_api::whereabouts::IPPool;
use berth_testkit::{Cluster, Part};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};

use crate::allocated::Given;
use crate::cni_call::{bare, fast_cut};
use crate::lost_file::run_pod;
use crate::test_node::{Copied, Machine, Site, until};

/// Pods that were started before the copy, and after it.
const BEFORE: [&str; 2] = ["a", "b"];
const SINCE: [&str; 4] = ["c", "d", "e", "f"];

/// The same call for a pod that is there as an object, as every pod is.
async fn add(site: &Site, machine: &Machine, pod: &str, ipam: &Value) -> Vec<String> {
    run_pod(site, pod, &machine.node, &[]).await;
    let given = machine.try_add_in(&site.namespace, pod, ipam).await;
    given.unwrap()
}

async fn end(site: &Site, machine: &Machine, pod: &str, ipam: &Value) {
    let answer = machine.call_in(&site.namespace, "DEL", pod, ipam).await;
    assert_eq!((answer.exit, answer.stdout.as_str()), (0, ""));
    let at_once = DeleteParams::default().grace_period(0);
    site.api::<Pod>().delete(pod, &at_once).await.unwrap();
}

/// A node whose file was copied, which has continued since, and which is stopped: the copy, and what is allocated.
async fn run_on(site: &Site, machine: &mut Machine, ipam: &Value) -> (Copied, Given) {
    let mut given = Given::default();
    for pod in BEFORE {
        given.note(&add(site, machine, pod, ipam).await, pod);
    }
    machine.stop().await;
    let copied = machine.copy_ledger();
    machine.run().await;
    // One ends, and another gets its address.
    end(site, machine, "a", ipam).await;
    given.forget("a");
    for pod in SINCE {
        given.note(&add(site, machine, pod, ipam).await, pod);
    }
    site.shows("published", &shown(site, &given)).await;
    machine.stop().await;
    (copied, given)
}

fn shown(site: &Site, given: &Given) -> BTreeMap<String, String> {
    let all = given.all().iter();
    all.map(|(address, pod)| (address.clone(), format!("{}/{pod}", site.namespace)))
        .collect()
}

/// Nothing that is allocated is allocated again, from the first moment on; and each container gets its own address
/// again (I3).
async fn allocates_nothing_again(
    site: &Site,
    machine: &mut Machine,
    ipam: &Value,
    mut given: Given,
) {
    let had = given.all().clone();
    machine.run().await;
    let machine = &*machine;
    let more = ["g", "h", "i", "j"];
    let all = more.map(|pod| async move { (pod, add(site, machine, pod, ipam).await) });
    for (pod, ips) in futures::future::join_all(all).await {
        given.note(&ips, pod);
    }
    for (address, pod) in had {
        let again = machine.add_in(&site.namespace, &pod, ipam).await;
        assert_eq!(bare(&again), address, "{pod}");
    }
    // The copy's entry of a pod that is gone does not release an address that another pod has since.
    let late = machine.call_in(&site.namespace, "DEL", "a", ipam).await;
    assert_eq!(late.exit, 0);
    for n in 0..4 {
        let pod = format!("last-{n}");
        given.note(&add(site, machine, &pod, ipam).await, &pod);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn berth_15_14_an_older_file_of_claimed_slices_allocates_nothing_again() {
    let site = Site::shared().await;
    let ipam = fast_cut("10.140.0.0/28", "/28");
    let mut machine = Machine::start(&site, "older-claimed").await;
    let (copied, given) = run_on(&site, &mut machine, &ipam).await;
    machine.put_back(&copied);
    allocates_nothing_again(&site, &mut machine, &ipam, given).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn berth_15_14_an_older_file_of_assigned_slices_allocates_nothing_again() {
    let site = Site::shared().await;
    let slices = [("older-assigned", "10.141.0.0/28")];
    site.assign("net", "10.141.0.0/24", "/28", &slices).await;
    let ipam = json!({ "range": "10.141.0.0/24", "node_slice_size": "/28", "enable_overlapping_ranges": false });
    let mut machine = Machine::start(&site, "older-assigned").await;
    let (copied, given) = run_on(&site, &mut machine, &ipam).await;
    machine.put_back(&copied);
    allocates_nothing_again(&site, &mut machine, &ipam, given).await;
}

/// No agent runs yet, and the plugin's own engine has the older file.
#[tokio::test(flavor = "multi_thread")]
async fn berth_15_14_an_older_file_without_an_agent_allocates_nothing_again() {
    let site = Site::shared().await;
    let ipam = fast_cut("10.179.0.0/28", "/28");
    let mut machine = Machine::start(&site, "older-engine").await;
    let (copied, mut given) = run_on(&site, &mut machine, &ipam).await;
    machine.put_back(&copied);
    for pod in ["g", "h", "i", "j"] {
        given.note(&machine.add_alone(pod, &ipam).await.unwrap(), pod);
    }
}

/// The agent ended before it could publish: the runtime's own result cache has the address.
#[tokio::test(flavor = "multi_thread")]
async fn berth_15_14_what_was_not_published_is_read_from_the_result_cache() {
    let site = Site::shared().await;
    let ipam = fast_cut("10.142.0.0/28", "/28");
    let mut machine = Machine::start(&site, "older-cached").await;
    let (copied, given) = run_on(&site, &mut machine, &ipam).await;
    let pools = site.api::<IPPool>();
    let mut entries = serde_json::Map::new();
    for (address, pod) in given.all() {
        machine.cache_result(&site.namespace, pod, &format!("{address}/28"));
        let offset = address.rsplit('.').next().unwrap();
        entries.insert(offset.to_owned(), Value::Null);
    }
    let patch = Patch::Merge(json!({ "spec": { "allocations": entries } }));
    let params = PatchParams::default();
    let pool = "older-cached-10.142.0.0-28";
    pools.patch(pool, &params, &patch).await.unwrap();
    machine.put_back(&copied);
    allocates_nothing_again(&site, &mut machine, &ipam, given).await;
}

/// The same without the API server: the node then allocates by its file and the cache.
#[tokio::test(flavor = "multi_thread")]
async fn berth_15_14_an_older_file_without_the_api_server() {
    let cluster = Cluster::start().await.unwrap();
    let site = Site::of(&cluster).await;
    let ipam = fast_cut("10.149.0.0/28", "/28");
    let mut machine = Machine::start(&site, "older-alone").await;
    let (copied, mut given) = run_on(&site, &mut machine, &ipam).await;
    for (address, pod) in given.all() {
        machine.cache_result(&site.namespace, pod, &format!("{address}/28"));
    }
    machine.put_back(&copied);
    cluster.pause(Part::ApiServer).unwrap();
    machine.run().await;
    for n in 0..4 {
        let pod = format!("alone-{n}");
        let got = machine.try_add_in(&site.namespace, &pod, &ipam).await;
        given.note(&got.unwrap(), &pod);
    }
}

/// The file is older than a loan, and than the end of a pod whose address was lent.
#[tokio::test(flavor = "multi_thread")]
async fn berth_15_14_a_file_older_than_a_loan_allocates_nothing_of_the_part() {
    let site = Site::shared().await;
    let ipam = fast_cut("10.143.0.0/28", "/28");
    let mut lender = Machine::start(&site, "older-lender").await;
    let borrower = Machine::start(&site, "older-borrower").await;
    let mut given = Given::default();
    // All of it, so that what is lent later was in use then.
    for n in 0..14 {
        let pod = format!("p{n}");
        given.note(&lender.try_add(&pod, &ipam).await.unwrap(), &pod);
    }
    lender.stop().await;
    let copied = lender.copy_ledger();
    lender.run().await;
    for n in 4..14 {
        let pod = format!("p{n}");
        lender.del(&pod, &ipam).await;
        given.forget(&pod);
    }
    for n in 0..2 {
        let pod = format!("b{n}");
        given.note(&borrower.try_add(&pod, &ipam).await.unwrap(), &pod);
    }
    lender.stop().await;
    lender.put_back(&copied);
    lender.run().await;
    // Those pods are gone: by the file, their addresses are free.
    for n in 4..14 {
        lender.del(&format!("p{n}"), &ipam).await;
    }
    for (machine, name) in [(&lender, "l"), (&borrower, "c")] {
        for n in 0..14 {
            let pod = format!("{name}{n}");
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

/// The same without the API server: only what was recorded in this boot shows the loan.
#[tokio::test(flavor = "multi_thread")]
async fn berth_15_14_a_file_older_than_a_loan_waits_for_the_api_server() {
    let cluster = Cluster::start().await.unwrap();
    let site = Site::of(&cluster).await;
    let ipam = fast_cut("10.147.0.0/28", "/28");
    let mut lender = Machine::start(&site, "alone-lender").await;
    let borrower = Machine::start(&site, "alone-borrower").await;
    let mut given = Given::default();
    given.note(&lender.try_add("l0", &ipam).await.unwrap(), "l0");
    lender.stop().await;
    let copied = lender.copy_ledger();
    lender.run().await;
    given.note(&borrower.try_add("b0", &ipam).await.unwrap(), "b0");
    lender.stop().await;
    let current = lender.copy_ledger();
    cluster.pause(Part::ApiServer).unwrap();
    lender.put_back(&copied);
    lender.run().await;
    let (code, why) = lender.try_add("l1", &ipam).await.unwrap_err();
    assert_eq!(code, 11, "{why}");
    // The file that knows of the loan serves.
    lender.stop().await;
    lender.put_back(&current);
    lender.run().await;
    for n in 2..14 {
        let pod = format!("l{n}");
        match lender.try_add(&pod, &ipam).await {
            Ok(ips) => given.note(&ips, &pod),
            Err((code, why)) => {
                assert!(n > 2, "{code}: {why}");
                break;
            }
        }
    }
}

/// What another program wrote while the agent was down stays although the file is current (I7).
#[tokio::test(flavor = "multi_thread")]
async fn an_entry_of_another_program_is_held_after_a_restart() {
    let site = Site::shared().await;
    let ipam = fast_cut("10.144.0.0/29", "/29");
    let mut machine = Machine::start(&site, "older-foreign").await;
    let first = bare(&machine.add("first", &ipam).await);
    let mut shown = BTreeMap::from([(first, "ns/first".to_owned())]);
    site.shows("published", &shown).await;
    machine.stop().await;
    let pools = site.api::<IPPool>();
    let theirs = json!({ "id": "x", "podref": "ns/theirs", "ifname": "net1" });
    let patch = Patch::Merge(json!({ "spec": { "allocations": { "2": theirs } } }));
    let params = PatchParams::default();
    let pool = "older-foreign-10.144.0.0-29";
    pools.patch(pool, &params, &patch).await.unwrap();
    machine.run().await;
    let second = bare(&machine.add("second", &ipam).await);
    assert_ne!(second, "10.144.0.2");
    shown.insert(second, "ns/second".to_owned());
    shown.insert("10.144.0.2".to_owned(), "ns/theirs".to_owned());
    until("all are shown", async || {
        let now = site.published().await;
        (now == shown).then_some(()).ok_or(format!("{now:?}"))
    })
    .await;
}
