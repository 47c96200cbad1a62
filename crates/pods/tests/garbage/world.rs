//! A corner of the test cluster: a namespace with pools and pods in it, nodes, and collectors that work there.
//!
//! There is no kubelet: pods are bound to nodes that exist as objects only, and end when a test says so. ADD and DEL
//! go through the front, as a plugin's calls do.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use berth_api::whereabouts::{IPPool, IPPoolSpec, OverlappingRangeIPReservation};
use berth_desk::DeskMetrics;
use berth_kube::{Connect, Connection};
use berth_ledger::SharedRecordLedger;
use berth_node::NodeFile;
use berth_pods::garbage::{GarbageMetrics, GarbageSettings, GracePeriods, collector};
use berth_pods::journal::Journal;
use berth_pods::sticky::Sticky;
use berth_pods::{Front, Store};
use berth_testkit::{Agents, Cluster, InProcess, PodCall};
use berth_whereabouts::ETCD_REQUEST_LIMIT;
use berth_whereabouts::KubeLedger;
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams,
};
use kube::{Api, Client};
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::OnceCell;

pub const POOL: &str = "10.0.0.0-24";
pub const GRACE: Duration = Duration::from_millis(600);
pub const NODE_GRACE: Duration = Duration::from_millis(1200);
const INTERVAL: Duration = Duration::from_millis(1500);
/// Two cores, many tests: waiting long enough is not slow, it only fails slowly.
const PATIENCE: Duration = Duration::from_secs(60);

pub struct World {
    pub cluster: &'static Cluster,
    pub namespace: String,
    client: Client,
    agents: Agents,
    /// Where the network namespaces of containers would be.
    netns: TempDir,
    /// The nodes' own files.
    files: TempDir,
}

/// A node's agent, as far as it matters here.
pub struct Agent {
    pub node: String,
    pub front: Front,
    journal: Arc<Journal>,
    connection: Connection,
    ledger: SharedRecordLedger,
}

/// A collector at work; it stops when told.
pub struct Running {
    collector: InProcess,
    registry: Registry,
}

impl World {
    pub async fn new(name: &str) -> World {
        World::on(Cluster::shared().await, name).await
    }

    /// Where no controller is deployed: agents release what lost nodes held, and take entries over from other nodes.
    pub async fn without_a_controller(name: &str) -> World {
        static WITHOUT: OnceCell<Cluster> = OnceCell::const_new();
        let start = async || {
            let cluster = Cluster::start().await.unwrap();
            World::define(&cluster).await;
            cluster
        };
        let cluster = WITHOUT.get_or_init(start).await;
        let namespace = cluster.namespace(name).await.unwrap();
        let agents = cluster.agents_without_a_controller(&namespace).await;
        World::with(cluster, namespace, agents.unwrap()).await
    }

    pub async fn on(cluster: &'static Cluster, name: &str) -> World {
        static DEFINED: OnceCell<()> = OnceCell::const_new();
        if std::ptr::eq(cluster, Cluster::shared().await) {
            DEFINED.get_or_init(|| World::define(cluster)).await;
        } else {
            World::define(cluster).await;
        }
        let namespace = cluster.namespace(name).await.unwrap();
        let agents = cluster.agents(&namespace).await.unwrap();
        World::with(cluster, namespace, agents).await
    }

    async fn define(cluster: &Cluster) {
        for crd in berth_api::crds().unwrap() {
            cluster.apply_object(crd).await.unwrap();
        }
    }

    async fn with(cluster: &'static Cluster, namespace: String, agents: Agents) -> World {
        World {
            cluster,
            client: cluster.client().await.unwrap(),
            agents,
            namespace,
            netns: tempfile::tempdir().unwrap(),
            files: tempfile::tempdir().unwrap(),
        }
    }

    /// From now on that container's sandbox is there.
    pub fn start_sandbox(&self, container: &str) {
        std::fs::write(self.netns.path().join(container), "").unwrap();
    }

    pub fn stop_sandbox(&self, container: &str) {
        std::fs::remove_file(self.netns.path().join(container)).unwrap();
    }

    /// A node's own file, which is new.
    pub async fn node_file(&self) -> NodeFile {
        static FILES: AtomicUsize = AtomicUsize::new(0);
        let name = format!("{}.db", FILES.fetch_add(1, Ordering::Relaxed));
        let path = self.files.path().join(name);
        NodeFile::open(&path).await.unwrap()
    }

    /// An agent on a node of its own, which is made.
    pub async fn agent(&self, name: &str) -> Agent {
        self.agent_in(name, "this-boot", self.node_file().await)
            .await
    }

    pub async fn agent_in(&self, name: &str, boot: &str, local: NodeFile) -> Agent {
        self.agent_within(name, boot, local, ETCD_REQUEST_LIMIT)
            .await
    }

    /// One whose pools may have so many bytes.
    pub async fn agent_within(
        &self,
        name: &str,
        boot: &str,
        local: NodeFile,
        limit: usize,
    ) -> Agent {
        let node = format!("{name}-{}", self.namespace);
        self.put_node(&node).await;
        let account = self.agents.on(&node).await.unwrap();
        let connect = Connect {
            kubeconfig: Some(account.kubeconfig().to_owned()),
            timeout: Duration::from_secs(20),
            ..Connect::default()
        };
        let connection = connect.open().await.unwrap();
        let ledger = KubeLedger::new(connection.clone()).with_limit(limit);
        let ledger: SharedRecordLedger = Arc::new(ledger);
        let journal = Arc::new(Journal::new(&local));
        let store = Store::cluster(SharedRecordLedger::clone(&ledger), DeskMetrics::default())
            .with_journal(Arc::clone(&journal))
            .with_sticky(Sticky::new(&connection));
        let front = Front::new(Arc::new(Arc::new(store)), &node)
            .with_boot(boot)
            .with_flat_places(Vec::new());
        Agent {
            node,
            front,
            journal,
            connection,
            ledger,
        }
    }

    pub async fn put_node(&self, node: &str) {
        let object: Node = serde_json::from_value(json!({ "metadata": { "name": node } })).unwrap();
        let made = Api::<Node>::all(self.client.clone())
            .create(&PostParams::default(), &object)
            .await;
        match made {
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            made => {
                made.unwrap();
            }
        }
    }

    /// As an administrator does who knows that the machine is off.
    pub async fn take_out_of_service(&self, node: &str) {
        let taint = json!({ "key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute" });
        let patch = Patch::Merge(json!({ "spec": { "taints": [taint] } }));
        Api::<Node>::all(self.client.clone())
            .patch(node, &PatchParams::default(), &patch)
            .await
            .unwrap();
    }

    pub async fn delete_node(&self, node: &str) {
        Api::<Node>::all(self.client.clone())
            .delete(node, &DeleteParams::default())
            .await
            .unwrap();
    }

    /// A pod that runs on the agent's node; gives back its UID.
    pub async fn run_pod(&self, agent: &Agent, name: &str) -> String {
        self.run_pod_with(agent, name, json!({})).await
    }

    pub async fn run_pod_with(&self, agent: &Agent, name: &str, annotations: Value) -> String {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": { "name": name, "annotations": annotations },
            "spec": {
                "nodeName": agent.node,
                "containers": [{ "name": "c", "image": "nothing" }],
            },
        }))
        .unwrap();
        let made = self
            .pods()
            .create(&PostParams::default(), &pod)
            .await
            .unwrap();
        self.set_phase(name, "Running", "").await;
        made.metadata.uid.unwrap()
    }

    pub async fn set_phase(&self, name: &str, phase: &str, reason: &str) {
        let status = json!({ "status": { "phase": phase, "reason": reason } });
        self.pods()
            .patch_status(name, &PatchParams::default(), &Patch::Merge(status))
            .await
            .unwrap();
    }

    /// As with `kubectl delete --force`: the object goes, whatever runs.
    pub async fn delete_pod(&self, name: &str) {
        self.pods()
            .delete(name, &DeleteParams::default().grace_period(0))
            .await
            .unwrap();
    }

    /// Puts an entry into the pool by hand.
    pub async fn put_entry(&self, offset: &str, id: &str, pod: &str) {
        let pools: Api<IPPool> = self.api();
        if pools.get_opt(POOL).await.unwrap().is_none() {
            let spec = IPPoolSpec {
                range: "10.0.0.0/24".into(),
                allocations: BTreeMap::new(),
            };
            let pool = IPPool::new(POOL, spec);
            pools.create(&PostParams::default(), &pool).await.unwrap();
        }
        let podref = format!("{}/{pod}", self.namespace);
        let entry = json!({ "id": id, "podref": podref, "ifname": "net1" });
        let patch = json!({ "spec": { "allocations": { offset: entry } } });
        pools
            .patch(POOL, &PatchParams::default(), &Patch::Merge(patch))
            .await
            .unwrap();
    }

    pub async fn put_reservation(&self, name: &str, pod: &str) {
        self.put_reservation_with(name, pod, json!({})).await;
    }

    pub async fn put_reservation_with(&self, name: &str, pod: &str, annotations: Value) {
        let object = json!({
            "apiVersion": "whereabouts.cni.cncf.io/v1alpha1",
            "kind": "OverlappingRangeIPReservation",
            "metadata": { "name": name, "annotations": annotations },
            "spec": { "podref": format!("{}/{pod}", self.namespace), "ifname": "net1" },
        });
        self.api::<OverlappingRangeIPReservation>()
            .create(
                &PostParams::default(),
                &serde_json::from_value(object).unwrap(),
            )
            .await
            .unwrap();
    }

    pub async fn put_network(&self, name: &str, config: &Value) {
        let object = json!({
            "apiVersion": "k8s.cni.cncf.io/v1",
            "kind": "NetworkAttachmentDefinition",
            "metadata": { "name": name, "namespace": self.namespace },
            "spec": { "config": config.to_string() },
        });
        self.cluster.apply_object(object).await.unwrap();
    }

    /// Offset, pod and container of every entry of a pool.
    pub async fn entries_of(&self, pool: &str) -> Vec<(String, String, String)> {
        let pool = self.api::<IPPool>().get_opt(pool).await.unwrap();
        let Some(pool) = pool else {
            return Vec::new();
        };
        let name = |podref: &str| podref.rsplit('/').next().unwrap_or_default().to_owned();
        pool.spec
            .allocations
            .into_iter()
            .map(|(offset, entry)| (offset, name(&entry.podref), entry.id))
            .collect()
    }

    /// The pods that hold something in the usual pool.
    pub async fn holders(&self) -> Vec<String> {
        let entries = self.entries_of(POOL).await;
        entries.into_iter().map(|(_, pod, _)| pod).collect()
    }

    pub async fn reservations(&self) -> Vec<(String, String)> {
        let all = self.api::<OverlappingRangeIPReservation>();
        let all = all.list(&ListParams::default()).await.unwrap();
        let name = |podref: String| podref.rsplit('/').next().unwrap_or_default().to_owned();
        all.items
            .into_iter()
            .map(|one| (one.metadata.name.unwrap(), name(one.spec.podref)))
            .collect()
    }

    /// Reason and message of the events on a pod.
    pub async fn events(&self, pod: &str) -> Vec<(String, String)> {
        let events = self.api::<Event>();
        let all = events.list(&ListParams::default()).await.unwrap();
        all.items
            .into_iter()
            .filter(|event| event.involved_object.name.as_deref() == Some(pod))
            .map(|event| {
                (
                    event.reason.unwrap_or_default(),
                    event.message.unwrap_or_default(),
                )
            })
            .collect()
    }

    /// Waits until the usual pool is held by these pods and no others.
    pub async fn until_held_by(&self, pods: &[&str]) {
        self.until(&format!("held by {pods:?}"), async || {
            let mut holders = self.holders().await;
            holders.sort();
            holders == pods
        })
        .await;
    }

    pub async fn until(&self, what: &str, holds: impl AsyncFn() -> bool) {
        let begun = Instant::now();
        while !holds().await {
            if begun.elapsed() > PATIENCE {
                let entries = self.entries_of(POOL).await;
                let reservations = self.reservations().await;
                panic!("never {what}: {entries:?}, {reservations:?}");
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Pools with every field that their objects have.
    pub fn dynamic_pools(&self) -> Api<DynamicObject> {
        let kind = ApiResource::erase::<IPPool>(&());
        Api::namespaced_with(self.client.clone(), &self.namespace, &kind)
    }

    pub async fn apply(&self, object: Value) {
        self.cluster.apply_object(object).await.unwrap();
    }

    fn pods(&self) -> Api<Pod> {
        self.api()
    }

    pub fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }
}

/// The usual network.
pub fn network() -> Value {
    json!({
        "cniVersion": "1.0.0", "name": "blue", "type": "macvlan",
        "ipam": { "type": "whereabouts", "range": "10.0.0.0/24" },
    })
}

impl Agent {
    pub async fn add(&self, world: &World, pod: &str, uid: &str, container: &str) -> Value {
        self.add_to(world, &network(), pod, uid, container).await
    }

    pub async fn add_to(
        &self,
        world: &World,
        network: &Value,
        pod: &str,
        uid: &str,
        container: &str,
    ) -> Value {
        let answer = self.call(world, "ADD", network, pod, uid, container).await;
        assert_eq!(answer.exit, 0, "{}", answer.stdout);
        serde_json::from_str(&answer.stdout).unwrap()
    }

    pub async fn del(&self, world: &World, pod: &str, uid: &str, container: &str) {
        let answer = self
            .call(world, "DEL", &network(), pod, uid, container)
            .await;
        assert_eq!(answer.exit, 0, "{}", answer.stdout);
    }

    pub async fn del_from(&self, world: &World, network: &Value, pod: &str, container: &str) {
        let answer = self.call(world, "DEL", network, pod, "", container).await;
        assert_eq!(answer.exit, 0, "{}", answer.stdout);
    }

    pub async fn call(
        &self,
        world: &World,
        command: &str,
        network: &Value,
        pod: &str,
        uid: &str,
        container: &str,
    ) -> berth_cni::wire::Answer {
        let args = format!(
            "IgnoreUnknown=1;K8S_POD_NAMESPACE={};K8S_POD_NAME={pod};K8S_POD_UID={uid}",
            world.namespace
        );
        let call = PodCall::new("whereabouts", command, pod)
            .of_container(container)
            .in_netns(&world.netns.path().join(container))
            .with_args(&args);
        self.front
            .answer(&call.request_of(&network.to_string()))
            .await
    }

    pub async fn journalled(&self) -> usize {
        self.journal.all().await.unwrap().len()
    }

    /// Starts this node's collector, in a boot.
    pub fn collect_in(&self, boot: &str) -> Running {
        self.start(boot, true)
    }

    pub fn collect(&self) -> Running {
        self.start("this-boot", true)
    }

    /// The same without a journal: all it does is sweep.
    pub fn sweep(&self) -> Running {
        self.start("this-boot", false)
    }

    fn start(&self, boot: &str, with_journal: bool) -> Running {
        let settings = GarbageSettings {
            grace: GracePeriods {
                pod: GRACE,
                node: NODE_GRACE,
            },
            interval: INTERVAL,
            flat_places: Vec::new(),
        };
        let metrics = GarbageMetrics::default();
        let mut registry = Registry::default();
        metrics.register(&mut registry);
        let collector = collector(
            self.connection.clone(),
            SharedRecordLedger::clone(&self.ledger),
            (&self.node, boot),
            with_journal.then(|| Arc::clone(&self.journal)),
            &settings,
            &metrics,
        );
        Running {
            collector: InProcess::start(|told| collector.run(told)),
            registry,
        }
    }
}

impl Running {
    pub async fn stop(self) {
        self.collector.stop().await;
    }

    /// A counter's value.
    pub fn count(&self, name: &str) -> f64 {
        self.gauge(&format!("{name}_total"))
    }

    /// A gauge's value.
    pub fn gauge(&self, name: &str) -> f64 {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry).unwrap();
        let of = |line: &str| {
            let (found, value) = line.rsplit_once(' ')?;
            let bare = found.split('{').next()?;
            (bare == format!("berth_garbage_{name}")).then(|| value.parse::<f64>().ok())?
        };
        text.lines().filter_map(of).sum()
    }

    pub async fn until_count(&self, name: &str, at_least: f64) {
        let begun = Instant::now();
        while self.count(name) < at_least {
            assert!(
                begun.elapsed() < PATIENCE,
                "{name} stays {}",
                self.count(name)
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}
