//! Two VMs of the local cloud with an agent's front each, on a real API server, under the rights that deploy/gcp grants.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use berth_cni::wire::{Answer, Request};
use berth_desk::DeskMetrics;
use berth_front::LeaderTask as _;
use berth_gcp::cloud::Endpoints;
use berth_gcp::front::{Daemon, Duty, Front, GcpMetrics, GcpTask, IP_POOL_KIND, Settings, Setup};
use berth_kube::Connect;
use berth_testcloud::{AliasRange, Cloud, Project};
use berth_testkit::{Account, Cluster, PodCall};
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch,
    PatchParams, PostParams,
};
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub const REGION: &str = "us-central1";
pub const UPDATE: &str = "instances.updateNetworkInterface";
const CRD: &str = include_str!("../../../../deploy/gcp/crds/ipam.gcp-cni.cast.ai_ippools.yaml");
const RIGHTS: &str = include_str!("../../../../deploy/gcp/agent/rbac.yaml");
const LEADER_RIGHTS: &str = include_str!("../../../../deploy/gcp/controller/rbac.yaml");
const PATIENCE: Duration = Duration::from_secs(90);

/// What tests share of a cloud and a cluster; each has a subnet, a pool and nodes of its own.
pub struct Scene {
    pub cluster: &'static Cluster,
    pub cloud: Arc<Cloud>,
    pub namespace: String,
    pub subnet: String,
    pub pool: String,
    account: Account,
    dir: tempfile::TempDir,
}

/// One node's agent: its front runs in a runtime of its own, so that it can be stopped at any instruction.
pub struct TestNode {
    pub name: String,
    pub front: Arc<Front>,
    runtime: Option<Runtime>,
}

/// The leader of the controllers; it ends its term when it is dropped.
pub struct TestLeader {
    term: CancellationToken,
    runtime: Option<Runtime>,
    _account: Account,
}

impl Drop for TestLeader {
    fn drop(&mut self) {
        self.term.cancel();
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

pub fn zone(node: &str) -> &'static str {
    match node.ends_with('a') {
        true => "us-central1-a",
        false => "us-central1-b",
    }
}

impl Scene {
    pub async fn new(operation: u64) -> Scene {
        Scene::with_pool(operation, |_| {}).await
    }

    pub async fn with_pool(operation: u64, change: impl FnOnce(&mut Value)) -> Scene {
        let cluster = Cluster::shared().await;
        cluster.apply(CRD).await.unwrap();
        Scene::on(cluster, operation, change).await
    }

    /// The same with upstream's definition of IPPools, which drops what it does not know, in a cluster of its own.
    pub async fn with_upstreams_definition(operation: u64) -> Scene {
        let cluster = Box::leak(Box::new(Cluster::start().await.unwrap()));
        let mut definition: Value = serde_saphyr::from_str(CRD).unwrap();
        let schema = &mut definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        let entry =
            &mut schema["properties"]["spec"]["properties"]["allocations"]["additionalProperties"];
        let dropped = entry["properties"].as_object_mut().unwrap().remove("berth");
        assert!(dropped.is_some());
        cluster.apply_object(definition).await.unwrap();
        Scene::on(cluster, operation, |_| {}).await
    }

    async fn on(
        cluster: &'static Cluster,
        operation: u64,
        change: impl FnOnce(&mut Value),
    ) -> Scene {
        let namespace = cluster.namespace("live").await.unwrap();
        let rules: Vec<Value> = serde_saphyr::from_multiple(RIGHTS).unwrap();
        let rules = rules[0]["rules"].clone();
        let account = cluster
            .service_account(&namespace, "berth-agent", rules)
            .await
            .unwrap();
        let subnet = format!("nodes-{namespace}");
        let mut project = Project::new("berth-test");
        project.operation_time = Duration::from_millis(operation);
        project.add_subnetwork(REGION, &subnet, "10.128.0.0/20");
        project.add_secondary_range(REGION, &subnet, "pods", "10.4.0.0/14");
        project.add_secondary_range(REGION, &subnet, "live", "10.111.0.0/16");
        let cloud = Arc::new(Cloud::start(project).await.unwrap());
        let scene = Scene {
            cluster,
            cloud,
            pool: format!("ippool-{subnet}"),
            namespace,
            subnet,
            account,
            dir: tempfile::tempdir().unwrap(),
        };
        let mut object = json!({
            "apiVersion": "ipam.gcp-cni.cast.ai/v1alpha1", "kind": "IPPool", "metadata": { "name": scene.pool },
            "spec": {
                "cidr": "10.111.0.0/16", "secondaryRangeName": "live", "allocations": {},
                "subnet": format!("projects/berth-test/regions/{REGION}/subnetworks/{}", scene.subnet),
            },
            "status": { "capacity": 65534, "allocated": 0, "available": 65534 },
        });
        change(&mut object);
        cluster.apply_object(object).await.unwrap();
        scene
    }

    /// The name of a node: `a` is in one zone, every other in another.
    pub fn node_name(&self, which: &str) -> String {
        format!("{}-{which}", self.namespace)
    }

    /// A VM with its Node, and the agent's front there.
    pub async fn node(&self, which: &str) -> TestNode {
        self.node_with(which, |_| {}).await
    }

    pub async fn node_with(&self, which: &str, change: impl FnOnce(&mut Settings)) -> TestNode {
        let name = self.node_name(which);
        let own = AliasRange::of("pods", &format!("10.4.{}.0/24", which.as_bytes()[0]));
        self.cloud.project(|project| {
            project.add_instance(zone(&name), &name, (REGION, &self.subnet), vec![own]);
        });
        let node: Node = serde_json::from_value(json!({
            "metadata": { "name": name },
            "spec": { "providerID": format!("gce://berth-test/{}/{name}", zone(&name)) },
        }))
        .unwrap();
        let nodes: Api<Node> = Api::all(self.cluster.client().await.unwrap());
        nodes.create(&PostParams::default(), &node).await.unwrap();
        self.start(&name, change).await
    }

    /// The agent's front on a node that exists, with the node's file.
    pub async fn start(&self, name: &str, change: impl FnOnce(&mut Settings)) -> TestNode {
        let settings = self.settings(name, change).await;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let (account, database, node) = (
            self.account.kubeconfig().to_owned(),
            self.database(name),
            name.to_owned(),
        );
        let opened = runtime.spawn(async move {
            let daemon = Daemon {
                stop: CancellationToken::new(),
                tasks: TaskTracker::new(),
            };
            let front = open(&node, account, database, settings, Some(daemon)).await;
            front.start();
            Arc::new(front)
        });
        let front = opened.await.unwrap();
        TestNode {
            name: name.to_owned(),
            front,
            runtime: Some(runtime),
        }
    }

    /// The controller's task, under the controller's rights, on a VM that has no pods of the pool.
    pub async fn leader(&self) -> TestLeader {
        let name = self.node_name("leader");
        self.cloud.project(|project| {
            project.add_instance(zone(&name), &name, (REGION, &self.subnet), Vec::new());
        });
        let rules: Vec<Value> = serde_saphyr::from_multiple(LEADER_RIGHTS).unwrap();
        let account = self
            .cluster
            .service_account(
                &self.namespace,
                "berth-controller",
                rules[0]["rules"].clone(),
            )
            .await
            .unwrap();
        let settings = self.settings(&name, |_| {}).await;
        let connect = Connect {
            kubeconfig: Some(account.kubeconfig().to_owned()),
            ..Connect::default()
        };
        let term = CancellationToken::new();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let ended = term.clone();
        runtime.spawn(async move {
            let connection = connect.open().await.unwrap();
            GcpTask::new(connection, "leader", settings)
                .lead(ended)
                .await;
        });
        TestLeader {
            term,
            runtime: Some(runtime),
            _account: account,
        }
    }

    /// A process that serves one call without an agent.
    pub async fn once(&self, name: &str, request: &Request) -> Answer {
        let settings = self.settings(name, |_| {}).await;
        let front = open(
            name,
            self.account.kubeconfig().to_owned(),
            self.database(name),
            settings,
            None,
        )
        .await;
        front.answer(request).await
    }

    pub fn lock(&self, name: &str) -> PathBuf {
        self.dir.path().join(format!("{name}.lock"))
    }

    fn database(&self, name: &str) -> PathBuf {
        self.dir.path().join(format!("{name}.db"))
    }

    async fn settings(&self, name: &str, change: impl FnOnce(&mut Settings)) -> Settings {
        let endpoint = self.cloud.endpoint();
        let mut settings = Settings {
            endpoints: Endpoints::new(Some(&endpoint), Some(&endpoint)).unwrap(),
            metadata_host: Some(self.cloud.metadata(zone(name), name).await.unwrap()),
            lock: self.lock(name),
            sweep: Duration::from_millis(200),
            grace: berth_collector::GracePeriods {
                pod: Duration::from_millis(300),
                node: Duration::from_millis(600),
            },
            ..Settings::default()
        };
        change(&mut settings);
        settings
    }

    /// A pod on a node; its UID.
    pub async fn pod(&self, name: &str, node: &str, annotations: &[(&str, &str)]) -> String {
        self.labelled_pod(name, node, annotations, &[]).await
    }

    pub async fn labelled_pod(
        &self,
        name: &str,
        node: &str,
        annotations: &[(&str, &str)],
        labels: &[(&str, &str)],
    ) -> String {
        let map = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            pairs
                .iter()
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                .collect()
        };
        let pod: Pod = serde_json::from_value(json!({
            "metadata": { "name": name, "annotations": map(annotations), "labels": map(labels) },
            "spec": { "nodeName": node, "containers": [{ "name": "c", "image": "nothing" }] },
        }))
        .unwrap();
        self.create_pod(&self.namespace, &pod).await
    }

    /// Any pod, in any namespace; its UID.
    pub async fn create_pod(&self, namespace: &str, pod: &Pod) -> String {
        let client = self.cluster.client().await.unwrap();
        let pods: Api<Pod> = Api::namespaced(client, namespace);
        let made = pods.create(&PostParams::default(), pod).await.unwrap();
        made.metadata.uid.unwrap()
    }

    pub async fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.cluster.client().await.unwrap(), &self.namespace)
    }

    pub async fn annotate(&self, pod: &str, name: &str, value: &str) {
        let patch = json!({ "metadata": { "annotations": { name: value } } });
        let pods = self.pods().await;
        pods.patch(pod, &PatchParams::default(), &Patch::Merge(&patch))
            .await
            .unwrap();
    }

    pub async fn delete_pod(&self, name: &str) {
        let now = DeleteParams {
            grace_period_seconds: Some(0),
            ..DeleteParams::default()
        };
        self.pods().await.delete(name, &now).await.unwrap();
    }

    pub async fn delete_node(&self, name: &str) {
        let nodes: Api<Node> = Api::all(self.cluster.client().await.unwrap());
        nodes.delete(name, &DeleteParams::default()).await.unwrap();
    }

    pub fn call(&self, verb: &str, pod: &str) -> PodCall {
        PodCall::new("gcp-ipam", verb, pod)
            .in_namespace(&self.namespace, pod)
            .of_interface("eth0")
    }

    pub fn request(&self, verb: &str, pod: &str) -> Request {
        self.call(verb, pod).request(&json!({}))
    }

    /// The IPPool as the API server has it.
    pub async fn object(&self) -> Value {
        self.object_named(&self.pool).await
    }

    pub async fn object_named(&self, name: &str) -> Value {
        let found = self.pools().await.get(name).await.unwrap();
        serde_json::to_value(found).unwrap()
    }

    pub async fn patch_pool(&self, patch: &Value) {
        let params = PatchParams::default();
        let pools = self.pools().await;
        pools
            .patch(&self.pool, &params, &Patch::Merge(patch))
            .await
            .unwrap();
    }

    pub async fn delete_pool(&self) {
        let pools = self.pools().await;
        let deleted = pools.delete(&self.pool, &DeleteParams::default()).await;
        deleted.unwrap();
    }

    pub async fn replace_pool(&self, object: &Value) {
        let object: DynamicObject = serde_json::from_value(object.clone()).unwrap();
        let pools = self.pools().await;
        let params = PostParams::default();
        pools.replace(&self.pool, &params, &object).await.unwrap();
    }

    /// The pool as an administrator makes it again.
    pub async fn forget_allocations(&self) {
        let allocations = self.object().await["spec"]["allocations"].clone();
        let empty: BTreeMap<String, Value> = allocations
            .as_object()
            .unwrap()
            .keys()
            .map(|key| (key.clone(), Value::Null))
            .collect();
        self.patch_pool(&json!({ "spec": { "allocations": empty } }))
            .await;
    }

    /// Waits for an event on a pod.
    pub async fn event(&self, pod: &str, reason: &str) -> Event {
        let events: Api<Event> =
            Api::namespaced(self.cluster.client().await.unwrap(), &self.namespace);
        let fields = format!("involvedObject.name={pod},reason={reason}");
        let params = ListParams::default().fields(&fields);
        let begun = Instant::now();
        loop {
            let found = events.list(&params).await.unwrap();
            if let Some(event) = found.items.into_iter().next() {
                return event;
            }
            assert!(begun.elapsed() < PATIENCE, "no event {reason} on {pod}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    async fn pools(&self) -> Api<DynamicObject> {
        let kind = GroupVersionKind::gvk("ipam.gcp-cni.cast.ai", "v1alpha1", "IPPool");
        let resource = ApiResource::from_gvk_with_plural(&kind, "ippools");
        Api::all_with(self.cluster.client().await.unwrap(), &resource)
    }

    pub async fn entry(&self, address: &str) -> Value {
        self.object().await["spec"]["allocations"][address].clone()
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

    /// Berth's aliases on a node.
    pub fn aliases(&self, node: &str) -> Vec<Ipv4Addr> {
        let aliases = self
            .cloud
            .project(|project| project.aliases(zone(node), node))
            .unwrap();
        let own = aliases
            .iter()
            .filter_map(|alias| alias.ip_cidr_range.strip_suffix("/32"));
        own.map(|address| address.parse().unwrap()).collect()
    }

    pub fn updates(&self) -> usize {
        self.cloud.count(UPDATE)
    }

    /// Waits until the address is free and its alias gone.
    pub async fn until_free(&self, address: &str) {
        until(&format!("{address} is free"), async || {
            self.entry(address).await.is_null() && self.holders(address).is_empty()
        })
        .await;
    }
}

async fn open(
    node: &str,
    kubeconfig: PathBuf,
    database: PathBuf,
    settings: Settings,
    daemon: Option<Daemon>,
) -> Front {
    let connect = Connect {
        kubeconfig: Some(kubeconfig),
        ..Connect::default()
    };
    let connection = connect.open().await.unwrap();
    let file = berth_node::NodeFile::open(&database).await.unwrap();
    let cluster = berth_front::Cluster::new(connection, None);
    Front::new(Setup {
        duty: Duty::Node(file.attachments().clone()),
        metrics: GcpMetrics::default(),
        node: node.to_owned(),
        desks: IP_POOL_KIND.desks(&cluster, DeskMetrics::default()),
        connection: cluster.connection,
        settings,
        daemon,
    })
}

impl TestNode {
    /// Serves a call in the agent's runtime; None if the agent was killed meanwhile.
    pub async fn try_ask(&self, request: Request) -> Option<Answer> {
        let front = Arc::clone(&self.front);
        let runtime = self.runtime.as_ref().unwrap();
        runtime
            .spawn(async move { front.answer(&request).await })
            .await
            .ok()
    }

    pub async fn ask(&self, request: Request) -> Answer {
        self.try_ask(request).await.unwrap()
    }

    /// Begins a call and leaves it.
    pub fn begin(&self, request: Request) {
        let front = Arc::clone(&self.front);
        drop(
            self.runtime
                .as_ref()
                .unwrap()
                .spawn(async move { front.answer(&request).await }),
        );
    }

    /// The address that an ADD gives.
    pub async fn add(&self, scene: &Scene, pod: &str) -> String {
        address(&self.ask(scene.request("ADD", pod)).await)
    }

    pub async fn del(&self, scene: &Scene, pod: &str) {
        let answer = self.ask(scene.request("DEL", pod)).await;
        assert_eq!(answer.exit, 0, "{}", answer.stdout);
    }

    /// Ends everything at once, wherever it is.
    pub fn kill(mut self) -> String {
        self.runtime.take().unwrap().shutdown_background();
        self.name.clone()
    }
}

impl Drop for TestNode {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// The address of an answer, without its mask.
pub fn address(answer: &Answer) -> String {
    let given = berth_testkit::answered_addresses(answer).unwrap();
    assert_eq!(given.len(), 1, "{given:?}");
    given[0]
        .strip_suffix("/16")
        .expect("the pool's mask")
        .to_owned()
}

/// The code and the words of a refusal.
pub fn refusal(answer: &Answer) -> (u64, String) {
    let (code, text, _) = refusal_with_remedy(answer);
    (code, text)
}

/// The same with the remedy, which every refusal names.
pub fn refusal_with_remedy(answer: &Answer) -> (u64, String, String) {
    let (code, text) = berth_testkit::answered_addresses(answer).unwrap_err();
    let body: Value = serde_json::from_str(&answer.stdout).unwrap();
    let remedy = body["details"].as_str().unwrap_or_default().to_owned();
    assert!(!remedy.is_empty(), "no remedy: {body}");
    (code, text, remedy)
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

impl Scene {
    /// A Node that no test made a VM for, and the node `a` with its agent.
    pub async fn start_other_node(&self, name: &str) -> TestNode {
        let node: Node = serde_json::from_value(json!({ "metadata": { "name": name } })).unwrap();
        let nodes: Api<Node> = Api::all(self.cluster.client().await.unwrap());
        nodes.create(&PostParams::default(), &node).await.unwrap();
        self.node("a").await
    }

    pub async fn label_namespace(&self, name: &str, value: &str) {
        let api: Api<k8s_openapi::api::core::v1::Namespace> =
            Api::all(self.cluster.client().await.unwrap());
        let patch = json!({ "metadata": { "labels": { name: value } } });
        api.patch(
            &self.namespace,
            &PatchParams::default(),
            &Patch::Merge(&patch),
        )
        .await
        .unwrap();
    }
}
