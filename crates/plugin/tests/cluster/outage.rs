//! The API server stops in the middle of calls and comes back: one address for each pod, nothing leaked.

use std::collections::BTreeMap;
use std::time::Duration;

use berth_testkit::{Cluster, Part};
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, ListParams};
use serde_json::json;

use crate::node::{TestNode, pod};

const PODS: usize = 24;

async fn list(cluster: &Cluster, namespace: &str, kind: &str) -> Vec<DynamicObject> {
    let gvk = GroupVersionKind::gvk("whereabouts.cni.cncf.io", "v1alpha1", kind);
    let client = cluster.client().await.unwrap();
    let api: Api<DynamicObject> =
        Api::namespaced_with(client, namespace, &ApiResource::from_gvk(&gvk));
    api.list(&ListParams::default()).await.unwrap().items
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_api_server_costs_time_and_nothing_else() {
    let cluster = Cluster::start().await.unwrap();
    for crd in berth_api::crds().unwrap() {
        cluster.apply_object(crd).await.unwrap();
    }
    let namespace = cluster.namespace("outage").await.unwrap();
    let account = cluster.agent(&namespace, "node-1").await.unwrap();
    let kubeconfig = account.kubeconfig().to_owned();

    let node = std::sync::Arc::new(TestNode::with_defaults(
        json!({"kubernetes": {"kubeconfig": kubeconfig}}),
    ));
    let ipam = json!({"range": "10.0.0.0/24", "ipRanges": [{"range": "fd00::/64"}]});
    let lanes: Vec<_> = (0..4)
        .map(|lane| {
            let (node, ipam) = (std::sync::Arc::clone(&node), ipam.clone());
            std::thread::spawn(move || {
                let mut allocated = Vec::new();
                for n in (lane..PODS).step_by(4) {
                    let who = pod(&format!("p{n}"));
                    // What a runtime does: it repeats the call until it succeeds.
                    let outcome = loop {
                        let outcome = node.add(&who, ipam.clone());
                        if outcome.exit == 0 {
                            break outcome;
                        }
                        // A server that has just started refuses every request until it has read the roles: that
                        // passes, too.
                        let (code, message) = outcome.error();
                        assert_eq!(code, 11, "{message}");
                        std::thread::sleep(Duration::from_millis(100));
                    };
                    allocated.push((who.pod, outcome.addresses()));
                }
                allocated
            })
        })
        .collect();
    for pause in [30, 150] {
        tokio::time::sleep(Duration::from_millis(pause)).await;
        cluster.kill(Part::ApiServer).unwrap();
        tokio::time::sleep(Duration::from_millis(300)).await;
        cluster.restart(Part::ApiServer).await.unwrap();
    }
    let mut allocated = BTreeMap::new();
    for lane in lanes {
        for (pod, addresses) in lane.join().unwrap() {
            for address in addresses {
                let bare = address.split('/').next().unwrap().to_owned();
                let twice = allocated.insert(bare, format!("ns/{pod}"));
                assert_eq!(twice, None, "{address}");
            }
        }
    }
    assert_eq!(allocated.len(), 2 * PODS);

    let mut recorded = BTreeMap::new();
    for pool in list(&cluster, &namespace, "IPPool").await {
        let spec = &pool.data["spec"];
        let network: std::net::IpAddr = spec["range"]
            .as_str()
            .unwrap()
            .split('/')
            .next()
            .unwrap()
            .parse()
            .unwrap();
        for (offset, entry) in spec["allocations"].as_object().unwrap() {
            let offset: u32 = offset.parse().unwrap();
            let address: std::net::IpAddr = match network {
                std::net::IpAddr::V4(v4) => std::net::Ipv4Addr::from(u32::from(v4) + offset).into(),
                std::net::IpAddr::V6(v6) => {
                    std::net::Ipv6Addr::from(u128::from(v6) + u128::from(offset)).into()
                }
            };
            recorded.insert(
                address.to_string(),
                entry["podref"].as_str().unwrap().to_owned(),
            );
        }
    }
    assert_eq!(recorded, allocated);
    let mut reserved = BTreeMap::new();
    for reservation in list(&cluster, &namespace, "OverlappingRangeIPReservation").await {
        let podref = reservation.data["spec"]["podref"]
            .as_str()
            .unwrap()
            .to_owned();
        let name = reservation.metadata.name.unwrap();
        let address = if name.contains('.') {
            name
        } else {
            name.replace('-', ":")
        };
        reserved.insert(address, podref);
    }
    assert_eq!(reserved, allocated);
    // A lost server is not a success for DEL either.
    cluster.kill(Part::ApiServer).unwrap();
    let waiting = {
        let (node, ipam) = (std::sync::Arc::clone(&node), ipam.clone());
        std::thread::spawn(move || node.del(&pod("p0"), ipam))
    };
    tokio::time::sleep(Duration::from_millis(300)).await;
    cluster.restart(Part::ApiServer).await.unwrap();
    let first = waiting.join().unwrap();
    if first.exit != 0 {
        while node.del(&pod("p0"), ipam.clone()).exit != 0 {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
    let left: usize = list(&cluster, &namespace, "IPPool")
        .await
        .iter()
        .map(|pool| pool.data["spec"]["allocations"].as_object().unwrap().len())
        .sum();
    assert_eq!(left, 2 * PODS - 2);
}
