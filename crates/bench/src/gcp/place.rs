//! Nodes of a local cloud: each has the front of an agent, all share a real API server and the leader's desk of a
//! controller.

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use berth_cni::wire::{Answer, Request};
use berth_desk::DeskMetrics;
use berth_front::Cluster as Connected;
use berth_gcp::cloud::Endpoints;
use berth_gcp::front::{Daemon, Duty, Front, GcpMetrics, IP_POOL_KIND, Settings, Setup};
use berth_kube::Connect;
use berth_leader::{Leader, LeaderSettings};
use berth_testcloud::{AliasRange, Cloud, Project};
use berth_testkit::{Account, Cluster, PodCall, Process, guarded, isolated};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::parallel::each;

const CRD: &str = include_str!("../../../../deploy/gcp/crds/ipam.gcp-cni.cast.ai_ippools.yaml");
const REGION: &str = "us-central1";
const ZONE: &str = "us-central1-a";
const AUDIENCE: &str = "desk.berth.dev";
const TIMEOUT: Duration = Duration::from_secs(120);
pub const UPDATE: &str = "instances.updateNetworkInterface";
pub const WAIT: &str = "zoneOperations.wait";

/// A subnet with its pool, and a controller that leads.
pub struct Place {
    cluster: Cluster,
    pub cloud: Cloud,
    namespace: String,
    subnet: String,
    account: Account,
    dir: tempfile::TempDir,
    _leader: Process,
}

/// One node's agent.
pub struct Agent {
    pub name: String,
    front: Arc<Front>,
    stop: CancellationToken,
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Place {
    pub async fn new(operation: Duration) -> Result<Place> {
        let cluster = Cluster::start().await?;
        for crd in berth_api::crds()? {
            cluster.apply_object(crd).await?;
        }
        cluster.apply(CRD).await?;
        let namespace = cluster.namespace("bench").await?;
        let rules = json!([
            {"apiGroups": ["ipam.gcp-cni.cast.ai"], "resources": ["ippools"], "verbs": ["get", "list", "watch", "create", "update"]},
            {"apiGroups": [""], "resources": ["pods", "nodes", "namespaces"], "verbs": ["get", "list", "watch"]},
            {"apiGroups": [""], "resources": ["events"], "verbs": ["create"]},
            {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get"]},
        ]);
        let account = cluster
            .service_account(&namespace, "berth-agent", rules)
            .await?;
        let leader = lead(&cluster, &namespace).await?;
        let subnet = "nodes".to_owned();
        let mut project = Project::new("berth-bench");
        project.operation_time = operation;
        project.add_subnetwork(REGION, &subnet, "10.128.0.0/20");
        project.add_secondary_range(REGION, &subnet, "pods", "10.4.0.0/14");
        project.add_secondary_range(REGION, &subnet, "live", "10.111.0.0/16");
        let pool = json!({
            "apiVersion": "ipam.gcp-cni.cast.ai/v1alpha1", "kind": "IPPool", "metadata": { "name": format!("ippool-{subnet}") },
            "spec": {
                "cidr": "10.111.0.0/16", "secondaryRangeName": "live", "allocations": {},
                "subnet": format!("projects/berth-bench/regions/{REGION}/subnetworks/{subnet}"),
            },
        });
        cluster.apply_object(pool).await?;
        Ok(Place {
            cluster,
            cloud: Cloud::start(project).await?,
            namespace,
            subnet,
            account,
            dir: tempfile::tempdir()?,
            _leader: leader,
        })
    }

    /// A VM, its Node and its agent, `number` of many.
    pub async fn agent(&self, number: usize, change: impl FnOnce(&mut Settings)) -> Result<Agent> {
        let name = format!("node-{number:03}");
        let own = AliasRange::of("pods", &format!("10.4.{number}.0/24"));
        self.cloud.project(|project| {
            project.add_instance(ZONE, &name, (REGION, &self.subnet), vec![own]);
        });
        let node: Node = serde_json::from_value(json!({
            "metadata": { "name": name },
            "spec": { "providerID": format!("gce://berth-bench/{ZONE}/{name}") },
        }))?;
        let nodes: Api<Node> = Api::all(self.cluster.client().await?);
        nodes.create(&PostParams::default(), &node).await?;
        let endpoint = self.cloud.endpoint();
        let mut settings = Settings {
            endpoints: Endpoints::new(Some(&endpoint), Some(&endpoint))?,
            metadata_host: Some(self.cloud.metadata(ZONE, &name).await?),
            lock: self.file(&name, "lock"),
            ..Settings::default()
        };
        change(&mut settings);
        let connect = Connect {
            kubeconfig: Some(self.account.kubeconfig().to_owned()),
            namespace: Some(self.namespace.clone()),
            ..Connect::default()
        };
        let connection = connect.open().await?;
        let token = self
            .cluster
            .pod_token(&self.account, &name, AUDIENCE)
            .await?;
        let file = self.file(&name, "token");
        std::fs::write(&file, token)?;
        let asked = LeaderSettings::new(&name, file);
        let client = connection.client.clone();
        let leader = Leader::new(client, &self.namespace, asked);
        let cluster = Connected::new(connection, Some(Arc::new(leader)));
        let file = berth_node::NodeFile::open(&self.file(&name, "db")).await?;
        let stop = CancellationToken::new();
        let front = Front::new(Setup {
            duty: Duty::Node(file.attachments().clone()),
            node: name.clone(),
            desks: IP_POOL_KIND.desks(&cluster, DeskMetrics::default()),
            connection: cluster.connection,
            settings,
            daemon: Some(Daemon {
                stop: stop.clone(),
                tasks: TaskTracker::new(),
            }),
            metrics: GcpMetrics::default(),
        });
        front.start();
        Ok(Agent {
            name,
            front: Arc::new(front),
            stop,
        })
    }

    fn file(&self, node: &str, ending: &str) -> PathBuf {
        self.dir.path().join(format!("{node}.{ending}"))
    }

    /// Pods of a node; their names.
    pub async fn pods(&self, node: &str, what: &str, count: usize) -> Result<Vec<String>> {
        let names: Vec<String> = (0..count).map(|n| format!("{node}-{what}-{n}")).collect();
        each("pods are made", count, 16, async |at| {
            self.pod(&names[at], node, json!({})).await
        })
        .await?;
        Ok(names)
    }

    pub async fn pod(&self, name: &str, node: &str, annotations: Value) -> Result<()> {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": { "name": name, "annotations": annotations },
            "spec": { "nodeName": node, "containers": [{ "name": "c", "image": "nothing" }] },
        }))?;
        self.api()
            .await?
            .create(&PostParams::default(), &pod)
            .await?;
        Ok(())
    }

    /// A clone on `to` of a pod on `from`, which is marked to move out.
    pub async fn clone_of(
        &self,
        pod: &str,
        address: Ipv4Addr,
        from: &str,
        to: &str,
    ) -> Result<String> {
        let mark = json!({ "metadata": { "annotations": { "live.cast.ai/move-out-ip": "true" } } });
        let api = self.api().await?;
        api.patch(pod, &PatchParams::default(), &Patch::Merge(&mark))
            .await?;
        let clone = format!("{pod}-clone");
        let annotations = json!({ "live.cast.ai/ip": address.to_string(), "live.cast.ai/original-instance": from });
        self.pod(&clone, to, annotations).await?;
        Ok(clone)
    }

    async fn api(&self) -> Result<Api<Pod>> {
        Ok(Api::namespaced(
            self.cluster.client().await?,
            &self.namespace,
        ))
    }

    fn request(&self, verb: &str, pod: &str) -> Request {
        PodCall::new("gcp-ipam", verb, pod)
            .in_namespace(&self.namespace, pod)
            .of_interface("eth0")
            .request(&json!({}))
    }

    pub async fn add(&self, agent: &Agent, pod: &str) -> Result<Ipv4Addr> {
        let answer = agent.front.answer(&self.request("ADD", pod)).await;
        address(&answer).with_context(|| format!("ADD {pod} on {}", agent.name))
    }

    pub async fn del(&self, agent: &Agent, pod: &str) -> Result<Duration> {
        let started = Instant::now();
        let answer = agent.front.answer(&self.request("DEL", pod)).await;
        ensure!(answer.exit == 0, "DEL {pod}: {}", answer.stdout);
        Ok(started.elapsed())
    }

    /// Pods' aliases on a VM.
    pub fn aliases(&self, vm: &str) -> usize {
        let aliases = self.cloud.project(|project| project.aliases(ZONE, vm));
        let aliases = aliases.unwrap_or_default();
        aliases
            .iter()
            .filter(|alias| alias.ip_cidr_range.ends_with("/32"))
            .count()
    }

    pub fn holders(&self, address: Ipv4Addr) -> usize {
        self.cloud
            .project(|project| project.holders(&address.to_string()))
            .len()
    }

    pub async fn until(&self, what: &str, condition: impl Fn() -> bool) -> Result<()> {
        let started = Instant::now();
        while !condition() {
            ensure!(
                started.elapsed() < TIMEOUT,
                "not within {TIMEOUT:?}: {what}"
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }
}

/// `berth controller` with the leader's desk.
async fn lead(cluster: &Cluster, namespace: &str) -> Result<Process> {
    let built = std::env::current_exe()?;
    let berth = built
        .parent()
        .context("a program in no directory")?
        .join("berth");
    ensure!(
        berth.exists(),
        "{} is not built: run `cargo xtask bench gcp`",
        berth.display()
    );
    let mut command = isolated(guarded(&berth));
    command
        .args([
            "controller",
            "--identity",
            "bench",
            "--desk-listen",
            "127.0.0.1:0",
        ])
        .env("BERTH_KUBECONFIG", cluster.kubeconfig())
        .args(["--namespace", namespace]);
    let mut process = Process::start("controller", command, cluster.dir())?;
    let leases: Api<Lease> = Api::namespaced(cluster.client().await?, namespace);
    let started = Instant::now();
    while leases.get_opt("berth-controller").await?.is_none() {
        if let Some(status) = process.ended()? {
            bail!("the controller ended with {status}; {}", process.tail());
        }
        ensure!(
            started.elapsed() < TIMEOUT,
            "the controller does not lead; {}",
            process.tail()
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(process)
}

fn address(answer: &Answer) -> Result<Ipv4Addr> {
    ensure!(answer.exit == 0, "{}", answer.stdout);
    let result: Value = serde_json::from_str(&answer.stdout)?;
    let text = result["ips"][0]["address"].as_str().unwrap_or_default();
    let address = text.split('/').next().unwrap_or_default();
    address
        .parse()
        .with_context(|| format!("'{text}' is no address"))
}
