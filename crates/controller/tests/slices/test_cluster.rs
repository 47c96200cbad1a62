//! A cluster for one test at a time: its nodes and definitions are shared, so each test starts with none.
//!
//! There is no kubelet: nodes and pods are objects, and end when a test deletes them.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use berth_api::claim::{self, NODE, SliceClaim, SliceClaimSpec};
use berth_testkit::{Cluster, InProcess};
use k8s_openapi::api::core::v1::{ConfigMap, Event, Node, Pod};
use kube::Client;
use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch,
    PatchParams, PostParams,
};
use serde_json::{Value, json};
use tokio::sync::{Mutex, MutexGuard, OnceCell};

use crate::test_controller::{self, definitions};

/// Two cores, many tests: a long timeout only makes failures slow.
const TIMEOUT: Duration = Duration::from_secs(30);

pub struct TestCluster {
    pub cluster: &'static Cluster,
    /// The namespace of the pools.
    pub namespace: String,
    pub client: Client,
    _turn: MutexGuard<'static, ()>,
}

fn whereabouts(kind: &str) -> ApiResource {
    let gvk = GroupVersionKind::gvk("whereabouts.cni.cncf.io", "v1alpha1", kind);
    ApiResource::from_gvk(&gvk)
}

impl TestCluster {
    pub async fn new(name: &str) -> TestCluster {
        static TURN: Mutex<()> = Mutex::const_new(());
        static DEFINED: OnceCell<()> = OnceCell::const_new();
        let _ = tracing_subscriber::fmt()
            .with_env_filter(tracing_subscriber::EnvFilter::from_env("BERTH_LOG"))
            .with_test_writer()
            .try_init();
        let turn = TURN.lock().await;
        let cluster = Cluster::shared().await;
        DEFINED
            .get_or_init(|| async {
                for crd in berth_api::crds().unwrap() {
                    cluster.apply_object(crd).await.unwrap();
                }
            })
            .await;
        let client = cluster.client().await.unwrap();
        let cluster = TestCluster {
            cluster,
            namespace: cluster.namespace(name).await.unwrap(),
            client,
            _turn: turn,
        };
        cluster.sweep().await;
        cluster
    }

    /// Removes what the last test has left.
    async fn sweep(&self) {
        let now = DeleteParams::default().grace_period(0);
        let everything = ListParams::default();
        for pod in self.pods("").list(&everything).await.unwrap() {
            let namespace = pod.metadata.namespace.unwrap();
            let name = pod.metadata.name.unwrap();
            self.pods(&namespace).delete(&name, &now).await.unwrap();
        }
        let nodes: Api<Node> = Api::all(self.client.clone());
        nodes.delete_collection(&now, &everything).await.unwrap();
        let all: Api<DynamicObject> = Api::all_with(self.client.clone(), &definitions());
        for one in all.list(&everything).await.unwrap() {
            let namespace = one.metadata.namespace.unwrap();
            self.delete_network(&namespace, &one.metadata.name.unwrap())
                .await;
        }
    }

    pub fn config(&self) -> test_controller::Config {
        test_controller::config(self.cluster.kubeconfig(), &self.namespace)
    }

    pub fn controller(&self) -> InProcess {
        test_controller::start(self.config())
    }

    pub async fn node(&self, name: &str) {
        let object: Node = serde_json::from_value(json!({ "metadata": { "name": name } })).unwrap();
        Api::<Node>::all(self.client.clone())
            .create(&PostParams::default(), &object)
            .await
            .unwrap();
    }

    pub async fn nodes(&self, names: &[&str]) {
        for name in names {
            self.node(name).await;
        }
    }

    pub async fn many_nodes(&self, names: impl Iterator<Item = String>) {
        let names: Vec<String> = names.collect();
        for some in names.chunks(16) {
            futures::future::join_all(some.iter().map(|name| self.node(name))).await;
        }
    }

    pub async fn delete_node(&self, name: &str) {
        Api::<Node>::all(self.client.clone())
            .delete(name, &DeleteParams::default())
            .await
            .unwrap();
    }

    pub async fn taint(&self, name: &str, out_of_service: bool) {
        let taint = json!([{ "key": "node.kubernetes.io/out-of-service", "effect": "NoExecute" }]);
        let taints = if out_of_service { taint } else { json!([]) };
        Api::<Node>::all(self.client.clone())
            .patch(
                name,
                &PatchParams::default(),
                &Patch::Merge(json!({ "spec": { "taints": taints } })),
            )
            .await
            .unwrap();
    }

    fn pods(&self, namespace: &str) -> Api<Pod> {
        if namespace.is_empty() {
            return Api::all(self.client.clone());
        }
        Api::namespaced(self.client.clone(), namespace)
    }

    /// A pod that runs on a node and requests a network.
    pub async fn run_pod(&self, name: &str, node: &str, network: &str) {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": { "name": name, "annotations": { "k8s.v1.cni.cncf.io/networks": network } },
            "spec": { "nodeName": node, "containers": [{ "name": "c", "image": "nothing" }] },
        }))
        .unwrap();
        let pods = self.pods(&self.namespace);
        pods.create(&PostParams::default(), &pod).await.unwrap();
        let status = Patch::Merge(json!({ "status": { "phase": "Running" } }));
        pods.patch_status(name, &PatchParams::default(), &status)
            .await
            .unwrap();
    }

    pub async fn delete_pod(&self, name: &str) {
        self.pods(&self.namespace)
            .delete(name, &DeleteParams::default().grace_period(0))
            .await
            .unwrap();
    }

    /// A definition of a macvlan network named `cni`.
    pub async fn network(&self, name: &str, ipam: Value) {
        self.network_in(&self.namespace.clone(), name, &conf("cni", ipam))
            .await;
    }

    pub async fn network_in(&self, namespace: &str, name: &str, config: &Value) {
        let text = match config {
            Value::String(text) => text.clone(),
            config => config.to_string(),
        };
        let object = json!({
            "apiVersion": "k8s.cni.cncf.io/v1",
            "kind": "NetworkAttachmentDefinition",
            "metadata": { "name": name, "namespace": namespace },
            "spec": { "config": text },
        });
        self.cluster.apply_object(object).await.unwrap();
    }

    pub async fn delete_network(&self, namespace: &str, name: &str) {
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), namespace, &definitions());
        api.delete(name, &DeleteParams::default()).await.unwrap();
    }

    pub fn objects(&self, kind: &str) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), &self.namespace, &whereabouts(kind))
    }

    pub async fn pool(&self, name: &str) -> Option<DynamicObject> {
        self.objects("NodeSlicePool").get_opt(name).await.unwrap()
    }

    /// `slice node`, in the order of the document.
    pub async fn rows(&self, name: &str) -> Vec<String> {
        let Some(pool) = self.pool(name).await else {
            return Vec::new();
        };
        let text = |row: &Value, field: &str| row[field].as_str().unwrap().to_owned();
        let rows = pool.data["status"]["allocations"].as_array().cloned();
        rows.unwrap_or_default()
            .iter()
            .map(|row| format!("{} {}", text(row, "sliceRange"), text(row, "nodeName")))
            .collect()
    }

    pub async fn annotation(&self, name: &str, annotation: &str) -> Option<String> {
        let pool = self.pool(name).await?;
        pool.metadata.annotations?.remove(annotation)
    }

    /// The types of a pool's conditions, and all their messages.
    pub async fn conditions(&self, name: &str) -> (Vec<String>, String) {
        let text = self.annotation(name, "berth.dev/conditions").await;
        let list: Vec<Value> = serde_json::from_str(&text.unwrap_or("[]".into())).unwrap();
        let get = |field: &str| -> Vec<String> {
            let values = list
                .iter()
                .map(|one| one[field].as_str().unwrap().to_owned());
            values.collect()
        };
        (get("type"), get("message").join("\n"))
    }

    /// Reason and message of the events on a definition.
    pub async fn events(&self, namespace: &str, definition: &str) -> Vec<(String, String)> {
        let api: Api<Event> = Api::namespaced(self.client.clone(), namespace);
        let selector = format!("involvedObject.name={definition}");
        events(&api, &selector).await
    }

    pub async fn node_uid(&self, name: &str) -> String {
        let nodes: Api<Node> = Api::all(self.client.clone());
        nodes.get(name).await.unwrap().metadata.uid.unwrap()
    }

    /// Reason and message of the events on the node of that UID; a node that no watch saw deleted has its name for
    /// it.
    pub async fn node_events(&self, uid: &str) -> Vec<(String, String)> {
        let api: Api<Event> = Api::namespaced(self.client.clone(), "default");
        let selector = format!("involvedObject.kind=Node,involvedObject.uid={uid}");
        events(&api, &selector).await
    }

    pub async fn config_map(&self, name: &str) -> BTreeMap<String, String> {
        let api: Api<ConfigMap> = Api::namespaced(self.client.clone(), &self.namespace);
        let found = api.get_opt(name).await.unwrap();
        found.and_then(|map| map.data).unwrap_or_default()
    }

    /// The pool of a slice, with entries of pods of this namespace.
    pub async fn put_entries(&self, name: &str, range: &str, entries: &[(&str, &str)]) {
        let entry = |(offset, pod): &(&str, &str)| {
            let podref = format!("{}/{pod}", self.namespace);
            let entry = json!({ "id": format!("c-{pod}"), "podref": podref, "ifname": "net1" });
            ((*offset).to_owned(), entry)
        };
        let allocations: serde_json::Map<String, Value> = entries.iter().map(entry).collect();
        let object = json!({
            "apiVersion": "whereabouts.cni.cncf.io/v1alpha1", "kind": "IPPool",
            "metadata": { "name": name },
            "spec": { "range": range, "allocations": allocations },
        });
        self.objects("IPPool")
            .create(
                &PostParams::default(),
                &serde_json::from_value(object).unwrap(),
            )
            .await
            .unwrap();
    }

    fn slice_claims(&self) -> Api<SliceClaim> {
        Api::namespaced(self.client.clone(), &claim::namespace(&self.namespace))
    }

    /// A slice that a node has claimed by itself, transferred three times.
    pub async fn claim(&self, name: &str, range: &str, node: &str, offers: Value) {
        let spec = SliceClaimSpec {
            range: range.to_owned(),
            node: node.to_owned(),
            node_uid: "u".to_owned(),
            epoch: 3,
            offers: serde_json::from_value(offers).unwrap(),
            ..SliceClaimSpec::default()
        };
        let mut claim = SliceClaim::new(name, spec);
        claim.metadata.labels = Some([(NODE.to_owned(), node.to_owned())].into());
        let claims = self.slice_claims();
        claims.create(&PostParams::default(), &claim).await.unwrap();
    }

    /// `name node epoch`.
    pub async fn claims(&self) -> Vec<String> {
        let list = self.slice_claims().list(&ListParams::default()).await;
        let claims = list.unwrap().items.into_iter();
        claims
            .map(|SliceClaim { metadata, spec }| {
                format!("{} {} {}", metadata.name.unwrap(), spec.node, spec.epoch)
            })
            .collect()
    }

    pub async fn ip_pools(&self) -> Vec<String> {
        let list = self.objects("IPPool").list(&ListParams::default()).await;
        let pools = list.unwrap().items.into_iter();
        pools.map(|pool| pool.metadata.name.unwrap()).collect()
    }

    pub async fn until(&self, what: &str, mut holds: impl AsyncFnMut() -> bool) {
        let started = Instant::now();
        while !holds().await {
            if started.elapsed() > TIMEOUT {
                let pools = self.objects("NodeSlicePool");
                let pools = pools.list(&ListParams::default()).await.unwrap();
                panic!("not after {TIMEOUT:?}: {what}; {:#?}", pools.items);
            }
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
    }

    pub async fn until_rows(&self, pool: &str, expected: &[&str]) {
        self.until(&format!("{pool}: {expected:?}"), async || {
            self.rows(pool).await == expected
        })
        .await;
    }
}

pub fn conf(name: &str, mut ipam: Value) -> Value {
    ipam["type"] = json!("whereabouts");
    json!({ "cniVersion": "0.3.1", "name": name, "type": "macvlan", "ipam": ipam })
}

/// Whereabouts' flat file, which it requires.
pub fn flat_file(dir: &std::path::Path, kubeconfig: &std::path::Path) -> PathBuf {
    let path = dir.join("whereabouts.conf");
    let flat = json!({ "kubernetes": { "kubeconfig": kubeconfig }, "log_level": "error" });
    std::fs::write(&path, flat.to_string()).unwrap();
    path
}

/// Reason and message of each event that is selected.
async fn events(api: &Api<Event>, selector: &str) -> Vec<(String, String)> {
    let list = api.list(&ListParams::default().fields(selector)).await;
    let events = list.unwrap().items.into_iter();
    events
        .map(|event| {
            (
                event.reason.unwrap_or_default(),
                event.message.unwrap_or_default(),
            )
        })
        .collect()
}
