//! The whole chain with the rights of deploy/ and no others: `berth install` writes a kubeconfig of the service account,
//! the plugin gives and frees addresses with it, by itself and through an agent.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use berth_testkit::{Agent, Cluster, PodCall, fed, isolated, plugin_beside};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Event, Node, Pod, Secret};
use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch,
    PatchParams, PostParams,
};
use serde_json::{Value, json};

use crate::{HOME, agent, deployed, kubectl};

const BERTH: &str = env!("CARGO_BIN_EXE_berth");

struct Installed {
    dir: tempfile::TempDir,
}

/// The cluster's CA, as a kubelet mounts it.
fn authority(cluster: &Cluster) -> Vec<u8> {
    let text = fs::read_to_string(cluster.kubeconfig()).unwrap();
    let config: Value = serde_saphyr::from_str(&text).unwrap();
    let data = &config["clusters"][0]["cluster"]["certificate-authority-data"];
    BASE64_STANDARD.decode(data.as_str().unwrap()).unwrap()
}

async fn install() -> Installed {
    let (cluster, account) = (deployed().await, agent().await);
    let dir = tempfile::tempdir().unwrap();
    let at = |path: &str| dir.path().join(path);
    for sub in ["bin", "net.d", "account"] {
        fs::create_dir(at(sub)).unwrap();
    }
    fs::write(at("account/token"), account.token()).unwrap();
    fs::write(at("account/ca.crt"), authority(cluster)).unwrap();
    fs::write(at("account/namespace"), HOME).unwrap();
    let output = isolated(Command::new(BERTH))
        .args(["install", "--once", "--host-root=/"])
        .arg("--cni-bin-dir")
        .arg(at("bin"))
        .arg("--cni-conf-dir")
        .arg(at("net.d"))
        .arg("--token-file")
        .arg(at("account/token"))
        .env("BERTH_PLUGIN", plugin_beside(BERTH).unwrap())
        .env("NODENAME", "node-1")
        .env("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        .env("KUBERNETES_SERVICE_PORT", cluster.port().to_string())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    Installed { dir }
}

impl Installed {
    fn at(&self, path: &str) -> PathBuf {
        self.dir.path().join(path)
    }

    /// What a container runtime does: the installed plugin, the network on stdin.
    fn call(&self, verb: &str, pod: &str, range: &str) -> Output {
        let conf = json!({ "cniVersion": "1.0.0", "name": "net", "type": "macvlan", "ipam": {
            "type": "whereabouts", "range": range, "configuration_path": self.at("net.d/whereabouts.d"),
        }});
        let call = PodCall::new("whereabouts", verb, pod)
            .in_namespace("default", pod)
            .of_container(&format!("container-of-{pod}"))
            .in_netns(Path::new("/proc/self/ns/net"));
        let mut command = call.command(self.at("bin/whereabouts"));
        command
            .env("BERTH_SOCKET", self.at("berth.sock"))
            .env("BERTH_DATABASE", self.at("berth.db"))
            .stderr(Stdio::piped());
        fed(&mut command, conf.to_string()).unwrap()
    }

    fn add(&self, pod: &str, range: &str) -> String {
        let output = self.call("ADD", pod, range);
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{text}");
        let result: Value = serde_json::from_str(&text).unwrap();
        result["ips"][0]["address"].as_str().unwrap().to_owned()
    }

    fn del(&self, pod: &str, range: &str) {
        let output = self.call("DEL", pod, range);
        assert!(output.status.success(), "{output:?}");
    }

    fn agent(&self) -> Agent {
        let agent = Agent::start(BERTH, &self.at(""), "berth", |command| {
            let kubeconfig = self.at("net.d/whereabouts.d/whereabouts.kubeconfig");
            command
                .args(["--node=node-1", "--kubeconfig"])
                .arg(kubeconfig);
        });
        agent.unwrap()
    }
}

/// Pods and reservations that the range's pool has.
fn held(cluster: &Cluster, pool: &str) -> (usize, usize) {
    let get = |what: &str| -> Value {
        let get = ["get", what, "--namespace", HOME, "--output=json"];
        serde_json::from_str(&kubectl(cluster, &get)).unwrap()
    };
    let pools = get("ippools");
    let pool = pools["items"]
        .as_array()
        .unwrap()
        .iter()
        .find(|known| known["metadata"]["name"] == pool)
        .unwrap();
    let prefix = pool["spec"]["range"].as_str().unwrap();
    let prefix = prefix.rsplit_once('.').unwrap().0;
    let reservations = get("overlappingrangeipreservations");
    let reservations = reservations["items"].as_array().unwrap().iter();
    let names = reservations.map(|one| one["metadata"]["name"].as_str().unwrap());
    (
        pool["spec"]["allocations"]
            .as_object()
            .map_or(0, serde_json::Map::len),
        names.filter(|name| name.starts_with(prefix)).count(),
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn the_plugin_works_with_the_rights_of_its_kubeconfig() {
    let (cluster, node) = (deployed().await, install().await);
    let range = "10.77.1.0/24";
    assert_eq!(node.add("one", range), "10.77.1.1/24");
    assert_eq!(node.add("two", range), "10.77.1.2/24");
    assert_eq!(node.add("one", range), "10.77.1.1/24");
    assert_eq!(held(cluster, "10.77.1.0-24"), (2, 2));
    node.del("one", range);
    assert_eq!(held(cluster, "10.77.1.0-24"), (1, 1));
    // It was the cluster's pool: the node's own store was not touched.
    assert!(!node.at("berth.db").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_agent_works_with_the_same_rights() {
    let (cluster, node) = (deployed().await, install().await);
    let _agent = node.agent();
    let range = "10.77.2.0/24";
    assert_eq!(node.add("three", range), "10.77.2.1/24");
    assert_eq!(node.add("four", range), "10.77.2.2/24");
    node.del("three", range);
    assert_eq!(node.add("five", range), "10.77.2.1/24");
    assert_eq!(held(cluster, "10.77.2.0-24"), (2, 2));
    let log = fs::read_to_string(node.at("berth.log")).unwrap();
    assert!(!log.contains("forbidden"), "{log}");
}

fn kind(group: &str, version: &str, kind: &str) -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind))
}

fn refused<T: std::fmt::Debug>(outcome: Result<T, kube::Error>) {
    match outcome {
        Err(kube::Error::Api(status)) => assert_eq!(status.code, 403, "{status:?}"),
        other => panic!("{other:?}"),
    }
}

/// What garbage collection and claims need, in real calls, and what must not work.
#[tokio::test]
async fn beyond_pools_the_account_reads_and_tells() {
    let (cluster, account) = (deployed().await, agent().await);
    let client = account.client().await.unwrap();
    let create = PostParams::default();

    let pods: Api<Pod> = Api::all(client.clone());
    let own = ListParams::default().fields("spec.nodeName=node-1");
    pods.list(&own).await.unwrap();
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    assert!(pods.get_opt("nobody").await.unwrap().is_none());
    refused(pods.delete("nobody", &DeleteParams::default()).await);
    let nodes: Api<Node> = Api::all(client.clone());
    assert!(nodes.get_opt("nobody").await.unwrap().is_none());

    let event: Event = serde_json::from_value(json!({
        "metadata": { "name": "one.1", "namespace": "default" },
        "involvedObject": { "kind": "Pod", "name": "one", "namespace": "default" },
        "reason": "IPAddressGarbageCollected", "type": "Normal", "message": "10.0.0.1",
        "source": { "component": "berth", "host": "node-1" },
    }))
    .unwrap();
    let events: Api<Event> = Api::namespaced(client.clone(), "default");
    events.create(&create, &event).await.unwrap();
    refused(events.get("one.1").await);

    let leases: Api<Lease> = Api::namespaced(client.clone(), HOME);
    let mut sweep = leases.get("berth-sweep").await.unwrap();
    sweep.spec.get_or_insert_default().holder_identity = Some("node-1".to_owned());
    let sweep = leases
        .replace("berth-sweep", &create, &sweep)
        .await
        .unwrap();
    refused(leases.get("whereabouts").await);
    for name in ["berth-sweep", "whereabouts"] {
        let mut other = sweep.clone();
        other.metadata = serde_json::from_value(json!({ "name": name })).unwrap();
        refused(leases.create(&create, &other).await);
    }

    let claim = json!({
        "apiVersion": "k8s.cni.cncf.io/v1alpha1", "kind": "IPAMClaim",
        "metadata": { "name": "vm", "namespace": "default" },
        "spec": { "network": "net", "interface": "net1" },
    });
    cluster.apply_object(claim).await.unwrap();
    let claims: Api<DynamicObject> = Api::namespaced_with(
        client.clone(),
        "default",
        &kind("k8s.cni.cncf.io", "v1alpha1", "IPAMClaim"),
    );
    let patch = PatchParams::default();
    let status = Patch::Merge(json!({ "status": { "ips": ["10.0.0.1/24"] } }));
    claims.patch_status("vm", &patch, &status).await.unwrap();
    assert_eq!(
        claims.get("vm").await.unwrap().data["status"]["ips"][0],
        "10.0.0.1/24"
    );
    let spec = Patch::Merge(json!({ "spec": { "network": "other" } }));
    refused(claims.patch("vm", &patch, &spec).await);

    // A pool can't be deleted, nor one be made where none belongs.
    let pool = kind("whereabouts.cni.cncf.io", "v1alpha1", "IPPool");
    let here: Api<DynamicObject> = Api::namespaced_with(client.clone(), HOME, &pool);
    refused(here.delete("10.77.1.0-24", &DeleteParams::default()).await);
    let away: Api<DynamicObject> = Api::namespaced_with(client.clone(), "default", &pool);
    refused(away.list(&ListParams::default()).await);
    let secrets: Api<Secret> = Api::all(client.clone());
    refused(secrets.list(&ListParams::default()).await);
    let maps: Api<ConfigMap> = Api::namespaced(client, HOME);
    refused(maps.list(&ListParams::default()).await);
}
