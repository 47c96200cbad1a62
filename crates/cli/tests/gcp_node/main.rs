//! A whole node (kubelet, containerd, ptp) whose pod network `berth gcp install` switches to gcp-ipam: pods from before the switch end
//! cleanly, a rewritten configuration is switched again, and the way back restores host-local.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::indexing_slicing
)]

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use berth_testcloud::{AliasRange, Cloud, Project};
use berth_testkit::{Agent, Node, NodeOptions, Process, Said, isolated, plugin_beside};
use serde_json::{Value, json};

const BERTH: &str = env!("CARGO_BIN_EXE_berth");
const CRD: &str = include_str!("../../../../deploy/gcp/crds/ipam.gcp-cni.cast.ai_ippools.yaml");
const RIGHTS: &str = include_str!("../../../../deploy/gcp/agent/rbac.yaml");
const REGION: &str = "us-central1";
const ZONE: &str = "us-central1-a";
const SUBNET: &str = "nodes";
const NAME: &str = "gke-node";
const PATIENCE: Duration = Duration::from_secs(120);

struct Site {
    node: Node,
    cloud: Cloud,
    namespace: String,
    /// Of sockets: a path that is short enough.
    dir: tempfile::TempDir,
}

impl Site {
    async fn new() -> Site {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("berth.sock").display().to_string();
        let options = NodeOptions {
            name: Some(NAME.to_owned()),
            env: vec![("BERTH_SOCKET".to_owned(), socket)],
            ..NodeOptions::default()
        };
        let node = Node::start(options).await.unwrap();
        node.cluster().apply(CRD).await.unwrap();
        let namespace = node.cluster().namespace("live").await.unwrap();
        let mut project = Project::new("berth-test");
        project.operation_time = Duration::from_millis(200);
        project.add_subnetwork(REGION, SUBNET, "10.128.0.0/20");
        project.add_secondary_range(REGION, SUBNET, "pods", "10.4.0.0/14");
        project.add_secondary_range(REGION, SUBNET, "live", "10.111.0.0/16");
        let own = vec![AliasRange::of("pods", "10.4.7.0/24")];
        project.add_instance(ZONE, NAME, (REGION, SUBNET), own);
        let pool = json!({
            "apiVersion": "ipam.gcp-cni.cast.ai/v1alpha1", "kind": "IPPool", "metadata": { "name": format!("ippool-{SUBNET}") },
            "spec": {
                "cidr": "10.111.0.0/16", "secondaryRangeName": "live", "allocations": {},
                "subnet": format!("projects/berth-test/regions/{REGION}/subnetworks/{SUBNET}"),
            },
        });
        node.cluster().apply_object(pool).await.unwrap();
        Site {
            node,
            cloud: Cloud::start(project).await.unwrap(),
            namespace,
            dir,
        }
    }

    /// The agent. It has the node's socket, and reaches the cloud from outside of the node.
    async fn agent(&self) -> Agent {
        let rules: Vec<Value> = serde_saphyr::from_multiple(RIGHTS).unwrap();
        let cluster = self.node.cluster();
        let rules = rules[0]["rules"].clone();
        let account = cluster
            .service_account(&self.namespace, "berth-agent", rules)
            .await
            .unwrap();
        let metadata = self.cloud.metadata(ZONE, NAME).await.unwrap();
        let (endpoint, dir) = (self.cloud.endpoint(), self.dir.path().to_owned());
        Agent::start(BERTH, self.dir.path(), "berth", |command| {
            command
                .env("NODENAME", NAME)
                .env("BERTH_KUBECONFIG", account.kubeconfig())
                .env("WHEREABOUTS_NAMESPACE", &self.namespace)
                .env("BERTH_COMPUTE_ENDPOINT", endpoint)
                .env("GCE_METADATA_HOST", metadata)
                .env("BERTH_GCP_LOCK", dir.join("lock"))
                .env("BERTH_GCP_SWEEP", "1")
                .env("BERTH_GCP_GRACE", "1");
        })
        .unwrap()
    }

    /// As netd writes it: the node's own range, served by host-local.
    fn conflist(&self) -> Value {
        json!({
            "cniVersion": "1.0.0", "name": "gke-pod-network",
            "plugins": [{
                "type": "ptp", "mtu": 1460,
                "ipam": {
                    "type": "host-local", "dataDir": self.data(),
                    "ranges": [[{ "subnet": "10.4.7.0/24" }]], "routes": [{ "dst": "0.0.0.0/0" }],
                },
            }],
        })
    }

    /// host-local's files.
    fn data(&self) -> PathBuf {
        self.node.dir().join("host-local")
    }

    fn file(&self) -> PathBuf {
        self.node.cni_conf_dir().join("10-containerd-net.conflist")
    }

    /// Puts the pod network's configuration there, as its own installer does: at once.
    fn write_conflist(&self) {
        let part = self.node.cni_conf_dir().join(".part");
        fs::write(&part, self.conflist().to_string()).unwrap();
        fs::rename(&part, self.file()).unwrap();
    }

    fn ipam_type(&self) -> String {
        let text = fs::read(self.file()).unwrap_or_default();
        let read: Value = serde_json::from_slice(&text).unwrap_or_default();
        let found = read["plugins"][0]["ipam"]["type"].as_str();
        found.unwrap_or_default().to_owned()
    }

    fn installer(&self) -> Process {
        let mut command = isolated(Command::new(BERTH));
        command
            .args(["gcp", "install"])
            .arg("--cni-bin-dir")
            .arg(self.node.cni_bin_dir())
            .arg("--cni-conf-dir")
            .arg(self.node.cni_conf_dir())
            .arg("--plugin")
            .arg(plugin_beside(BERTH).unwrap());
        Process::start("gcp-install", command, self.dir.path()).unwrap()
    }

    /// A pod that runs, and its address.
    async fn pod(&self, name: &str) -> String {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": name, "namespace": self.namespace },
            "spec": {
                "nodeName": NAME, "terminationGracePeriodSeconds": 0,
                "containers": [{ "name": "c", "image": Node::IMAGE }],
            },
        });
        self.node.cluster().apply_object(pod).await.unwrap();
        let running = self.node.wait_pod_running(&self.namespace, name).await;
        running.unwrap();
        let addresses = self.node.pod_addresses(&self.namespace, name).unwrap();
        addresses["eth0"][0].clone()
    }

    async fn end(&self, name: &str) {
        let delete = [
            "delete",
            "pod",
            "--namespace",
            &self.namespace,
            "--wait=false",
            name,
        ];
        Said::from(self.node.kubectl(&delete).unwrap()).succeeded();
        let gone = self.node.wait_pod_gone(&self.namespace, name).await;
        gone.unwrap();
    }

    fn holders(&self, address: &str) -> usize {
        self.cloud.project(|project| project.holders(address)).len()
    }

    fn is_reserved(&self, address: &str) -> bool {
        self.data().join("gke-pod-network").join(address).exists()
    }
}

fn without_mask(address: &str) -> &str {
    address.split('/').next().unwrap()
}

async fn until(what: &str, condition: impl Fn() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(
            begun.elapsed() < PATIENCE,
            "not so within {PATIENCE:?}: {what}"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_is_switched_to_gcp_ipam_and_back() {
    let site = Site::new().await;
    // GKE's nodes have no Multus.
    site.write_conflist();
    fs::remove_file(site.node.cni_conf_dir().join("00-multus.conf")).unwrap();
    // containerd reads a changed directory a moment later: from then on a pod's address is host-local's.
    let old = first_of(&site, "10.4.7.").await;
    let old_address = without_mask(&old.1).to_owned();
    assert!(site.is_reserved(&old_address));

    let _agent = site.agent().await;
    let installer = site.installer();
    until("the configuration is switched", || {
        site.ipam_type() == "gcp-ipam"
    })
    .await;
    let switched: Value = serde_json::from_slice(&fs::read(site.file()).unwrap()).unwrap();
    let mut expected = site.conflist();
    expected["plugins"][0]["ipam"]["type"] = json!("gcp-ipam");
    assert_eq!(switched, expected, "everything else stays");
    for program in ["gcp-ipam", "berth-full"] {
        assert!(site.node.cni_bin_dir().join(program).exists(), "{program}");
    }
    let live = first_of(&site, "10.111.").await;
    let live_address = without_mask(&live.1).to_owned();
    assert_eq!(
        site.holders(&live_address),
        1,
        "its address is an alias of the VM"
    );

    // A pod from before the switch ends cleanly: its DEL goes to host-local.
    site.end(&old.0).await;
    until("host-local has released it", || {
        !site.is_reserved(&old_address)
    })
    .await;
    // And one from after it.
    site.end(&live.0).await;
    until("the alias is gone", || site.holders(&live_address) == 0).await;

    // netd's watchdog removes the file, and writes it again.
    fs::remove_file(site.file()).unwrap();
    site.write_conflist();
    let written = Instant::now();
    until("it is switched again", || site.ipam_type() == "gcp-ipam").await;
    // Two seconds at most on a machine that does nothing else.
    println!(
        "the rewritten file was switched after {:?}",
        written.elapsed()
    );
    let kept = first_of(&site, "10.111.").await;
    let kept_address = without_mask(&kept.1).to_owned();

    // The way back.
    let pid = installer.pid().unwrap().to_string();
    let signalled = Command::new("kill").args(["-TERM", &pid]).status();
    assert!(signalled.unwrap().success());
    until("host-local is back", || site.ipam_type() == "host-local").await;
    let restored: Value = serde_json::from_slice(&fs::read(site.file()).unwrap()).unwrap();
    assert_eq!(restored, site.conflist());
    let plain = first_of(&site, "10.4.7.").await;
    assert!(site.is_reserved(without_mask(&plain.1)));
    // Its DEL goes to host-local, which does not know it: the agent releases what no pod has.
    site.end(&kept.0).await;
    until("the alias is gone", || site.holders(&kept_address) == 0).await;
}

/// The first pod whose address begins like that, of pods that are started one after the other; containerd may not have read the new
/// configuration yet when the first one starts.
async fn first_of(site: &Site, prefix: &str) -> (String, String) {
    static SERIAL: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
    let begun = Instant::now();
    loop {
        let serial = SERIAL.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let name = format!("pod-{serial}");
        let address = site.pod(&name).await;
        if address.starts_with(prefix) {
            return (name, address);
        }
        site.end(&name).await;
        assert!(
            begun.elapsed() < PATIENCE,
            "{address} does not begin with {prefix}"
        );
    }
}
