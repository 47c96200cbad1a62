//! Nodes with the built agent and plugin, on a real API server and the local cloud.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use berth_testcloud::{AliasRange, Cloud, Project, assert_described};
use berth_testkit::{Account, Agent, Agents, Cluster, PodCall, fed, plugin_beside};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams,
};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

pub const BERTH: &str = env!("CARGO_BIN_EXE_berth");
const REGION: &str = "us-central1";
const ZONE: &str = "us-central1-a";
const CRD: &str = include_str!("../../../../deploy/gcp/crds/ipam.gcp-cni.cast.ai_ippools.yaml");
const RIGHTS: &str = include_str!("../../../../deploy/gcp/agent/rbac.yaml");
const POLICIES: &str = include_str!("../../../../deploy/gcp/controller/policies.yaml");
const PATIENCE: Duration = Duration::from_secs(90);

pub struct Site {
    pub cluster: &'static Cluster,
    pub cloud: Cloud,
    pub namespace: String,
    pub dir: tempfile::TempDir,
    agents: Agents,
    subnet: String,
}

/// A node and how its programs reach the cluster and the cloud.
pub struct Host {
    pub name: String,
    pub account: Account,
    metadata: String,
}

impl Site {
    pub async fn new(operation: u64) -> Site {
        Site::on(Cluster::shared().await, operation).await
    }

    /// On a cluster of its own, where agents are under deploy/gcp/policies.yaml.
    pub async fn under_policies(operation: u64) -> Site {
        static POLICED: OnceCell<Cluster> = OnceCell::const_new();
        let cluster = POLICED.get_or_init(async || Cluster::start().await.unwrap());
        let site = Site::on(cluster.await, operation).await;
        site.cluster.apply(POLICIES).await.unwrap();
        site
    }

    async fn on(cluster: &'static Cluster, operation: u64) -> Site {
        for crd in berth_api::crds().unwrap() {
            cluster.apply_object(crd).await.unwrap();
        }
        cluster.apply(CRD).await.unwrap();
        let namespace = cluster.namespace("gcp").await.unwrap();
        let agents = cluster.agents(&namespace).await.unwrap();
        // As a kustomization with this namespace would apply them.
        for mut document in serde_saphyr::from_multiple::<Value>(RIGHTS).unwrap() {
            document["metadata"]["name"] = json!(format!("berth-gcp-{namespace}"));
            if document["kind"] == "ClusterRoleBinding" {
                document["roleRef"]["name"] = document["metadata"]["name"].clone();
                document["subjects"][0]["namespace"] = json!(namespace);
            }
            cluster.apply_object(document).await.unwrap();
        }
        let subnet = format!("nodes-{namespace}");
        let mut project = Project::new("berth-test");
        project.operation_time = Duration::from_millis(operation);
        project.add_subnetwork(REGION, &subnet, "10.128.0.0/20");
        project.add_secondary_range(REGION, &subnet, "pods", "10.4.0.0/14");
        project.add_secondary_range(REGION, &subnet, "live", "10.111.0.0/16");
        let pool = json!({
            "apiVersion": "ipam.gcp-cni.cast.ai/v1alpha1", "kind": "IPPool", "metadata": { "name": format!("ippool-{subnet}") },
            "spec": {
                "cidr": "10.111.0.0/16", "secondaryRangeName": "live", "allocations": {},
                "subnet": format!("projects/berth-test/regions/{REGION}/subnetworks/{subnet}"),
            },
        });
        cluster.apply_object(pool).await.unwrap();
        Site {
            cluster,
            cloud: Cloud::start(project).await.unwrap(),
            namespace,
            dir: tempfile::tempdir().unwrap(),
            agents,
            subnet,
        }
    }

    /// A VM, its Node, and the account of the agent there.
    pub async fn host(&self, which: &str) -> Host {
        let name = format!("{}-{which}", self.namespace);
        let own = AliasRange::of("pods", &format!("10.4.{}.0/24", which.as_bytes()[0]));
        self.cloud.project(|project| {
            project.add_instance(ZONE, &name, (REGION, &self.subnet), vec![own])
        });
        let node: Node = serde_json::from_value(json!({
            "metadata": { "name": name },
            "spec": { "providerID": format!("gce://berth-test/{ZONE}/{name}") },
        }))
        .unwrap();
        let nodes: Api<Node> = Api::all(self.cluster.client().await.unwrap());
        nodes.create(&PostParams::default(), &node).await.unwrap();
        Host {
            account: self.agents.on(&name).await.unwrap(),
            metadata: self.cloud.metadata(ZONE, &name).await.unwrap(),
            name,
        }
    }

    /// The metadata server of a VM that has no pods.
    pub async fn metadata_of_any_vm(&self) -> String {
        let name = format!("{}-controller", self.namespace);
        self.cloud.project(|project| {
            project.add_instance(ZONE, &name, (REGION, &self.subnet), Vec::new());
        });
        self.cloud.metadata(ZONE, &name).await.unwrap()
    }

    /// What the agent and the process without one are set to alike.
    pub fn environment(&self, host: &Host) -> Vec<(&'static str, String)> {
        let file = |ending: &str| {
            self.dir
                .path()
                .join(format!("{}.{ending}", host.name))
                .display()
                .to_string()
        };
        vec![
            ("NODENAME", host.name.clone()),
            (
                "BERTH_KUBECONFIG",
                host.account.kubeconfig().display().to_string(),
            ),
            ("WHEREABOUTS_NAMESPACE", self.namespace.clone()),
            ("BERTH_COMPUTE_ENDPOINT", self.cloud.endpoint()),
            ("GCE_METADATA_HOST", host.metadata.clone()),
            ("BERTH_GCP_LOCK", file("lock")),
            ("BERTH_GCP_SWEEP", "1".to_owned()),
            ("BERTH_GCP_GRACE", "1".to_owned()),
            ("BERTH_DATABASE", file("db")),
            ("BERTH_SOCKET", file("sock")),
        ]
    }

    pub fn agent(&self, host: &Host) -> Agent {
        self.agent_with(host, &[])
    }

    pub fn agent_with(&self, host: &Host, more: &[(&'static str, String)]) -> Agent {
        let mut environment = self.environment(host);
        environment.extend_from_slice(more);
        Agent::start(BERTH, self.dir.path(), &host.name, |command| {
            command.envs(environment);
        })
        .unwrap()
    }

    pub async fn pod(&self, name: &str, host: &Host, metadata: Value) {
        let mut metadata = metadata;
        metadata["name"] = json!(name);
        let pod: Pod = serde_json::from_value(json!({
            "metadata": metadata,
            "spec": { "nodeName": host.name, "containers": [{ "name": "c", "image": "nothing" }] },
        }))
        .unwrap();
        let pods: Api<Pod> = Api::namespaced(self.cluster.client().await.unwrap(), &self.namespace);
        pods.create(&PostParams::default(), &pod).await.unwrap();
    }

    /// Marks a pod to move out, and makes its clone on another node.
    pub async fn clone_of(&self, pod: &str, ip: &str, (from, to): (&Host, &Host), clone: &str) {
        self.mark_to_move_out(pod).await;
        let annotations =
            json!({ "live.cast.ai/ip": ip, "live.cast.ai/original-instance": from.name });
        self.pod(clone, to, json!({ "annotations": annotations }))
            .await;
    }

    pub async fn delete_pod(&self, name: &str) {
        let now = DeleteParams {
            grace_period_seconds: Some(0),
            ..DeleteParams::default()
        };
        let pods: Api<Pod> = Api::namespaced(self.cluster.client().await.unwrap(), &self.namespace);
        pods.delete(name, &now).await.unwrap();
    }

    pub async fn mark_to_move_out(&self, pod: &str) {
        let patch =
            json!({ "metadata": { "annotations": { "live.cast.ai/move-out-ip": "true" } } });
        let pods: Api<Pod> = Api::namespaced(self.cluster.client().await.unwrap(), &self.namespace);
        pods.patch(pod, &PatchParams::default(), &Patch::Merge(&patch))
            .await
            .unwrap();
    }

    /// The plugin under the name that the configuration has; built, so that what runs is never an old one.
    pub fn plugin(&self) -> PathBuf {
        let bin = self.dir.path().join("bin");
        let plugin = bin.join("gcp-ipam");
        if !plugin.exists() {
            fs::create_dir_all(&bin).unwrap();
            fs::copy(plugin_beside(BERTH).unwrap(), &plugin).unwrap();
        }
        plugin
    }

    /// A call as a runtime makes it.
    pub fn command(&self, host: &Host, verb: &str, pod: &str) -> (Command, String) {
        let call = PodCall::new("gcp-ipam", verb, pod)
            .in_namespace(&self.namespace, pod)
            .of_interface("eth0");
        let mut command = call.command(self.plugin());
        command.envs(self.environment(host)).env("BERTH_BIN", BERTH);
        (command, call.network(&json!({})).to_string())
    }

    pub fn run(&self, host: &Host, verb: &str, pod: &str) -> Output {
        let (mut command, network) = self.command(host, verb, pod);
        fed(&mut command, network).unwrap()
    }

    /// The address that an ADD gives.
    pub fn add(&self, host: &Host, pod: &str) -> String {
        let output = self.run(host, "ADD", pod);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            output.status.success(),
            "{text} {}",
            String::from_utf8_lossy(&output.stderr)
        );
        let result: Value = serde_json::from_str(&text).unwrap();
        let address = result["ips"][0]["address"].as_str().unwrap();
        address.strip_suffix("/16").unwrap().to_owned()
    }

    pub fn del(&self, host: &Host, pod: &str) {
        let output = self.run(host, "DEL", pod);
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stdout)
        );
    }

    pub async fn entry(&self, address: &str) -> Value {
        self.allocations().await[address].clone()
    }

    async fn allocations(&self) -> Value {
        self.object().await.data["spec"]["allocations"].clone()
    }

    /// What the pool keeps beside upstream's fields, such as moves under way.
    pub async fn attributes(&self) -> String {
        let annotations = self.object().await.metadata.annotations;
        let annotations = annotations.unwrap_or_default();
        let found = annotations.get("berth.dev/attributes");
        found.cloned().unwrap_or_default()
    }

    async fn object(&self) -> DynamicObject {
        let api = pools(self.cluster.client().await.unwrap());
        api.get(&self.pool_name()).await.unwrap()
    }

    pub fn pool_name(&self) -> String {
        format!("ippool-{}", self.subnet)
    }

    /// The VM that has the alias; several are joined by commas, and equal none of them.
    pub fn holder(&self, address: &str) -> String {
        self.holders(address).join(",")
    }

    /// The VMs that have the alias.
    pub fn holders(&self, address: &str) -> Vec<String> {
        let holders = self.cloud.project(|project| project.holders(address));
        holders.into_iter().map(|(_, name)| name).collect()
    }

    /// Berth's aliases on a VM.
    pub fn aliases(&self, vm: &str) -> Vec<String> {
        let aliases = self.cloud.project(|project| project.aliases(ZONE, vm));
        let aliases = aliases.unwrap_or_default().into_iter();
        aliases
            .filter_map(|alias| Some(alias.ip_cidr_range.strip_suffix("/32")?.to_owned()))
            .collect()
    }

    pub fn updates(&self) -> usize {
        self.cloud.count("instances.updateNetworkInterface")
    }

    pub fn requests(&self) -> usize {
        let compute =
            |call: &str| call.starts_with("instances") || call.starts_with("zoneOperations");
        self.cloud
            .requests()
            .iter()
            .filter(|request| compute(&request.call))
            .count()
    }

    /// Waits until the pool has no allocation and the VM no alias of it.
    pub async fn until_empty(&self, host: &Host) {
        until("nothing is left", async || {
            let entries = self.allocations().await;
            entries.as_object().is_none_or(|entries| entries.is_empty())
                && self.aliases(&host.name).is_empty()
        })
        .await;
    }

    pub async fn until_free(&self, address: &str) {
        until("it is free", async || {
            self.entry(address).await.is_null() && self.holders(address).is_empty()
        })
        .await;
    }
}

/// All IPPools, by that client.
pub fn pools(client: kube::Client) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("ipam.gcp-cni.cast.ai", "v1alpha1", "IPPool");
    Api::all_with(client, &ApiResource::from_gvk_with_plural(&kind, "ippools"))
}

/// What the programs asked of the cloud is what Google describes.
impl Drop for Site {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let [compute, ranges] = berth_parts::Parts::find().unwrap().google_apis();
            assert_described(&self.cloud.requests(), &[&compute, &ranges]);
        }
    }
}

pub async fn until(what: &str, condition: impl AsyncFn() -> bool) {
    let begun = Instant::now();
    while !condition().await {
        assert!(
            begun.elapsed() < PATIENCE,
            "not so within {PATIENCE:?}: {what}"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The directory of a file.
pub fn directory(path: &Path) -> &Path {
    path.parent().unwrap()
}
