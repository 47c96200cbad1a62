//! The real whereabouts v0.9.4: its plugin allocates from slices that Berth has assigned, and Berth continues with
//! what its controller has assigned.

use std::path::Path;

use berth_parts::Parts;
use berth_testkit::{Attachment, Process, Whereabouts, guarded};
use serde_json::{Value, json};

use crate::test_cluster::{TestCluster, flat_file};

/// A kubeconfig of an administrator whose context names the test's namespace: whereabouts keeps its objects there.
fn kubeconfig(cluster: &TestCluster, dir: &Path) -> std::path::PathBuf {
    let text = std::fs::read_to_string(cluster.cluster.kubeconfig()).unwrap();
    let path = dir.join("kubeconfig");
    let named = text.replace(
        "namespace: default",
        &format!("namespace: {}", cluster.namespace),
    );
    let named = named.replace(
        r#""namespace":"default""#,
        &format!(r#""namespace":"{}""#, cluster.namespace),
    );
    assert_ne!(named, text, "the context's namespace was not found");
    std::fs::write(&path, named).unwrap();
    path
}

fn call(whereabouts: &Whereabouts, verb: &str, pod: &str, ipam: &Value) -> Value {
    let who = Attachment {
        pod,
        container: &format!("c-{pod}"),
        ifname: "net1",
    };
    let output = whereabouts.call(verb, who, ipam).unwrap();
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn its_plugin_allocates_from_slices_that_berth_has_assigned() {
    let cluster = TestCluster::new("plugin").await;
    cluster.nodes(&["a", "b"]).await;
    let ipam = json!({ "range": "10.0.0.0/24", "node_slice_size": "/26", "network_name": "blue" });
    cluster.network("net", ipam.clone()).await;
    let running = cluster.controller();
    let rows = [
        "10.0.0.0/26 a",
        "10.0.0.64/26 b",
        "10.0.0.128/26 ",
        "10.0.0.192/26 ",
    ];
    cluster.until_rows("blue", &rows).await;
    let dir = tempfile::tempdir().unwrap();
    let kubeconfig = kubeconfig(&cluster, dir.path());
    let [a, b] = ["a", "b"].map(|node| Whereabouts::new(&kubeconfig, node).unwrap());
    for (node, pod, address) in [
        (&a, "p1", "10.0.0.1/24"),
        (&b, "p2", "10.0.0.65/24"),
        (&a, "p3", "10.0.0.2/24"),
    ] {
        let result = call(node, "ADD", pod, &ipam);
        assert_eq!(result["ips"][0]["address"], address);
    }
    assert_eq!(
        cluster.ip_pools().await,
        ["blue-a-10.0.0.0-26", "blue-b-10.0.0.64-26"]
    );
    call(&b, "DEL", "p2", &ipam);
    assert_eq!(cluster.rows("blue").await, rows);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_its_controller_has_assigned_berth_goes_on_with() {
    let cluster = TestCluster::new("takeover").await;
    // whereabouts assigns in an unpredictable order; the second node is created after the first is served.
    cluster.nodes(&["z"]).await;
    let dir = tempfile::tempdir().unwrap();
    let kubeconfig = kubeconfig(&cluster, dir.path());
    // It requires a flat file.
    let flat = flat_file(dir.path(), &kubeconfig);
    let ipam =
        json!({ "range": "10.0.0.0/24", "node_slice_size": "26", "configuration_path": flat });
    cluster.network("net", ipam).await;
    let mut command = guarded(Parts::find().unwrap().whereabouts_slice_controller());
    command
        .arg(format!("--kubeconfig={}", kubeconfig.display()))
        .env("WHEREABOUTS_NAMESPACE", &cluster.namespace);
    let mut theirs = Process::start("node-slice-controller", command, dir.path()).unwrap();
    let first = [
        "10.0.0.0/26 z",
        "10.0.0.64/26 ",
        "10.0.0.128/26 ",
        "10.0.0.192/26 ",
    ];
    cluster.until_rows("cni", &first).await;
    cluster.node("m").await;
    let second = [
        "10.0.0.0/26 z",
        "10.0.0.64/26 m",
        "10.0.0.128/26 ",
        "10.0.0.192/26 ",
    ];
    cluster.until_rows("cni", &second).await;
    theirs.kill().unwrap();
    let before = cluster.pool("cni").await.unwrap();
    assert!(before.metadata.owner_references.is_some());

    let running = cluster.controller();
    cluster
        .until("taken over", async || {
            cluster
                .annotation("cni", "berth.dev/managed")
                .await
                .is_some()
        })
        .await;
    let after = cluster.pool("cni").await.unwrap();
    assert_eq!(after.data, before.data);
    // Kubernetes would delete the pool with the definition, even if its addresses are in use.
    assert_eq!(after.metadata.owner_references, None);
    cluster.node("a").await;
    let third = [
        "10.0.0.0/26 z",
        "10.0.0.64/26 m",
        "10.0.0.128/26 a",
        "10.0.0.192/26 ",
    ];
    cluster.until_rows("cni", &third).await;
    running.stop().await;

    // And back: it finds everything as it would have written it, and changes no slice.
    let mut command = guarded(Parts::find().unwrap().whereabouts_slice_controller());
    command
        .arg(format!("--kubeconfig={}", kubeconfig.display()))
        .env("WHEREABOUTS_NAMESPACE", &cluster.namespace);
    let mut theirs = Process::start("again", command, dir.path()).unwrap();
    cluster.node("b").await;
    let fourth = [
        "10.0.0.0/26 z",
        "10.0.0.64/26 m",
        "10.0.0.128/26 a",
        "10.0.0.192/26 b",
    ];
    cluster.until_rows("cni", &fourth).await;
    theirs.kill().unwrap();
}
