//! A cluster with kubernetes-nmstate's definitions and admission policy, the garbage collector, Berth's roles, one leader, and handlers that
//! tests start and kill.
//!
//! Objects are cluster-scoped and the cluster is shared: each test has a name of its own, which its pools, policies and nodes carry. The host
//! program is a script that keeps the state of its last apply; `real_host` runs berth-host.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use berth_desk::{DeskMetrics, DeskSettings, Desks};
use berth_kube::Connection;
use berth_ledger::RetryPolicy;
use berth_nodes::handler::{Handler, HandlerConfig, Mode};
use berth_nodes::host::Host;
use berth_nodes::metrics::HandlerMetrics;
use berth_nodes::objects::{self, ENACTMENT, Kind, NODE_IP_POOL, NODE_STATE, POLICY};
use berth_nodes::store::{self, PoolStore};
use berth_nodes::upkeep::{Upkeep, UpkeepConfig};
use berth_parts::Parts;
use berth_testkit::{Account, Cluster, FaultProxy};
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::OnceCell;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// How long the leader waits before it frees what nothing claims, in these tests.
pub const GRACE: Duration = Duration::from_millis(1500);
pub const PATIENCE: Duration = Duration::from_secs(90);

const CONTROLLER: &str = "berth-controller";
const HOME: &str = "kube-system";

async fn prepared() -> &'static Cluster {
    static READY: OnceCell<()> = OnceCell::const_new();
    let cluster = Cluster::shared().await;
    READY
        .get_or_init(|| async {
            install(cluster).await;
            // It ends with the process.
            Box::leak(Box::new(cluster.garbage_collector().unwrap()));
            lead(cluster).await;
        })
        .await;
    cluster
}

/// Definitions, rules and roles.
async fn install(cluster: &Cluster) {
    let manifests = Parts::find().unwrap().kubernetes_nmstate().unwrap();
    for file in ["crds.yaml", "admission.yaml"] {
        let text = std::fs::read_to_string(manifests.join(file)).unwrap();
        cluster.apply(&text).await.unwrap();
    }
    for crd in berth_api::crds().unwrap() {
        cluster.apply_object(crd).await.unwrap();
    }
    for text in [
        include_str!("../../../../deploy/crds/namespace-slices.yaml"),
        include_str!("../../../../deploy/nodes/rbac.yaml"),
        include_str!("../../../../deploy/nodes/captures.yaml"),
        include_str!("../../../../deploy/nodes/policies.yaml"),
        include_str!("../../../../deploy/nodes/beside-nmstate/rbac.yaml"),
    ] {
        cluster.apply(text).await.unwrap();
    }
    let account = json!({ "apiVersion": "v1", "kind": "ServiceAccount",
        "metadata": { "name": CONTROLLER, "namespace": HOME } });
    cluster.apply_object(account).await.unwrap();
    cluster.agents(HOME).await.unwrap();
}

/// One leader for all tests of the process, in a runtime of its own.
async fn lead(cluster: &'static Cluster) {
    let account = cluster.account(HOME, CONTROLLER).await.unwrap();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(async {
            let upkeep = upkeep(account.client().await.unwrap());
            let stop = CancellationToken::new();
            tokio::join!(upkeep.follow(stop.clone()), upkeep.lead(stop));
        });
    });
}

pub fn upkeep(client: kube::Client) -> Upkeep {
    let store = PoolStore::new(&connection(client.clone()));
    let config = UpkeepConfig {
        grace: GRACE,
        ..UpkeepConfig::new("test")
    };
    Upkeep::new(client, store, config)
}

fn connection(client: kube::Client) -> Connection {
    Connection {
        client,
        namespace: HOME.to_owned(),
        timeout: Duration::from_secs(10),
    }
}

pub struct Bed {
    pub name: String,
    pub cluster: &'static Cluster,
    pub admin: kube::Client,
    dir: TempDir,
}

/// A handler that runs; dropped or killed, it ends where it stands, as a process would.
pub struct Running {
    task: JoinHandle<()>,
    pub host: PathBuf,
}

impl Running {
    pub async fn kill(self) {
        self.task.abort();
        while !self.task.is_finished() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// What the host program was called with.
    pub fn calls(&self) -> String {
        std::fs::read_to_string(self.host.join("calls")).unwrap_or_default()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Keeps the state that it was last told to apply, and every call.
const SCRIPT: &str = r#"#!/bin/sh
dir=$(dirname "$0")
echo "$@" >> "$dir/calls"
for last; do :; done
case "$1" in
show) cat "$dir/state" 2>/dev/null || echo '{"interfaces":[]}' ;;
policy) cat "$dir/resolved" 2>/dev/null ;;
apply)
  if [ -f "$dir/hang" ]; then exec sleep 600; fi
  if [ -f "$dir/../slow" ]; then
    mkdir "$dir/../busy" 2>/dev/null || echo "$dir" >> "$dir/../overlaps"
    sleep 0.3
    rmdir "$dir/../busy" 2>/dev/null
  fi
  if [ -f "$dir/fail" ]; then cat "$dir/fail" >&2; exit 1; fi
  cp "$dir/state" "$dir/before" 2>/dev/null
  cp "$last" "$dir/next" && mv "$dir/next" "$dir/state" ;;
rollback) if [ -f "$dir/before" ]; then mv "$dir/before" "$dir/state"; else rm -f "$dir/state"; fi ;;
esac
"#;

fn script() -> &'static Path {
    static PLACE: OnceLock<(TempDir, PathBuf)> = OnceLock::new();
    let (_, path) = PLACE.get_or_init(|| {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("host");
        std::fs::write(&path, SCRIPT).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        (dir, path)
    });
    path
}

impl Bed {
    pub async fn new(name: &str) -> Bed {
        let cluster = prepared().await;
        Bed {
            name: name.to_owned(),
            cluster,
            admin: cluster.client().await.unwrap(),
            dir: tempfile::tempdir().unwrap(),
        }
    }

    /// On a cluster of its own, without a leader. It ends with the process.
    pub async fn alone(name: &str) -> Bed {
        let cluster: &'static Cluster = Box::leak(Box::new(Cluster::start().await.unwrap()));
        install(cluster).await;
        Bed {
            name: name.to_owned(),
            cluster,
            admin: cluster.client().await.unwrap(),
            dir: tempfile::tempdir().unwrap(),
        }
    }

    /// A leader of this cluster with the controller's rights, until it is aborted.
    pub async fn leader(&self) -> JoinHandle<()> {
        self.leader_by(self.controller().await.client().await.unwrap())
    }

    pub fn leader_by(&self, client: kube::Client) -> JoinHandle<()> {
        let upkeep = upkeep(client);
        let stop = CancellationToken::new();
        tokio::spawn(async move {
            tokio::join!(upkeep.follow(stop.clone()), upkeep.lead(stop));
        })
    }

    /// The controller's account.
    pub async fn controller(&self) -> Account {
        self.cluster.account(HOME, CONTROLLER).await.unwrap()
    }

    /// The account of the agent on a node: its token is bound to that node.
    pub async fn agent(&self, node: &str) -> Account {
        self.cluster.agent(HOME, node).await.unwrap()
    }

    pub async fn agent_client(&self, node: &str) -> kube::Client {
        self.agent(node).await.client().await.unwrap()
    }

    /// A client by a kubeconfig.
    pub async fn client_of(&self, kubeconfig: &Path) -> kube::Client {
        let connect = berth_kube::Connect {
            kubeconfig: Some(kubeconfig.to_owned()),
            ..Default::default()
        };
        connect.open().await.unwrap().client
    }

    pub fn api(&self, kind: Kind) -> Api<DynamicObject> {
        objects::api(self.admin.clone(), kind)
    }

    pub fn node(&self, number: usize) -> String {
        format!("{}-node{number:02}", self.name)
    }

    /// A Node that is Ready, selected by this test's policies.
    pub async fn add_node(&self, number: usize) -> String {
        let name = self.node(number);
        let nodes: Api<Node> = Api::all(self.admin.clone());
        let node: Node = serde_json::from_value(json!({
            "metadata": { "name": name, "labels": { "bed": self.name, "kubernetes.io/hostname": name } },
        }))
        .unwrap();
        nodes.create(&PostParams::default(), &node).await.unwrap();
        self.set_ready(&name, true).await;
        name
    }

    pub async fn set_ready(&self, node: &str, ready: bool) {
        let status = if ready { "True" } else { "False" };
        let patch = json!({ "status": { "conditions": [{ "type": "Ready", "status": status }] } });
        let nodes: Api<Node> = Api::all(self.admin.clone());
        let params = PatchParams::default();
        nodes
            .patch_status(node, &params, &Patch::Merge(&patch))
            .await
            .unwrap();
    }

    pub async fn label_node(&self, node: &str, key: &str, value: &str) {
        let patch = json!({ "metadata": { "labels": { key: value } } });
        let (params, patch) = (PatchParams::default(), Patch::Merge(&patch));
        let nodes: Api<Node> = Api::all(self.admin.clone());
        nodes.patch(node, &params, &patch).await.unwrap();
    }

    pub async fn delete_node(&self, node: &str) {
        let nodes: Api<Node> = Api::all(self.admin.clone());
        nodes.delete(node, &DeleteParams::default()).await.unwrap();
    }

    pub async fn create(&self, kind: Kind, object: Value) -> Value {
        let (version, name, _) = kind;
        let mut object = object;
        object["apiVersion"] = json!(format!("nmstate.io/{version}"));
        object["kind"] = json!(name);
        let object: DynamicObject = serde_json::from_value(object).unwrap();
        let made = self.api(kind).create(&PostParams::default(), &object).await;
        objects::value(&made.unwrap())
    }

    /// A pool of this test, `<test>-<name>`, from start to end of a /24.
    pub async fn pool(&self, name: &str, first: &str, last: &str) -> String {
        let (network, _) = first.rsplit_once('.').unwrap();
        self.pool_with(
            name,
            json!({ "range": { "cidr": format!("{network}.0/24"), "start": first, "end": last } }),
        )
        .await
    }

    pub async fn pool_with(&self, name: &str, spec: Value) -> String {
        let name = format!("{}-{name}", self.name);
        let object = json!({ "metadata": { "name": name }, "spec": spec });
        self.create(NODE_IP_POOL, object).await;
        name
    }

    /// The proposal's policy: a capture and an interface for each pool.
    pub fn policy_spec(&self, pools: &[&str]) -> Value {
        let mut capture = json!({});
        let mut interfaces = Vec::new();
        for (place, pool) in pools.iter().enumerate() {
            let name = format!("address-{}", place + 1);
            capture[&name] = json!(format!("ippool.{pool}.allocate"));
            interfaces.push(json!({
                "name": format!("eth{}", place + 1), "type": "ethernet", "state": "up",
                "ipv4": { "enabled": true, "dhcp": false, "address": [{
                    "ip": format!("{{{{ capture.{name}.ip }}}}"),
                    "prefix-length": format!("{{{{ capture.{name}.prefix-length }}}}"),
                }] },
            }));
        }
        json!({
            "nodeSelector": { "bed": self.name },
            "capture": capture,
            "maxUnavailable": "100%",
            "desiredState": { "interfaces": interfaces },
        })
    }

    pub async fn policy(&self, pools: &[&str]) -> String {
        let spec = self.policy_spec(pools);
        self.policy_with("static-ip", spec).await
    }

    pub async fn policy_with(&self, name: &str, spec: Value) -> String {
        let name = format!("{}-{name}", self.name);
        let object = json!({ "metadata": { "name": name }, "spec": spec });
        self.create(POLICY, object).await;
        name
    }

    pub async fn delete(&self, kind: Kind, name: &str) {
        let params = DeleteParams::default();
        self.api(kind).delete(name, &params).await.unwrap();
    }

    pub async fn annotate(&self, kind: Kind, name: &str, key: &str, value: &str) {
        let patch = json!({ "metadata": { "annotations": { key: value } } });
        let (params, patch) = (PatchParams::default(), Patch::Merge(&patch));
        self.api(kind).patch(name, &params, &patch).await.unwrap();
    }

    /// A handler with the rights of its node's agent and a client of its own.
    pub async fn handler(&self, node: &str) -> Running {
        self.handler_in(node, Mode::Host).await
    }

    pub async fn handler_in(&self, node: &str, mode: Mode) -> Running {
        self.handler_by(node, self.agent_client(node).await, mode)
    }

    /// A handler that reaches the API server through a relay with that rule.
    pub async fn handler_through(&self, node: &str, mode: Mode, relay: &FaultProxy) -> Running {
        self.handler_by(node, self.client_of(&relay.kubeconfig()).await, mode)
    }

    pub async fn relay(&self, node: &str) -> FaultProxy {
        FaultProxy::of(&self.agent(node).await).await.unwrap()
    }

    pub fn handler_by(&self, node: &str, client: kube::Client, mode: Mode) -> Running {
        let program = self.host_dir(node).join("host");
        if !program.exists() {
            std::os::unix::fs::symlink(script(), &program).unwrap();
        }
        let mut host = Host::new(program);
        host.limit = Duration::from_secs(5);
        self.handler_on(node, client, mode, host, None)
    }

    /// A handler with this host program, whose interfaces are in that network namespace.
    pub fn handler_on(
        &self,
        node: &str,
        client: kube::Client,
        mode: Mode,
        host: Host,
        netns: Option<PathBuf>,
    ) -> Running {
        let connection = connection(client);
        let settings = DeskSettings {
            retry: RetryPolicy {
                timeout: Duration::from_secs(30),
                ..RetryPolicy::default()
            },
            ..DeskSettings::default()
        };
        let desks = Desks::new(store::ledger(&connection), settings, DeskMetrics::default());
        let config = HandlerConfig {
            node: node.to_owned(),
            mode,
            host,
            netns,
            timeout: Duration::from_secs(10),
            metrics: HandlerMetrics::default(),
        };
        let handler = Handler::new(&connection, desks, config);
        Running {
            task: tokio::spawn(async move { handler.run(CancellationToken::new()).await }),
            host: self.host_dir(node),
        }
    }

    pub fn host_dir(&self, node: &str) -> PathBuf {
        let place = self.dir.path().join(node);
        std::fs::create_dir_all(&place).unwrap();
        place
    }

    /// So many nodes, each with its handler.
    pub async fn handlers(&self, count: usize) -> Vec<Running> {
        self.handlers_in(count, Mode::Host).await
    }

    pub async fn handlers_in(&self, count: usize, mode: Mode) -> Vec<Running> {
        let mut all = Vec::new();
        for number in 1..=count {
            let node = self.add_node(number).await;
            all.push(self.handler_in(&node, mode).await);
        }
        all
    }

    pub async fn get(&self, kind: Kind, name: &str) -> Option<Value> {
        let found = self.api(kind).get_opt(name).await.unwrap();
        found.map(|object| objects::value(&object))
    }

    pub async fn enactment(&self, node: &str, policy: &str) -> Option<Value> {
        self.get(ENACTMENT, &format!("{node}.{policy}")).await
    }

    /// Waits until an object is as told.
    pub async fn until(&self, kind: Kind, name: &str, what: impl Fn(&Value) -> bool) -> Value {
        let begun = Instant::now();
        let mut last = Value::Null;
        while begun.elapsed() < PATIENCE {
            if let Some(found) = self.get(kind, name).await {
                if what(&found) {
                    return found;
                }
                last = found;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("{} {name} is not so: {}", kind.1, last["status"]);
    }

    pub async fn until_gone(&self, kind: Kind, name: &str) {
        let begun = Instant::now();
        while self.get(kind, name).await.is_some() {
            assert!(
                begun.elapsed() < PATIENCE,
                "{} {name} is still there",
                kind.1
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    pub async fn until_pool(&self, pool: &str, reason: &str) -> Value {
        self.until(NODE_IP_POOL, pool, |object| available(object).1 == reason)
            .await
    }

    pub async fn until_policy(&self, policy: &str, condition: &str) -> Value {
        self.until(POLICY, policy, |object| is_true(object, condition))
            .await
    }

    pub async fn until_enacted(&self, node: &str, policy: &str, condition: &str) -> Value {
        let name = format!("{node}.{policy}");
        self.until(ENACTMENT, &name, |object| is_true(object, condition))
            .await
    }

    /// The addresses of all nodes' enactments, sorted by node.
    pub async fn addresses(&self, policy: &str) -> Vec<(String, Vec<String>)> {
        let params =
            kube::api::ListParams::default().labels(&format!("nmstate.io/policy={policy}"));
        let list = self.api(ENACTMENT).list(&params).await.unwrap();
        let read = |object: &DynamicObject| {
            let value = objects::value(object);
            let node = value["metadata"]["labels"]["nmstate.io/node"].as_str();
            (node.unwrap().to_owned(), applied(&value))
        };
        let mut all: Vec<_> = list.items.iter().map(read).collect();
        all.sort();
        all
    }
}

/// The addresses in an enactment's desired state.
pub fn applied(enactment: &Value) -> Vec<String> {
    let state = enactment.pointer("/status/desiredState");
    let found = state.map(berth_nodes::host::addresses).unwrap_or_default();
    found
        .iter()
        .map(|(_, address)| address.to_string())
        .collect()
}

pub fn is_true(object: &Value, condition: &str) -> bool {
    let conditions = object.pointer("/status/conditions");
    let mut all = conditions.and_then(Value::as_array).into_iter().flatten();
    all.any(|one| one["type"] == condition && one["status"] == "True")
}

/// The message of the condition that is True.
pub fn message(object: &Value) -> String {
    let conditions = object.pointer("/status/conditions");
    let mut all = conditions.and_then(Value::as_array).into_iter().flatten();
    let current = all.find(|one| one["status"] == "True");
    let text = current.and_then(|one| one["message"].as_str());
    text.unwrap_or_default().to_owned()
}

/// Status, reason and message of a pool's condition.
pub fn available(pool: &Value) -> (String, String, String) {
    let conditions = pool.pointer("/status/conditions");
    let mut all = conditions.and_then(Value::as_array).into_iter().flatten();
    let one = all.find(|one| one["type"] == "Available");
    let text = |field: &str| {
        let value = one.and_then(|one| one[field].as_str());
        value.unwrap_or_default().to_owned()
    };
    (text("status"), text("reason"), text("message"))
}

pub fn offsets(pool: &Value) -> Vec<u64> {
    let list = pool.pointer("/status/allocated-offsets");
    let list = list.and_then(Value::as_array).into_iter().flatten();
    list.filter_map(Value::as_u64).collect()
}

/// No address twice, over all enactments.
pub fn all_different(addresses: &[(String, Vec<String>)]) {
    let mut all: Vec<&String> = addresses.iter().flat_map(|(_, list)| list).collect();
    all.sort();
    let before = all.len();
    all.dedup();
    assert_eq!(all.len(), before, "an address twice: {addresses:?}");
}

pub fn state_kind() -> Kind {
    NODE_STATE
}
