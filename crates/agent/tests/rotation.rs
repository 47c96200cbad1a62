//! An agent whose kubeconfig is rewritten (`berth install` does that whenever a token is rotated) continues, with the
//! same store. On a real API server.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use berth_agent::{AgentConfig, serve};
use berth_api::whereabouts::IPPool;
use berth_front::Node;
use berth_kube::Connect;
use berth_pods::node::PodFront;
use berth_testkit::{Account, Cluster, InProcess, PodCall, answered_addresses};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DeleteParams, ListParams};
use serde_json::{Value, json};

const TIMEOUT: Duration = Duration::from_secs(60);

/// One ADD over the agent's socket; the error of a refusal.
async fn add(socket: &Path, pod: &str, ipam: Value) -> Result<String, String> {
    let (socket, call) = (socket.to_owned(), PodCall::new("berth", "ADD", pod));
    let asked = tokio::task::spawn_blocking(move || call.ask(&socket, &ipam));
    let answer = asked.await.unwrap().map_err(|error| error.to_string())?;
    let given = answered_addresses(&answer).map_err(|(_, why)| why)?;
    Ok(given[0].clone())
}

/// Waits until the API server no longer accepts the account's token.
async fn revoked(account: &Account, namespace: &str) {
    let pools: Api<IPPool> = Api::namespaced(account.client().await.unwrap(), namespace);
    let started = Instant::now();
    while !matches!(pools.list(&ListParams::default()).await, Err(kube::Error::Api(said)) if said.code == 401)
    {
        assert!(started.elapsed() < TIMEOUT, "the token is good still");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rotated_token_reaches_the_plain_pools_and_the_slices_of_an_agent() {
    let cluster = Cluster::shared().await;
    for crd in berth_api::crds().unwrap() {
        cluster.apply_object(crd).await.unwrap();
    }
    let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "node-1" } });
    cluster.apply_object(node).await.unwrap();
    let namespace = cluster.namespace("rotation").await.unwrap();
    let agents = cluster.agents(&namespace).await.unwrap();
    let old = agents.on("node-1").await.unwrap();

    let dir = tempfile::tempdir().unwrap();
    let (socket, kubeconfig) = (dir.path().join("berth.sock"), dir.path().join("kubeconfig"));
    fs::copy(old.kubeconfig(), &kubeconfig).unwrap();
    let config = AgentConfig {
        socket: socket.clone(),
        listen: None,
        node: Node {
            name: "node-1".to_owned(),
            database: dir.path().join("berth.db"),
            cluster: Some(Connect {
                kubeconfig: Some(kubeconfig.clone()),
                ..Connect::default()
            }),
            ..Node::default()
        },
        fronts: vec![Box::new(PodFront {
            flat_places: Some(Vec::new()),
            ..PodFront::default()
        })],
    };
    let agent = InProcess::start(|stop| async {
        serve(config, stop).await.unwrap();
    });
    let plain = || json!({ "range": "10.0.0.0/24" });
    let sliced = |range: &str| json!({ "range": range, "fast_ipam": true });
    let started = Instant::now();
    while let Err(why) = add(&socket, "a", plain()).await {
        assert!(started.elapsed() < TIMEOUT, "{why}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    add(&socket, "a", sliced("10.1.0.0/24")).await.unwrap();

    let client = cluster.client().await.unwrap();
    // A token that is bound to a pod is revoked with it.
    let pods: Api<Pod> = Api::namespaced(client, &namespace);
    let how = DeleteParams::default().grace_period(0);
    pods.delete("berth-agent-node-1", &how).await.unwrap();
    revoked(&old, &namespace).await;
    let new = agents.on("node-1").await.unwrap();
    fs::copy(new.kubeconfig(), dir.path().join("new")).unwrap();
    fs::rename(dir.path().join("new"), &kubeconfig).unwrap();

    assert_eq!(add(&socket, "b", plain()).await.unwrap(), "10.0.0.2/24");
    // A slice that is claimed now, and one that the node had before.
    for range in ["10.2.0.0/24", "10.1.0.0/24"] {
        add(&socket, "b", sliced(range)).await.unwrap();
    }
    agent.stop().await;
}
