//! A local cloud with a subnet of its own, the shared API server with the definition of IPPools, and the built command.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use berth_parts::Parts;
use berth_testcloud::{AliasRange, Cloud, Project};
pub use berth_testkit::Said;
use berth_testkit::{Cluster, isolated};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

pub const BERTH: &str = env!("CARGO_BIN_EXE_berth");
pub const PROJECT: &str = "berth-test";
pub const REGION: &str = "us-central1";
pub const ZONE: &str = "us-central1-a";

pub struct Scene {
    pub cluster: &'static Cluster,
    pub cloud: Cloud,
    pub metadata: String,
    /// IPPools are of the cluster: each test has a subnet, and with it a pool, of its own.
    pub subnet: String,
}

/// The command with nothing of this machine's environment.
pub fn bare() -> Command {
    let mut command = isolated(Command::new(BERTH));
    command.stdin(Stdio::null());
    command
}

/// A project with two VMs in one subnet, each with an alias range of its own, as GKE has them.
pub fn project(subnet: &str) -> Project {
    let mut project = Project::new(PROJECT);
    project.operation_time = Duration::from_millis(20);
    project.add_subnetwork(REGION, subnet, "10.128.0.0/20");
    project.add_secondary_range(REGION, subnet, "pods", "10.4.0.0/14");
    project.add_secondary_range(REGION, subnet, "services", "10.8.0.0/20");
    for (name, range) in [("node-a", "10.4.0.0/24"), ("node-b", "10.4.1.0/24")] {
        let own = vec![AliasRange::of("pods", range)];
        project.add_instance(ZONE, name, (REGION, subnet), own);
    }
    project
}

/// The shared API server, with the definition that deploy/gcp has.
pub async fn cluster() -> &'static Cluster {
    static DEFINED: OnceCell<()> = OnceCell::const_new();
    let cluster = Cluster::shared().await;
    DEFINED
        .get_or_init(|| async {
            let crds = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/gcp/crds");
            let apply = ["apply", "--filename", crds.to_str().unwrap()];
            Said::from(cluster.kubectl(&apply).unwrap()).succeeded();
            let established = [
                "wait",
                "--for=condition=Established",
                "crd/ippools.ipam.gcp-cni.cast.ai",
            ];
            Said::from(cluster.kubectl(&established).unwrap()).succeeded();
        })
        .await;
    cluster
}

impl Scene {
    pub async fn new(subnet: &str) -> Scene {
        Scene::with(subnet, project(subnet)).await
    }

    pub async fn with(subnet: &str, project: Project) -> Scene {
        let cluster = cluster().await;
        let cloud = Cloud::start(project).await.unwrap();
        let metadata = cloud.metadata(ZONE, "node-a").await.unwrap();
        Scene {
            cluster,
            cloud,
            metadata,
            subnet: subnet.to_owned(),
        }
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        self.command_on(self.cluster, arguments)
    }

    pub fn command_on(&self, cluster: &Cluster, arguments: &[&str]) -> Command {
        let mut command = bare();
        command
            .arg("--kubeconfig")
            .arg(cluster.kubeconfig())
            .args(["gcp", arguments[0]])
            .args(["--compute-endpoint", &self.cloud.endpoint()])
            .args(["--networkconnectivity-endpoint", &self.cloud.endpoint()])
            .env("GCE_METADATA_HOST", &self.metadata)
            .args(&arguments[1..]);
        command
    }

    /// Runs the command while the local cloud answers it.
    pub async fn berth(&self, arguments: &[&str]) -> Said {
        let command = self.command(arguments);
        let said = tokio::task::spawn_blocking(move || Said::of(command));
        said.await.unwrap()
    }

    pub fn start(&self, arguments: &[&str]) -> Child {
        let mut command = self.command(arguments);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().unwrap()
    }

    /// Every request so far is one that Google's discovery files describe.
    pub fn assert_described(&self) {
        let [compute, ranges] = Parts::find().unwrap().google_apis();
        berth_testcloud::assert_described(&self.cloud.requests(), &[&compute, &ranges]);
    }

    pub fn pool_name(&self) -> String {
        format!("ippool-{}", self.subnet)
    }

    pub fn subnet_path(&self) -> String {
        format!(
            "projects/{PROJECT}/regions/{REGION}/subnetworks/{}",
            self.subnet
        )
    }

    /// The IPPool of the subnet.
    pub fn pool(&self) -> Option<Value> {
        let name = self.pool_name();
        let get = [
            "get",
            "ippools.ipam.gcp-cni.cast.ai",
            &name,
            "--output=json",
            "--ignore-not-found",
        ];
        let text = Said::from(self.cluster.kubectl(&get).unwrap()).succeeded();
        (!text.is_empty()).then(|| serde_json::from_str(&text).unwrap())
    }

    /// Replaces or creates an IPPool of this name, as upstream would.
    pub async fn put_pool(&self, name: &str, cidr: &str, allocations: Value) {
        let allocated = allocations.as_object().unwrap().len();
        let pool = json!({
            "apiVersion": "ipam.gcp-cni.cast.ai/v1alpha1", "kind": "IPPool",
            "metadata": { "name": name, "labels": { "team": "network" } },
            "spec": {
                "cidr": cidr, "subnet": self.subnet_path(), "secondaryRangeName": "live",
                "allocations": allocations,
            },
            "status": { "capacity": 65534, "allocated": allocated, "available": 65534 - allocated },
        });
        self.cluster.apply_object(pool).await.unwrap();
    }

    pub fn delete_pool(&self) {
        let name = self.pool_name();
        let delete = ["delete", "ippools.ipam.gcp-cni.cast.ai", &name];
        Said::from(self.cluster.kubectl(&delete).unwrap()).succeeded();
    }

    /// The subnet's secondary ranges as the API shows them, by name.
    pub fn ranges(&self) -> Vec<(String, Value)> {
        let path = format!("/compute/v1/{}", self.subnet_path());
        let shown = self.cloud.show(&path).unwrap();
        let ranges = shown["secondaryIpRanges"].as_array().unwrap().iter();
        let name = |range: &Value| range["rangeName"].as_str().unwrap().to_owned();
        ranges.map(|range| (name(range), range.clone())).collect()
    }

    pub fn range_names(&self) -> Vec<String> {
        let ranges = self.ranges();
        ranges.into_iter().map(|(name, _)| name).collect()
    }
}

/// An entry of an IPPool as upstream writes it.
pub fn entry(pod: &str, uid: &str, node: &str) -> Value {
    json!({
        "podName": pod, "podNamespace": "default", "podUID": uid, "nodeName": node,
        "allocatedAt": "2026-11-18T00:00:00Z",
    })
}
