//! STATUS only reads: it changes nothing in the cluster.

use std::collections::BTreeMap;
use std::time::Duration;

use berth_api::whereabouts::IPPool;
use berth_testkit::Fate;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams};
use serde_json::{Value, json};

use crate::cni_call::{bare, fast, fast_cut};
use crate::lost_file::run_pod;
use crate::test_node::{Machine, Site, quick, until};
use crate::without_agent::relay_of;

async fn creates_nothing(site: &Site, node: &str, ipam: &Value) {
    let machine = Machine::start(site, node).await;
    let pools = async || {
        let pools = site.api::<IPPool>().list(&ListParams::default()).await;
        pools.unwrap().items.len()
    };
    let answer = machine.call("STATUS", "none", "none", ipam).await;
    assert_eq!(answer.exit, 0, "{}", answer.stdout);
    assert_eq!((site.claims().await.len(), pools().await), (0, 0));
    // And an ADD after it is served.
    machine.add("p", ipam).await;
    let answer = machine.call("STATUS", "none", "none", ipam).await;
    assert_eq!(answer.exit, 0, "{}", answer.stdout);
}

#[tokio::test(flavor = "multi_thread")]
async fn berth_15_18_status_of_a_fresh_node_claims_nothing() {
    let site = Site::shared().await;
    creates_nothing(&site, "asked-claimed", &fast("10.153.0.0/24")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn berth_15_18_status_of_an_assigned_network_writes_nothing() {
    let site = Site::shared().await;
    let slices = [("asked-assigned", "10.154.0.0/26")];
    site.assign("net", "10.154.0.0/24", "/26", &slices).await;
    let ipam = json!({ "range": "10.154.0.0/24", "node_slice_size": "/26", "enable_overlapping_ranges": false });
    creates_nothing(&site, "asked-assigned", &ipam).await;
    // A node without a slice gets that error.
    let mut settings = quick();
    settings.assign_wait = Duration::from_millis(100);
    let other = Machine::start_with(&site, "asked-in-vain", settings).await;
    let answer = other.call("STATUS", "none", "none", &ipam).await;
    let said: Value = serde_json::from_str(&answer.stdout).unwrap();
    assert_eq!((answer.exit, &said["code"]), (1, &json!(50)), "{said}");
}

/// Entries of the plain pool are judged there: a pod that ends costs this node no request for them.
#[tokio::test(flavor = "multi_thread")]
async fn berth_15_18_imported_entries_cost_no_requests() {
    let site = Site::shared().await;
    let mut entries = serde_json::Map::new();
    for n in 1..31 {
        let held = json!({ "id": format!("c{n}"), "podref": format!("elsewhere/imported-{n}"), "ifname": "net1" });
        entries.insert(n.to_string(), held);
    }
    site.create::<IPPool>(json!({
        "apiVersion": "whereabouts.cni.cncf.io/v1alpha1", "kind": "IPPool",
        "metadata": { "name": "10.155.0.0-26" },
        "spec": { "range": "10.155.0.0/26", "allocations": entries },
    }))
    .await;
    let mut machine = Machine::start(&site, "importer").await;
    let ipam = fast_cut("10.155.0.0/26", "/26");
    let pods = site.api::<Pod>();
    let namespace = &site.namespace;
    machine.add_in(namespace, "held", &ipam).await;
    machine.stop().await;
    let relay = relay_of(&site, "importer").await;
    relay.rule(|_| Fate::Pass);
    machine.behind(&relay);
    machine.collecting(Duration::from_millis(200));
    // No sweep of all pools: one sweep reads the plain pool for all nodes.
    machine.sweep_rarely();
    machine.run().await;
    for n in 0..3 {
        let pod = format!("ends-{n}");
        run_pod(&site, &pod, "importer", &[]).await;
        machine.add_in(namespace, &pod, &ipam).await;
        let at_once = DeleteParams::default().grace_period(0);
        pods.delete(&pod, &at_once).await.unwrap();
        let freed = format!("{namespace}/{pod}");
        until("what it had is collected", async || {
            let shown = site.published().await;
            let gone = !shown.values().any(|one| *one == freed);
            gone.then_some(()).ok_or(format!("{shown:?}"))
        })
        .await;
    }
    let mut asked = relay.seen();
    asked.retain(|(asked, _)| asked.path.contains("/imported-"));
    assert!(asked.is_empty(), "{} requests: {asked:?}", asked.len());
}

/// What is full is found out by reads alone, and another network's range with room is not.
#[tokio::test(flavor = "multi_thread")]
async fn berth_20_4_status_of_a_full_claimed_range_says_so() {
    let site = Site::shared().await;
    let ipam = fast_cut("10.164.0.0/29", "/30");
    let (first, second) = (
        Machine::start(&site, "full-a").await,
        Machine::start(&site, "full-b").await,
    );
    let mut shown = BTreeMap::new();
    for (machine, pods) in [(&first, 0..3), (&second, 3..6)] {
        for n in pods {
            let pod = format!("p{n}");
            let given = machine.add(&pod, &ipam).await;
            shown.insert(bare(&given), format!("ns/{pod}"));
        }
    }
    site.shows("published", &shown).await;
    let relay = relay_of(&site, "full-c").await;
    relay.rule(|_| Fate::Pass);
    let mut fresh = Machine::start(&site, "full-c").await;
    fresh.stop().await;
    fresh.behind(&relay);
    fresh.run().await;
    for machine in [&fresh, &first, &second] {
        let before = relay.seen().len();
        let answer = machine.call("STATUS", "none", "none", &ipam).await;
        let said: Value = serde_json::from_str(&answer.stdout).unwrap_or_default();
        assert_eq!((answer.exit, &said["code"]), (1, &json!(50)), "{said}");
        for (asked, _) in &relay.seen()[before..] {
            assert_eq!(asked.method, "GET", "{asked:?}");
        }
    }
    let roomy = fast_cut("10.164.1.0/29", "/30");
    let answer = fresh.call("STATUS", "none", "none", &roomy).await;
    assert_eq!(answer.exit, 0, "{}", answer.stdout);
    // One address is free again, in another node's slice.
    first.del("p0", &ipam).await;
    shown.retain(|_, pod| pod != "ns/p0");
    site.shows("one less", &shown).await;
    let answer = fresh.call("STATUS", "none", "none", &ipam).await;
    assert_eq!(answer.exit, 0, "{}", answer.stdout);
}
