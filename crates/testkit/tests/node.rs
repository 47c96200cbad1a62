//! A whole node: a pod with a second network runs, survives a restart of containerd, and is deleted.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use berth_testkit::{Node, NodeOptions};
use serde_json::json;

/// A macvlan network on the node's wire.
async fn network(node: &Node, namespace: &str) {
    let config = json!({
        "cniVersion": "1.0.0", "name": "lan", "type": "macvlan", "master": "eth0",
        "ipam": { "type": "host-local", "ranges": [[{ "subnet": "192.0.2.0/24" }]] },
    });
    let definition = json!({
        "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
        "metadata": { "name": "lan", "namespace": namespace },
        "spec": { "config": config.to_string() },
    });
    node.cluster().apply_object(definition).await.unwrap();
}

async fn pod(node: &Node, namespace: &str, name: &str) {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": name, "namespace": namespace,
            "annotations": { "k8s.v1.cni.cncf.io/networks": "lan" },
        },
        "spec": {
            "nodeName": node.name(),
            "terminationGracePeriodSeconds": 1,
            "containers": [{ "name": "c", "image": Node::IMAGE }],
        },
    });
    node.cluster().apply_object(pod).await.unwrap();
    node.wait_pod_running(namespace, name).await.unwrap();
}

#[tokio::test]
async fn a_pod_gets_a_second_network_and_releases_it() {
    let node = Node::start(NodeOptions::default()).await.unwrap();
    let namespace = node.cluster().namespace("pods").await.unwrap();
    network(&node, &namespace).await;
    pod(&node, &namespace, "one").await;

    let addresses = node.pod_addresses(&namespace, "one").unwrap();
    assert_eq!(addresses["net1"], ["192.0.2.2/24"]);
    assert!(
        addresses["eth0"][0].starts_with("10.220.1."),
        "{addresses:?}"
    );

    node.restart_containerd().await.unwrap();
    assert_eq!(node.pod_addresses(&namespace, "one").unwrap(), addresses);

    // The API server reaches the kubelet, and the kubelet the container.
    let exec = node
        .kubectl(&["exec", "--namespace", &namespace, "one", "--", "ip", "addr"])
        .unwrap();
    let seen = String::from_utf8_lossy(&exec.stdout);
    assert!(seen.contains("192.0.2.2/24"), "{exec:?}");

    // That the new kubelet works is seen below, when it takes "one" down and starts "three".
    node.kill_kubelet().unwrap();
    node.restart_kubelet().await.unwrap();

    // Another node of the same cluster, on the same wire: host-local does not know of it and allocates the same
    // address again, which is why Berth exists.
    let second = node.join(NodeOptions::default()).await.unwrap();
    let ping = second
        .command("busybox")
        .args(["ping", "-c", "3", "-A", "10.210.0.1"])
        .output()
        .unwrap();
    assert!(ping.status.success(), "{ping:?}");
    pod(&second, &namespace, "two").await;
    let addresses = second.pod_addresses(&namespace, "two").unwrap();
    assert_eq!(addresses["net1"], ["192.0.2.2/24"]);

    let delete = node
        .kubectl(&["delete", "pod", "--namespace", &namespace, "one"])
        .unwrap();
    assert!(delete.status.success(), "{delete:?}");
    node.wait_pod_gone(&namespace, "one").await.unwrap();
    pod(&node, &namespace, "three").await;

    let cgroups = || {
        let name = format!("berth-node-{}-*", std::process::id());
        let found = std::process::Command::new("find")
            .args(["/sys/fs/cgroup", "-name", &name])
            .output()
            .unwrap();
        String::from_utf8(found.stdout).unwrap()
    };
    assert_ne!(cgroups(), "");
    let dirs = [node.dir().to_owned(), second.dir().to_owned()];
    drop((node, second));
    assert_eq!(cgroups(), "");
    assert!(dirs.iter().all(|dir| !dir.exists()));
}

#[tokio::test]
async fn a_process_on_a_node_is_the_test_s_to_hurt() {
    let node = Node::start(NodeOptions {
        name: Some("worker".into()),
        ..NodeOptions::default()
    })
    .await
    .unwrap();
    assert_eq!(node.name(), "worker");
    let mut ticker = node.command("sh");
    ticker.args(["-c", "while :; do echo tick; sleep 0.05; done"]);
    let mut ticker = node.process("ticker", ticker).unwrap();
    let ticks = |log: &std::path::Path| std::fs::metadata(log).unwrap().len();
    let log = ticker.log().to_owned();
    let moves = || {
        let before = ticks(&log);
        std::thread::sleep(std::time::Duration::from_millis(500));
        ticks(&log) > before
    };
    assert!(moves());
    ticker.pause().unwrap();
    // What was under way when the signal came may still be written.
    moves();
    assert!(!moves());
    ticker.resume().unwrap();
    assert!(moves());
    ticker.kill().unwrap();
    assert!(ticker.ended().unwrap().is_some());
    assert!(!moves());
    // Every kubeconfig works on the node as it does outside.
    let nodes = node
        .command(berth_parts::Parts::find().unwrap().kubectl())
        .arg(format!(
            "--kubeconfig={}",
            node.cluster().kubeconfig().display()
        ))
        .args(["get", "nodes", "--output=name"])
        .output()
        .unwrap();
    assert_eq!(
        String::from_utf8_lossy(&nodes.stdout),
        "node/worker\n",
        "{nodes:?}"
    );
}
