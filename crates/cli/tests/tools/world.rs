//! A namespace with pools, pods and networks, and the built command that reads them.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

pub use berth_testkit::Said;
use berth_testkit::{Account, Agent, Cluster, isolated};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

pub const BERTH: &str = env!("CARGO_BIN_EXE_berth");
pub const NODE: &str = "node-1";

pub struct World {
    pub cluster: &'static Cluster,
    pub namespace: String,
}

/// A command with nothing of this machine's environment.
pub fn bare() -> Command {
    let mut command = isolated(Command::new(BERTH));
    command.stdin(Stdio::null());
    command
}

impl World {
    pub async fn new() -> World {
        static DEFINED: OnceCell<()> = OnceCell::const_new();
        let cluster = Cluster::shared().await;
        DEFINED
            .get_or_init(|| async {
                for crd in berth_api::crds().unwrap() {
                    cluster.apply_object(crd).await.unwrap();
                }
                let node =
                    json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": NODE } });
                cluster.apply_object(node).await.unwrap();
            })
            .await;
        let namespace = cluster.namespace("tools").await.unwrap();
        World { cluster, namespace }
    }

    pub fn berth(&self, arguments: &[&str]) -> Said {
        let mut command = bare();
        command
            .arg("--kubeconfig")
            .arg(self.cluster.kubeconfig())
            .args(["--namespace", &self.namespace])
            .args(arguments);
        Said::of(command)
    }

    /// The account of the agent on the node: the shipped roles, under the shipped policies.
    pub async fn agent(&self) -> Account {
        self.cluster.agent(&self.namespace, NODE).await.unwrap()
    }

    /// The agent of the node, with its socket (`berth.sock`) and its database in `dir`.
    pub async fn start_agent(&self, dir: &Path, flags: &[&str]) -> Agent {
        let account = self.agent().await;
        let start = Agent::start(BERTH, dir, "berth", |command| {
            command
                .args(flags)
                .args(["--node", NODE, "--namespace", &self.namespace])
                .arg("--kubeconfig")
                .arg(account.kubeconfig());
        });
        start.unwrap()
    }

    pub async fn apply(&self, object: Value) {
        self.cluster.apply_object(object).await.unwrap();
    }

    /// A pool with these entries: offset and pod.
    pub async fn put_pool(&self, name: &str, range: &str, entries: &[(&str, &str)]) {
        let entry = |pod: &str| {
            let podref = format!("{}/{pod}", self.namespace);
            json!({ "id": format!("container-of-{pod}"), "podref": podref, "ifname": "net1" })
        };
        let allocations: serde_json::Map<String, Value> = entries
            .iter()
            .map(|(offset, pod)| ((*offset).to_owned(), entry(pod)))
            .collect();
        let spec = json!({ "range": range, "allocations": allocations });
        self.put_raw_pool(name, spec, json!({})).await;
    }

    pub async fn put_raw_pool(&self, name: &str, spec: Value, annotations: Value) {
        let pool = json!({
            "apiVersion": "whereabouts.cni.cncf.io/v1alpha1", "kind": "IPPool",
            "metadata": { "name": name, "namespace": self.namespace, "annotations": annotations },
            "spec": spec,
        });
        self.apply(pool).await;
    }

    pub async fn put_reservation(&self, name: &str, pod: &str) {
        let reservation = json!({
            "apiVersion": "whereabouts.cni.cncf.io/v1alpha1", "kind": "OverlappingRangeIPReservation",
            "metadata": { "name": name, "namespace": self.namespace },
            "spec": { "podref": format!("{}/{pod}", self.namespace), "ifname": "net1" },
        });
        self.apply(reservation).await;
    }

    pub async fn put_network(&self, name: &str, ipam: Value) {
        let mut ipam = ipam;
        ipam["type"] = json!("whereabouts");
        let config = json!({ "cniVersion": "1.0.0", "type": "macvlan", "ipam": ipam });
        let network = json!({
            "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
            "metadata": { "name": name, "namespace": self.namespace },
            "spec": { "config": config.to_string() },
        });
        self.apply(network).await;
    }

    /// A pod that is bound to the node.
    pub async fn run_pod(&self, name: &str, annotations: Value) {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": name, "namespace": self.namespace, "annotations": annotations },
            "spec": { "nodeName": NODE, "containers": [{ "name": "c", "image": "none" }] },
        });
        self.apply(pod).await;
    }

    pub fn kubectl(&self, arguments: &[&str]) -> String {
        let mut all = vec!["--namespace", self.namespace.as_str()];
        all.extend(arguments);
        let said = Said::from(self.cluster.kubectl(&all).unwrap());
        said.succeeded()
    }

    /// The entries of a pool, by offset.
    pub fn entries(&self, pool: &str) -> Value {
        let text = self.kubectl(&["get", "ippool", pool, "--output", "json"]);
        serde_json::from_str::<Value>(&text).unwrap()["spec"]["allocations"].clone()
    }

    /// The names of all reservations.
    pub fn reservations(&self) -> Vec<String> {
        let kind = "overlappingrangeipreservations";
        let text = self.kubectl(&["get", kind, "--output", "name"]);
        let name = |line: &str| line.rsplit('/').next().unwrap().to_owned();
        text.lines().map(name).collect()
    }
}

pub fn until(what: &str, done: impl Fn() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < Duration::from_secs(90), "{what}");
        std::thread::sleep(Duration::from_millis(100));
    }
}
