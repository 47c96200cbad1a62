//! An agent with a configured cluster collects that cluster's garbage, and stops on request.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::time::{Duration, Instant};

use berth_agent::{AgentConfig, serve};
use berth_api::whereabouts::IPPool;
use berth_front::Node;
use berth_kube::Connect;
use berth_pods::garbage::{GarbageSettings, GracePeriods};
use berth_pods::node::PodFront;
use berth_testkit::{Cluster, InProcess};
use kube::Api;
use kube::api::PostParams;
use serde_json::json;

#[tokio::test(flavor = "multi_thread")]
async fn an_entry_put_by_hand_for_a_pod_that_does_not_exist_is_collected() {
    let cluster = Cluster::shared().await;
    for crd in berth_api::crds().unwrap() {
        cluster.apply_object(crd).await.unwrap();
    }
    let namespace = cluster.namespace("agent").await.unwrap();
    let pools: Api<IPPool> = Api::namespaced(cluster.client().await.unwrap(), &namespace);
    let pool = json!({
        "apiVersion": "whereabouts.cni.cncf.io/v1alpha1", "kind": "IPPool",
        "metadata": { "name": "10.0.0.0-24" },
        "spec": { "range": "10.0.0.0/24", "allocations": {
            "7": { "id": "c1", "podref": format!("{namespace}/nobody"), "ifname": "net1" },
        } },
    });
    let pool = serde_json::from_value(pool).unwrap();
    pools.create(&PostParams::default(), &pool).await.unwrap();

    let account = cluster.agent(&namespace, "node-1").await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    let config = AgentConfig {
        socket: dir.path().join("berth.sock"),
        listen: None,
        node: Node {
            name: "node-1".to_owned(),
            database: dir.path().join("berth.db"),
            cluster: Some(Connect {
                kubeconfig: Some(account.kubeconfig().to_owned()),
                namespace: Some(namespace.clone()),
                ..Connect::default()
            }),
            ..Node::default()
        },
        fronts: vec![Box::new(PodFront {
            flat_places: Some(Vec::new()),
            garbage: GarbageSettings {
                grace: GracePeriods {
                    pod: Duration::from_millis(300),
                    node: Duration::from_millis(300),
                },
                interval: Duration::from_secs(1),
                ..GarbageSettings::default()
            },
            ..PodFront::default()
        })],
    };
    let agent = InProcess::start(|stop| async {
        serve(config, stop).await.unwrap();
    });
    let started = Instant::now();
    while !pools
        .get("10.0.0.0-24")
        .await
        .unwrap()
        .spec
        .allocations
        .is_empty()
    {
        assert!(
            started.elapsed() < Duration::from_secs(60),
            "never collected"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    agent.stop().await;
}
