//! The built program with the rights of deploy/, on a cluster of its own: three agents and two controllers under load, while
//! the leader is killed, the API server is stopped, and a node is deleted and made again. At the end every address that a
//! pod was told is published once, and nothing else is.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use berth_api::claim::SliceClaim;
use berth_api::whereabouts::{IPPool, NodeSlicePool};
use berth_testkit::{
    Account, Agent, Agents, Cluster, Part, PodCall, Process, answered_addresses, guarded, isolated,
};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use kube::Client;
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use serde_json::{Value, json};

use crate::{CLAIMS, HOME, deploy, kubectl};

const NODES: [&str; 3] = ["out-1", "out-2", "out-3"];
/// Pods that a node has at a time, per network.
const PODS: usize = 8;
const PATIENCE: Duration = Duration::from_secs(240);

/// How long the API server is away: a minute. `BERTH_OUTAGE_SECONDS` is for whoever looks for something else.
fn outage() -> Duration {
    let told = std::env::var("BERTH_OUTAGE_SECONDS").ok();
    Duration::from_secs(told.and_then(|told| told.parse().ok()).unwrap_or(60))
}

fn networks() -> [Value; 2] {
    [
        json!({ "type": "whereabouts", "range": "10.210.0.0/24", "node_slice_size": "/26", "network_name": "blue",
            "enable_overlapping_ranges": false }),
        json!({ "type": "whereabouts", "range": "10.211.0.0/24", "fast_ipam": true, "network_name": "fast",
            "enable_overlapping_ranges": false }),
    ]
}

/// What pods were told and have not given back: address and pod.
type Held = Arc<Mutex<BTreeMap<String, String>>>;

struct Site {
    cluster: Cluster,
    client: Client,
    agents: Agents,
    controller: Account,
    dir: tempfile::TempDir,
    held: Held,
}

impl Site {
    async fn new() -> Site {
        let cluster = Cluster::start().await.unwrap();
        let crds = deploy("crds");
        kubectl(&cluster, &["apply", "--filename", crds.to_str().unwrap()]);
        for part in ["agent", "controller", "slices"] {
            kubectl(&cluster, &["apply", "-k", deploy(part).to_str().unwrap()]);
        }
        for (ipam, name) in networks().iter().zip(["blue", "fast"]) {
            let config =
                json!({ "cniVersion": "1.1.0", "name": name, "type": "macvlan", "ipam": ipam });
            let definition = json!({
                "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
                "metadata": { "name": name, "namespace": "default" },
                "spec": { "config": config.to_string() },
            });
            cluster.apply_object(definition).await.unwrap();
        }
        Site {
            client: cluster.client().await.unwrap(),
            agents: cluster.agents(HOME).await.unwrap(),
            controller: cluster.account(HOME, "berth-controller").await.unwrap(),
            dir: tempfile::tempdir().unwrap(),
            held: Held::default(),
            cluster,
        }
    }

    fn nodes(&self) -> Api<Node> {
        Api::all(self.client.clone())
    }

    async fn register(&self, name: &str) {
        let node: Node = serde_json::from_value(json!({ "metadata": { "name": name } })).unwrap();
        let nodes = self.nodes();
        nodes.create(&PostParams::default(), &node).await.unwrap();
    }

    fn controller(&self, identity: &str) -> Process {
        let mut command = isolated(guarded(env!("CARGO_BIN_EXE_berth")));
        command
            .args(["controller", "--identity", identity])
            .args(["--lease-duration=2", "--slice-grace=1"])
            .arg("--kubeconfig")
            .arg(self.controller.kubeconfig());
        Process::start(identity, command, self.dir.path()).unwrap()
    }

    async fn agent(&self, node: &str, life: &str) -> Agent {
        let account = self.agents.on(node).await.unwrap();
        let name = format!("{node}-{life}");
        let berth = env!("CARGO_BIN_EXE_berth");
        let agent = Agent::start(berth, self.dir.path(), &name, |command| {
            command
                // The pods of this test have no objects: nobody may collect their addresses.
                .args(["--node", node, "--garbage-grace=3600"])
                // However slow this machine is, what is published is looked at.
                .arg("--slice-publish-within=0")
                .args(["--garbage-node-grace=3600", "--slice-look=5"])
                .env("BERTH_KUBECONFIG", account.kubeconfig());
        });
        agent.unwrap()
    }

    fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), HOME)
    }

    async fn leader(&self) -> String {
        let lease = self.api::<Lease>().get_opt("berth-controller").await;
        let spec = lease.unwrap().and_then(|lease| lease.spec);
        spec.and_then(|spec| spec.holder_identity)
            .unwrap_or_default()
    }

    /// Slices of a node, assigned and claimed.
    async fn slices_of(&self, node: &str) -> usize {
        let all = ListParams::default();
        let tables = self.api::<NodeSlicePool>().list(&all).await.unwrap();
        let tables = tables
            .items
            .iter()
            .filter_map(|table| table.status.as_ref());
        let rows = tables.flat_map(|table| &table.allocations);
        let claims: Api<SliceClaim> = Api::namespaced(self.client.clone(), CLAIMS);
        let claims = claims.list(&all).await.unwrap();
        let claims = claims.items.iter().filter(|claim| claim.spec.node == node);
        rows.filter(|row| row.node_name == node).count() + claims.count()
    }

    /// Address and pod of every entry; one that is in two pools fails the test.
    async fn published(&self) -> BTreeMap<String, String> {
        let pools = self.api::<IPPool>().list(&ListParams::default()).await;
        let mut all = BTreeMap::new();
        for pool in pools.unwrap() {
            let range: berth_core::Prefix = pool.spec.range.parse().unwrap();
            for (offset, entry) in pool.spec.allocations {
                let address = range.network().plus(offset.parse().unwrap()).unwrap();
                let twice = all.insert(address.to_string(), entry.podref);
                assert_eq!(twice, None, "{address} is in two pools");
            }
        }
        all
    }

    async fn settled(&self) {
        until("what is published is what pods hold", async || {
            let now = self.published().await;
            let held = self.held.lock().unwrap().clone();
            let differ = |a: &BTreeMap<String, String>, b: &BTreeMap<String, String>| {
                a.iter()
                    .filter(|(address, pod)| b.get(*address) != Some(pod))
                    .map(|(address, pod)| format!("{address} {pod}"))
                    .collect::<Vec<_>>()
            };
            let (extra, missing) = (differ(&now, &held), differ(&held, &now));
            (extra.is_empty() && missing.is_empty())
                .then_some(())
                .ok_or(format!("too much: {extra:?}; missing: {missing:?}"))
        })
        .await;
    }
}

async fn until<T>(what: &str, mut check: impl AsyncFnMut() -> Result<T, String>) -> T {
    let begun = Instant::now();
    loop {
        match check().await {
            Ok(done) => return done,
            Err(why) => assert!(begun.elapsed() < PATIENCE, "{what}: {why}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Pods of one node that come and go, until told to stop.
struct Load {
    stop: Arc<AtomicBool>,
    given: Arc<AtomicUsize>,
    thread: std::thread::JoinHandle<()>,
}

impl Load {
    fn start(node: &str, life: &str, socket: PathBuf, held: Held) -> Load {
        let stop = Arc::new(AtomicBool::new(false));
        let given = Arc::new(AtomicUsize::new(0));
        let (told, count) = (Arc::clone(&stop), Arc::clone(&given));
        let prefix = format!("{node}-{life}");
        let run = move || {
            let mut pods: Vec<(usize, Value, String, String)> = Vec::new();
            let mut n = 0;
            while !told.load(Ordering::Relaxed) {
                for ipam in networks() {
                    n += 1;
                    let pod = format!("{prefix}-{n}");
                    if let Some(address) = add(&socket, &pod, &ipam) {
                        let twice = held
                            .lock()
                            .unwrap()
                            .insert(address.clone(), format!("ns/{pod}"));
                        assert_eq!(twice, None, "{address} is given to {pod}");
                        pods.push((n, ipam, pod, address));
                        count.fetch_add(1, Ordering::Relaxed);
                    }
                }
                while pods.len() > 2 * PODS {
                    let (_, ipam, pod, address) = pods.remove(n % PODS);
                    // Whoever gets it next may hear of it before this answer is read.
                    held.lock().unwrap().remove(&address);
                    let answer = call(&socket, "DEL", &pod, &ipam);
                    assert_eq!(answer.exit, 0, "{}", answer.stdout);
                }
                std::thread::sleep(Duration::from_millis(60));
            }
        };
        let thread = std::thread::spawn(run);
        Load {
            stop,
            given,
            thread,
        }
    }

    fn allocated(&self) -> usize {
        self.given.load(Ordering::Relaxed)
    }

    /// Ends it; a pod that was given another's address fails here.
    async fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        let joined = tokio::task::spawn_blocking(move || self.thread.join());
        joined.await.unwrap().unwrap();
    }
}

fn call(socket: &std::path::Path, verb: &str, pod: &str, ipam: &Value) -> berth_cni::wire::Answer {
    let call = PodCall::new("whereabouts", verb, pod);
    call.ask(socket, ipam).unwrap()
}

/// The address, or none where the node is told to come again.
fn add(socket: &std::path::Path, pod: &str, ipam: &Value) -> Option<String> {
    match answered_addresses(&call(socket, "ADD", pod, ipam)) {
        Ok(given) => Some(given[0].split('/').next().unwrap().to_owned()),
        Err((code, why)) => {
            assert_eq!(code, 11, "{why}");
            None
        }
    }
}

/// Every node has given more than it had.
async fn goes_on(what: &str, loads: &[Load]) {
    let before: Vec<usize> = loads.iter().map(Load::allocated).collect();
    until(what, async || {
        let now: Vec<usize> = loads.iter().map(Load::allocated).collect();
        let more = now
            .iter()
            .zip(&before)
            .all(|(now, before)| *now > before + 4);
        more.then_some(())
            .ok_or(format!("{before:?}, then {now:?}"))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_or_given_twice_whatever_fails_under_load() {
    let site = Site::new().await;
    for node in NODES {
        site.register(node).await;
    }
    let mut controllers = [site.controller("one"), site.controller("two")];
    let mut machines = Vec::new();
    let mut loads = Vec::new();
    for node in NODES {
        let machine = site.agent(node, "first").await;
        let held = Arc::clone(&site.held);
        loads.push(Load::start(node, "first", machine.socket.clone(), held));
        machines.push(machine);
    }
    goes_on("all nodes are served", &loads).await;

    // The leader is killed: nothing is said, and nobody waits for it.
    let leads = usize::from(site.leader().await == "two");
    controllers[leads].kill().unwrap();
    goes_on("without a leader", &loads).await;
    let other = ["two", "one"][leads];
    until("the other leads", async || {
        let now = site.leader().await;
        (now == other).then_some(()).ok_or(now)
    })
    .await;

    // The API server is away: addresses of the nodes' slices are given and freed all the same.
    site.cluster.kill(Part::ApiServer).unwrap();
    let away = Instant::now();
    while away.elapsed() < outage() {
        goes_on("without the API server", &loads).await;
    }
    site.cluster.restart(Part::ApiServer).await.unwrap();
    goes_on("with the API server again", &loads).await;

    // A machine dies with its disk and all its pods; another one comes under its name.
    loads.pop().unwrap().end().await;
    machines.pop().unwrap().process.kill().unwrap();
    let dead = |pod: &String| pod.starts_with("ns/out-3-first-");
    site.held.lock().unwrap().retain(|_, pod| !dead(pod));
    let nodes = site.nodes();
    nodes
        .delete("out-3", &DeleteParams::default())
        .await
        .unwrap();
    until("its slices go back", async || {
        let left = site.slices_of("out-3").await;
        (left == 0).then_some(()).ok_or(format!("{left} left"))
    })
    .await;
    site.register("out-3").await;
    let machine = site.agent("out-3", "second").await;
    let held = Arc::clone(&site.held);
    loads.push(Load::start("out-3", "second", machine.socket.clone(), held));
    machines.push(machine);
    goes_on("the new machine is served", &loads).await;

    for load in loads {
        load.end().await;
    }
    assert!(site.held.lock().unwrap().len() >= 3 * PODS);
    site.settled().await;
}
