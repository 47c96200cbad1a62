//! Agents whose ledger was lost: addresses in the cluster's objects and of this node's pods are held again before any
//! request, and released with their pods.

use std::collections::BTreeMap;
use std::time::Duration;

use berth_api::names;
use berth_api::whereabouts::OverlappingRangeIPReservation;
use berth_testkit::Fate;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams, PostParams};
use serde_json::{Value, json};

use crate::cni_call::{bare, fast_cut};
use crate::test_node::{Machine, Site, quick, until};
use crate::without_agent::{Bare, claim, sliced};

/// A pod as an object; its addresses are in the annotation that Multus writes.
pub async fn run_pod(site: &Site, name: &str, node: &str, addresses: &[&str]) {
    let status = json!([{ "name": "net", "interface": "net1", "ips": addresses }]).to_string();
    let pod = json!({ "metadata": { "name": name, "annotations": { "k8s.v1.cni.cncf.io/network-status": status } },
        "spec": { "nodeName": node, "containers": [{ "name": "c", "image": "i" }] } });
    let pod = serde_json::from_value(pod).unwrap();
    let pods = site.api::<Pod>();
    pods.create(&PostParams::default(), &pod).await.unwrap();
}

/// Waits until entries and reservations are these, address and pod, and no others.
async fn shows(site: &Site, what: &str, expected: &BTreeMap<String, String>) {
    site.shows(what, expected).await;
    until(what, async || {
        let reservations = site.api::<OverlappingRangeIPReservation>();
        let now = reservations.list(&ListParams::default()).await.unwrap();
        let now: Vec<String> = now
            .into_iter()
            .filter_map(|one| one.metadata.name)
            .collect();
        let of = |address: &String| {
            let address = address.parse().unwrap();
            now.iter().any(|name| names::reserves(name, address))
        };
        let same = now.len() == expected.len() && expected.keys().all(of);
        same.then_some(()).ok_or(format!("reserved: {now:?}"))
    })
    .await;
}

/// Two pods get an address; the ledger is lost, and one of them ends meanwhile. The only request is the other's end.
async fn comes_back(site: &Site, node: &str, ipam: &Value) {
    let mut machine = Machine::start(site, node).await;
    let mut given = BTreeMap::new();
    for pod in ["stays", "goes"] {
        run_pod(site, pod, node, &[]).await;
        let address = bare(&machine.add_in(&site.namespace, pod, ipam).await);
        given.insert(address, format!("{}/{pod}", site.namespace));
    }
    shows(site, "both are there", &given).await;
    machine.stop().await;
    machine.lose_ledger();
    let at_once = DeleteParams::default().grace_period(0);
    let pods = site.api::<Pod>();
    pods.delete("goes", &at_once).await.unwrap();
    machine.collecting(Duration::from_millis(500));
    machine.run().await;
    given.retain(|_, pod| pod.ends_with("/stays"));
    shows(site, "what is gone is collected", &given).await;
    let end = machine.call_in(&site.namespace, "DEL", "stays", ipam).await;
    assert_eq!((end.exit, end.stdout.as_str()), (0, ""));
    shows(site, "what ends is freed", &BTreeMap::new()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn claimed_slices_are_kept_without_a_call() {
    let site = Site::shared().await;
    let ipam = json!({ "range": "10.95.0.0/24", "fast_ipam": true });
    comes_back(&site, "forgetful", &ipam).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn claimed_slices_of_a_named_network_are_kept_without_a_call() {
    let site = Site::shared().await;
    let ipam = json!({ "range": "fd00:96::/112", "fast_ipam": true, "network_name": "blue-96" });
    comes_back(&site, "forgetful-6", &ipam).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn assigned_slices_are_kept_without_a_call() {
    let site = Site::shared().await;
    let others = [
        ("elsewhere", "10.97.0.0/26"),
        ("unknowing", "10.97.0.64/26"),
    ];
    site.assign("red", "10.97.0.0/24", "/26", &others).await;
    let ipam = json!({ "range": "10.97.0.0/24", "network_name": "red", "node_slice_size": "/26" });
    comes_back(&site, "unknowing", &ipam).await;
}

/// Allocated, but not published when the ledger was lost: the pod's annotation is enough.
#[tokio::test(flavor = "multi_thread")]
async fn an_address_that_only_a_pod_shows_is_not_allocated() {
    let site = Site::shared().await;
    let whole = "10.98.0.0/29";
    sliced(&site, whole, 29).await;
    claim(&site, whole, whole, "trusting", 1, json!([])).await;
    run_pod(&site, "has", "trusting", &["10.98.0.3"]).await;
    run_pod(&site, "elsewhere", "other", &["10.98.0.4"]).await;
    let machine = Machine::start(&site, "trusting").await;
    let theirs = format!("{}/has", site.namespace);
    let mut given = BTreeMap::from([("10.98.0.3".to_owned(), theirs)]);
    site.shows("it is published before anything is allocated", &given)
        .await;
    let ipam = fast_cut(whole, "/29");
    for n in 0..5 {
        let pod = format!("p{n}");
        let address = bare(&machine.add(&pod, &ipam).await);
        let other = given.insert(address.clone(), format!("ns/{pod}"));
        assert_eq!(other, None, "{address}");
    }
    let more = machine.try_add("one-too-many", &ipam).await;
    assert_eq!(more.map_err(|(code, _)| code), Err(11));
}

/// The API server is down when the agent starts, and comes back.
#[tokio::test(flavor = "multi_thread")]
async fn what_could_not_be_read_at_the_start_is_read_later() {
    let site = Site::shared().await;
    let whole = "10.99.0.0/29";
    sliced(&site, whole, 29).await;
    claim(&site, whole, whole, "early", 1, json!([])).await;
    let away = Fate::Refuse {
        code: 503,
        retry_after: None,
    };
    let node = Bare::start_behind(&site, "early", quick(), move |_| away).await;
    assert_eq!(node.slices.serving(), 0);
    node.relay.rule(|_| Fate::Pass);
    until("its slice is held", async || {
        let now = node.slices.serving();
        (now == 1).then_some(()).ok_or(format!("{now}"))
    })
    .await;
}

/// The range is on its way back to its plain pool when the agent starts without its ledger: its pods' addresses are
/// in the plain pool before that allocates.
#[tokio::test(flavor = "multi_thread")]
async fn pods_addresses_return_to_the_plain_pool_without_a_ledger() {
    let site = Site::shared().await;
    let whole = "10.94.0.0/29";
    let ipam = fast_cut(whole, "/29");
    let mut machine = Machine::start(&site, "bare-again").await;
    let mut given = BTreeMap::new();
    for pod in ["p0", "p1", "p2"] {
        given.insert(bare(&machine.add(pod, &ipam).await), format!("ns/{pod}"));
    }
    site.shows("published", &given).await;
    machine.stop().await;
    machine.lose_ledger();
    let other = Machine::start(&site, "plain-too").await;
    let plain = json!({ "range": whole, "enable_overlapping_ranges": false });
    let begins = async {
        until("the range is on its way back", async || {
            let claims = site.claim_api();
            let now = claims.get("10.94.0.0-29").await.unwrap().spec;
            let told = !now.wants.is_empty();
            told.then_some(()).ok_or(format!("{now:?}"))
        })
        .await;
        machine.run().await;
    };
    let (_, ()) = tokio::join!(other.try_add("q0", &plain), begins);
    for pod in ["q0", "q1", "q2"] {
        let address = until("the plain pool allocates", async || {
            let got = other.try_add(pod, &plain).await;
            got.map(|got| bare(&got[0]))
                .map_err(|refused| format!("{refused:?}"))
        })
        .await;
        let twice = given.insert(address.clone(), format!("ns/{pod}"));
        assert_eq!(twice, None, "{address}");
    }
    site.shows("all are in the plain pool", &given).await;
}
