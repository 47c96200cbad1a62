//! `berth controller`, the built program, with the rights of deploy/controller and no others: two replicas, the leader
//! killed, the other stopped.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use berth_testkit::{Account, isolated};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Event, Node};
use kube::Client;
use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, PostParams,
};
use serde_json::{Value, json};

use crate::{HOME, deployed};

struct Replica {
    child: Child,
    listen: SocketAddr,
}

impl Drop for Replica {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Replica {
    fn start(account: &Account, identity: &str) -> Replica {
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let listen = free.local_addr().unwrap();
        drop(free);
        let child = isolated(Command::new(env!("CARGO_BIN_EXE_berth")))
            .args(["controller", "--identity", identity])
            .args(["--lease-duration=2", "--slice-grace=0.5"])
            .arg(format!("--listen={listen}"))
            .arg("--kubeconfig")
            .arg(account.kubeconfig())
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        Replica { child, listen }
    }

    fn get(&self, path: &str) -> Option<String> {
        let mut stream = TcpStream::connect(self.listen).ok()?;
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        text.starts_with("HTTP/1.1 200").then_some(text)
    }
}

struct Cluster {
    client: Client,
}

impl Cluster {
    async fn node(&self, name: &str) {
        let node: Node = serde_json::from_value(json!({ "metadata": { "name": name } })).unwrap();
        let nodes: Api<Node> = Api::all(self.client.clone());
        nodes.create(&PostParams::default(), &node).await.unwrap();
    }

    async fn network(&self, name: &str, mut ipam: Value) {
        ipam["type"] = json!("whereabouts");
        let config =
            json!({ "cniVersion": "0.3.1", "name": name, "type": "macvlan", "ipam": ipam });
        deployed()
            .await
            .apply_object(json!({
                "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
                "metadata": { "name": name, "namespace": "default" },
                "spec": { "config": config.to_string() },
            }))
            .await
            .unwrap();
    }

    /// The slice of a node; other tests' nodes have theirs.
    async fn slice(&self, node: &str) -> Option<String> {
        let gvk = GroupVersionKind::gvk("whereabouts.cni.cncf.io", "v1alpha1", "NodeSlicePool");
        let kind = ApiResource::from_gvk(&gvk);
        let pools: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), HOME, &kind);
        let pool = pools.get_opt("failover").await.unwrap()?;
        let rows = pool.data["status"]["allocations"].as_array()?.clone();
        let row = rows.iter().find(|row| row["nodeName"] == node)?;
        Some(row["sliceRange"].as_str()?.to_owned())
    }

    async fn holder(&self) -> String {
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), HOME);
        let lease = leases.get_opt("berth-controller").await.unwrap();
        let spec = lease.and_then(|lease| lease.spec);
        spec.and_then(|spec| spec.holder_identity)
            .unwrap_or_default()
    }
}

async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let begun = Instant::now();
    while !holds().await {
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "not after 60 s: {what}"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_replicas_one_killed_the_other_takes_over_and_gives_back() {
    let deployed = deployed().await;
    let account = deployed.account(HOME, "berth-controller").await.unwrap();
    let cluster = Cluster {
        client: deployed.client().await.unwrap(),
    };
    let mut replicas = [
        Replica::start(&account, "one"),
        Replica::start(&account, "two"),
    ];
    for replica in &replicas {
        until("ready, leader or not", async || {
            replica.get("/readyz").is_some()
        })
        .await;
    }
    cluster
        .network(
            "failover",
            json!({ "range": "10.200.0.0/16", "node_slice_size": "/24" }),
        )
        .await;
    cluster.node("failover-1").await;
    until("the first is served", async || {
        cluster.slice("failover-1").await.is_some()
    })
    .await;
    let first = cluster.slice("failover-1").await;

    // kill -9: nothing is given back, nothing is said.
    let holder = cluster.holder().await;
    let leads = usize::from(holder == "two");
    assert_eq!(holder, ["one", "two"][leads]);
    replicas[leads].child.kill().unwrap();
    replicas[leads].child.wait().unwrap();
    cluster.node("failover-2").await;
    until("the second is served", async || {
        cluster.slice("failover-2").await.is_some()
    })
    .await;
    let other = ["two", "one"][leads];
    assert_eq!(cluster.holder().await, other);
    assert_eq!(cluster.slice("failover-1").await, first);
    let left = &mut replicas[1 - leads];
    let told = left.get("/leader").unwrap();
    assert!(
        told.contains(other) && told.contains(r#""this":true"#),
        "{told}"
    );
    let counted = left.get("/metrics").unwrap();
    assert!(counted.contains("berth_controller_leading 1"), "{counted}");

    // What else its rights are for: a node that goes, an event, what agents are told.
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    nodes
        .delete("failover-1", &DeleteParams::default())
        .await
        .unwrap();
    until("taken back", async || {
        cluster.slice("failover-1").await.is_none()
    })
    .await;
    cluster
        .network(
            "wrong",
            json!({ "range": "10.201.0.0/16", "node_slice_size": "wide" }),
        )
        .await;
    let events: Api<Event> = Api::namespaced(cluster.client.clone(), "default");
    until("told", async || {
        let of = ListParams::default().fields("involvedObject.name=wrong");
        let list = events.list(&of).await.unwrap();
        list.items
            .iter()
            .any(|event| event.reason.as_deref() == Some("SlicesInvalid"))
    })
    .await;
    cluster
        .network(
            "wrong",
            json!({ "range": "10.201.0.0/16", "fast_ipam": true }),
        )
        .await;
    let maps: Api<ConfigMap> = Api::namespaced(cluster.client.clone(), HOME);
    until("agents are told", async || {
        let map = maps.get_opt("berth-networks").await.unwrap();
        let data = map.and_then(|map| map.data).unwrap_or_default();
        data.get("disjoint.json")
            .is_some_and(|text| text.contains("10.201.0.0/16"))
    })
    .await;

    let status = Command::new("kill")
        .arg(left.child.id().to_string())
        .status();
    assert!(status.unwrap().success());
    assert!(left.child.wait().unwrap().success());
    assert_eq!(cluster.holder().await, "", "given back");
}
