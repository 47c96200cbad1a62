//! A node under test: an agent in this process, called over its socket, and the objects of its cluster.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use berth_agent::{AgentConfig, oneshot, serve};
use berth_api::claim::{self, SliceClaim};
use berth_api::whereabouts::{IPPool, NodeSlicePool};
use berth_cni::http;
use berth_cni::wire::{Answer, Request};
use berth_kube::Connect;
use berth_ledger::{Ledger, SqliteLedger};
use berth_pods::garbage::{GarbageSettings, GracePeriods};
use berth_pods::node::PodFront;
use berth_slices::SliceSettings;
use berth_testkit::{Agents, Cluster, FaultProxy, InProcess, answered_addresses};
use k8s_openapi::api::core::v1::{Event, Node};
use kube::api::{Api, ListParams, PostParams};
use kube::{Client, Resource};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::cni_call::request;

/// A namespace of a cluster with all definitions.
pub struct Site {
    pub kubeconfig: PathBuf,
    /// The accounts of its nodes.
    pub agents: Agents,
    pub namespace: String,
    pub client: Client,
}

impl Site {
    pub async fn shared() -> Site {
        Site::of(Cluster::shared().await).await
    }

    pub async fn of(cluster: &Cluster) -> Site {
        for crd in berth_api::crds().unwrap() {
            cluster.apply_object(crd).await.unwrap();
        }
        let namespace = cluster.namespace("slices").await.unwrap();
        Site {
            kubeconfig: cluster.kubeconfig(),
            agents: cluster.agents(&namespace).await.unwrap(),
            namespace,
            client: cluster.client().await.unwrap(),
        }
    }

    /// The administrator's connection to its pools.
    pub fn connect(&self, seconds: u64) -> Connect {
        Connect {
            kubeconfig: Some(self.kubeconfig.clone()),
            namespace: Some(self.namespace.clone()),
            timeout: Duration::from_secs(seconds),
        }
    }

    /// The connection of a node's agent.
    pub async fn connect_as(&self, node: &str, seconds: u64) -> Connect {
        let account = self.agents.on(node).await.unwrap();
        Connect {
            kubeconfig: Some(account.kubeconfig().to_owned()),
            ..self.connect(seconds)
        }
    }

    pub fn api<K>(&self) -> Api<K>
    where
        K: Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    pub async fn create<K>(&self, object: Value)
    where
        K: Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>
            + DeserializeOwned
            + serde::Serialize
            + Clone
            + std::fmt::Debug,
    {
        let object = serde_json::from_value(object).unwrap();
        let params = PostParams::default();
        self.api::<K>().create(&params, &object).await.unwrap();
    }

    /// A NodeSlicePool as whereabouts' controller writes it.
    pub async fn assign(&self, name: &str, range: &str, size: &str, slices: &[(&str, &str)]) {
        let lines: Vec<Value> = slices
            .iter()
            .map(|(node, slice)| json!({ "nodeName": node, "sliceRange": slice }))
            .collect();
        self.create::<NodeSlicePool>(json!({
            "apiVersion": "whereabouts.cni.cncf.io/v1alpha1", "kind": "NodeSlicePool",
            "metadata": { "name": name },
            "spec": { "range": range, "sliceSize": size },
            "status": { "allocations": lines },
        }))
        .await;
    }

    /// The Node object that a kubelet would create; nodes of that name in other tests share it.
    pub async fn register(&self, node: &str) {
        let object = json!({ "metadata": { "name": node } });
        let object: Node = serde_json::from_value(object).unwrap();
        let nodes: Api<Node> = Api::all(self.client.clone());
        match nodes.create(&PostParams::default(), &object).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            Err(error) => panic!("{error}"),
        }
    }

    /// Reasons and messages of the events on a node.
    pub async fn node_events(&self, node: &str) -> Vec<(String, String)> {
        let events: Api<Event> = Api::namespaced(self.client.clone(), "default");
        let of_node = format!("involvedObject.kind=Node,involvedObject.name={node}");
        let list = events.list(&ListParams::default().fields(&of_node)).await;
        let told = |event: Event| {
            let message = event.message.unwrap_or_default();
            (event.reason.unwrap_or_default(), message)
        };
        list.unwrap().into_iter().map(told).collect()
    }

    pub fn claim_api(&self) -> Api<SliceClaim> {
        let namespace = claim::namespace(&self.namespace);
        Api::namespaced(self.client.clone(), &namespace)
    }

    /// Every claim.
    pub async fn claims(&self) -> Vec<SliceClaim> {
        let claims = self.claim_api().list(&ListParams::default()).await;
        claims.unwrap().items
    }

    /// The range and the node of every claim.
    pub async fn holders(&self) -> BTreeMap<String, String> {
        let holder = |one: SliceClaim| (one.spec.range, one.spec.node);
        self.claims().await.into_iter().map(holder).collect()
    }

    /// Pod and container of every entry of a pool, by offset; none if there is no such pool.
    pub async fn entries(&self, pool: &str) -> Option<BTreeMap<String, (String, String)>> {
        let found = self.api::<IPPool>().get_opt(pool).await.unwrap()?;
        let entry = |(offset, held): (String, berth_api::whereabouts::IPAllocation)| {
            (offset, (held.podref, held.id))
        };
        Some(found.spec.allocations.into_iter().map(entry).collect())
    }

    /// Address and pod of every entry of every pool; an address with two entries fails the test.
    pub async fn published(&self) -> BTreeMap<String, String> {
        let pools = self
            .api::<IPPool>()
            .list(&ListParams::default())
            .await
            .unwrap();
        let mut all = BTreeMap::new();
        for pool in pools {
            let range: berth_core::Prefix = pool.spec.range.parse().unwrap();
            for (offset, held) in pool.spec.allocations {
                let address = range.network().plus(offset.parse().unwrap()).unwrap();
                let twice = all.insert(address.to_string(), held.podref);
                assert_eq!(twice, None, "{address} is in two pools");
            }
        }
        all
    }

    /// Waits until the pools' entries are these, address and pod, and no others.
    pub async fn shows(&self, what: &str, expected: &BTreeMap<String, String>) {
        until(what, async || {
            let now = self.published().await;
            (now == *expected)
                .then_some(())
                .ok_or(format!("{now:?} instead of {expected:?}"))
        })
        .await;
    }
}

/// Waits for a condition, which returns what is wrong as long as it does not hold.
pub async fn until<T>(what: &str, mut check: impl AsyncFnMut() -> Result<T, String>) -> T {
    let started = Instant::now();
    loop {
        match check().await {
            Ok(done) => return done,
            Err(why) => assert!(
                started.elapsed() < Duration::from_secs(180),
                "{what}: {why}"
            ),
        }
        tokio::time::sleep(Duration::from_millis(30)).await;
    }
}

/// The files of an SQLite database.
const ENDS: [&str; 3] = ["", "-wal", "-shm"];

/// A copy of a node's ledger.
pub struct Copied([Option<Vec<u8>>; 3]);

/// A node with an agent.
pub struct Machine {
    _dir: tempfile::TempDir,
    pub node: String,
    socket: PathBuf,
    host: berth_front::Node,
    front: PodFront,
    agent: Option<InProcess>,
}

impl Machine {
    /// The rows of its ledger, for the message of a failure: of a copy, because the agent owns the file.
    pub async fn rows(&self) -> String {
        let copy = tempfile::tempdir().unwrap();
        for suffix in ["", "-wal"] {
            let name = format!("berth.db{suffix}");
            let from = self.host.database.with_file_name(&name);
            let _ = std::fs::copy(from, copy.path().join(&name));
        }
        let ledger = SqliteLedger::open(copy.path().join("berth.db")).unwrap();
        let mut text = format!("{}:", self.node);
        for key in ledger.pools().await.unwrap() {
            let pool = ledger.load(&key).await.unwrap().pool;
            for (address, record) in pool.records() {
                text += &format!("\n  {}: {address} {record:?}", key.name);
            }
        }
        text
    }

    pub async fn start(site: &Site, node: &str) -> Machine {
        Machine::start_with(site, node, quick()).await
    }

    pub async fn start_with(site: &Site, node: &str, slices: SliceSettings) -> Machine {
        let dir = tempfile::tempdir().unwrap();
        let host = berth_front::Node {
            name: node.to_owned(),
            database: dir.path().join("berth.db"),
            cluster: Some(site.connect_as(node, 3).await),
            ..berth_front::Node::default()
        };
        let front = PodFront {
            flat_places: Some(Vec::new()),
            garbage: GarbageSettings {
                grace: GracePeriods {
                    pod: Duration::from_secs(600),
                    node: Duration::from_secs(600),
                },
                // No sweep starts within a test that does not request one.
                interval: Duration::from_secs(36_000),
                ..GarbageSettings::default()
            },
            slices: SliceSettings {
                result_caches: vec![dir.path().join("results")],
                runtime: Some(dir.path().join("run")),
                ..slices
            },
            ..PodFront::default()
        };
        let socket = dir.path().join("berth.sock");
        site.register(node).await;
        let mut machine = Machine {
            _dir: dir,
            node: node.to_owned(),
            socket,
            host,
            front,
            agent: None,
        };
        machine.run().await;
        machine
    }

    /// The agent's answer on its socket to a plain GET: status and body.
    pub async fn get(&self, path: &str) -> (u16, String) {
        use std::io::{Read, Write};
        let (socket, path) = (self.socket.clone(), path.to_owned());
        let asked = move || {
            let mut stream = std::os::unix::net::UnixStream::connect(socket).unwrap();
            let request =
                format!("GET {path} HTTP/1.1\r\nhost: agent\r\nconnection: close\r\n\r\n");
            stream.write_all(request.as_bytes()).unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
            (status, answer)
        };
        tokio::task::spawn_blocking(asked).await.unwrap()
    }

    /// CHECK of a pod's address; the text of the refusal.
    pub async fn check(&self, pod: &str, ipam: &Value, address: &str) -> Result<(), String> {
        let mut request = request("CHECK", "ns", pod, &format!("{pod}-container"), ipam);
        let mut conf: Value = serde_json::from_str(&request.stdin).unwrap();
        conf["prevResult"] = json!({ "cniVersion": "1.1.0", "ips": [{ "address": address }] });
        request.stdin = conf.to_string();
        let answer = self.send(request).await;
        (answer.exit == 0).then_some(()).ok_or(answer.stdout)
    }

    pub fn collecting(&mut self, grace: Duration) {
        self.front.garbage.grace.pod = grace;
        self.front.garbage.interval = Duration::from_secs(1);
    }

    /// Pods of this node are collected, and the sweep of all pools is left to others.
    pub fn sweep_rarely(&mut self) {
        self.front.garbage.interval = Duration::from_secs(3600);
    }

    /// Its requests go that way from its next start on.
    pub fn behind(&mut self, relay: &FaultProxy) {
        if let Some(cluster) = &mut self.host.cluster {
            cluster.kubeconfig = Some(relay.kubeconfig());
        }
    }

    pub async fn run(&mut self) {
        let config = AgentConfig {
            socket: self.socket.clone(),
            listen: None,
            node: self.host.clone(),
            fronts: vec![Box::new(self.front.clone())],
        };
        let agent = InProcess::start(|stop| async {
            serve(config, stop).await.unwrap();
        });
        let socket = self.socket.clone();
        until("the agent starts", async || {
            socket.exists().then_some(()).ok_or("no socket".to_owned())
        })
        .await;
        self.agent = Some(agent);
    }

    pub async fn stop(&mut self) {
        if let Some(agent) = self.agent.take() {
            agent.stop().await;
        }
        // The last connection removes the journal when it closes, whichever process created one meanwhile.
        for _ in 0..200 {
            if !self.file("-wal").exists() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Deletes the node's ledger.
    pub fn lose_ledger(&self) {
        for end in ENDS {
            std::fs::remove_file(self.file(end)).ok();
        }
    }

    fn file(&self, end: &str) -> PathBuf {
        PathBuf::from(format!("{}{end}", self.host.database.display()))
    }

    /// A copy of the node's ledger. The agent must not run.
    pub fn copy_ledger(&self) -> Copied {
        let copy = |end: &str| std::fs::read(self.file(end)).ok();
        Copied(ENDS.map(copy))
    }

    /// Puts a copy back in its place. The agent must not run.
    pub fn put_back(&self, copied: &Copied) {
        self.lose_ledger();
        for (end, bytes) in ENDS.iter().zip(&copied.0) {
            if let Some(bytes) = bytes {
                std::fs::write(self.file(end), bytes).unwrap();
            }
        }
    }

    /// Where this node's runtime keeps the results of its attachments.
    pub fn result_cache(&self) -> PathBuf {
        self._dir.path().join("results")
    }

    /// Records the result of an ADD as libcni does.
    pub fn cache_result(&self, namespace: &str, pod: &str, address: &str) {
        let container = format!("{pod}-container");
        let cached = json!({
            "kind": "cniCacheV1", "containerId": container, "ifName": "net1", "networkName": "net",
            "cniArgs": [["K8S_POD_NAMESPACE", namespace], ["K8S_POD_NAME", pod]],
            "result": { "cniVersion": "1.1.0", "ips": [{ "address": address }] },
        });
        let dir = self.result_cache();
        std::fs::create_dir_all(&dir).unwrap();
        let file = dir.join(format!("net-{container}-net1"));
        std::fs::write(file, cached.to_string()).unwrap();
    }

    /// How many slices of a range, by the name of its plain pool, the agent allocates from: its own metric.
    pub async fn slices_held(&self, pool: &str) -> u64 {
        let (_, text) = self.get("/metrics").await;
        let label = format!("pool=\"{pool}\"");
        let is_it = |line: &&str| line.starts_with("berth_slices_held{") && line.contains(&label);
        let line = text.lines().find(is_it);
        let count = line.and_then(|line| line.rsplit(' ').next());
        count.map_or(0, |count| count.trim().parse().unwrap())
    }

    pub async fn call(&self, verb: &str, pod: &str, container: &str, ipam: &Value) -> Answer {
        self.send(request(verb, "ns", pod, container, ipam)).await
    }

    /// The same for a pod of that namespace and its one container.
    pub async fn call_in(&self, namespace: &str, verb: &str, pod: &str, ipam: &Value) -> Answer {
        let container = format!("{pod}-container");
        self.send(request(verb, namespace, pod, &container, ipam))
            .await
    }

    async fn send(&self, request: Request) -> Answer {
        let socket = self.socket.clone();
        let called = move || http::call(&socket, &request, Duration::from_secs(120));
        tokio::task::spawn_blocking(called).await.unwrap().unwrap()
    }

    /// The addresses that a pod gets, or the code and the text of the refusal.
    pub async fn try_add(&self, pod: &str, ipam: &Value) -> Result<Vec<String>, (u64, String)> {
        self.try_add_in("ns", pod, ipam).await
    }

    /// The same for a pod of that namespace.
    pub async fn try_add_in(
        &self,
        namespace: &str,
        pod: &str,
        ipam: &Value,
    ) -> Result<Vec<String>, (u64, String)> {
        answered_addresses(&self.call_in(namespace, "ADD", pod, ipam).await)
    }

    /// ADD for a pod by the engine without an agent, as a process of its own would.
    pub fn add_alone(
        &self,
        pod: &str,
        ipam: &Value,
    ) -> impl Future<Output = Result<Vec<String>, (u64, String)>> + use<> {
        let request = request("ADD", "ns", pod, &format!("{pod}-container"), ipam);
        let (node, front) = (self.host.clone(), self.front.clone());
        async move { answered_addresses(&oneshot(&node, vec![Box::new(front)], &request).await) }
    }

    pub async fn add_in(&self, namespace: &str, pod: &str, ipam: &Value) -> String {
        let given = self.try_add_in(namespace, pod, ipam).await;
        given.unwrap().remove(0)
    }

    pub async fn add(&self, pod: &str, ipam: &Value) -> String {
        self.try_add(pod, ipam).await.unwrap().remove(0)
    }

    pub async fn del(&self, pod: &str, ipam: &Value) {
        let answer = self
            .call("DEL", pod, &format!("{pod}-container"), ipam)
            .await;
        assert_eq!((answer.exit, answer.stdout.as_str()), (0, ""));
    }
}

/// Settings that keep waits short.
pub fn quick() -> SliceSettings {
    SliceSettings {
        gather: Duration::from_millis(50),
        gather_busy: Duration::from_millis(100),
        gather_most: Duration::from_millis(100),
        publish_within: Duration::ZERO,
        look: Duration::from_secs(1),
        assign_wait: Duration::from_secs(2),
        ..SliceSettings::default()
    }
}
