//! The built command: two controllers, agents of three nodes, and a range that all of them share. The claims meet in the
//! leader's desk; the leader is killed, frozen and replaced, and no address is given twice or lost.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod hostile;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use berth_cni::http::{self, ClientError};
use berth_testkit::{
    Account, Agent, Agents, Attachment, Cluster, PodCall, Process, Whereabouts, guarded, isolated,
};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use serde_json::{Value, json};

const AUDIENCE: &str = "desk.berth.dev";
const PATIENCE: Duration = Duration::from_secs(60);

struct Site {
    cluster: Cluster,
    namespace: String,
    agents: Agents,
    controller: Account,
    dir: tempfile::TempDir,
}

struct Node(Agent);

fn ipam() -> Value {
    json!({ "type": "whereabouts", "range": "10.9.0.0/16", "enable_overlapping_ranges": false })
}

fn rule(group: &str, resources: &[&str], verbs: &[&str]) -> Value {
    json!({ "apiGroups": [group], "resources": resources, "verbs": verbs })
}

impl Site {
    async fn new() -> Site {
        let cluster = Cluster::start().await.unwrap();
        for crd in berth_api::crds().unwrap() {
            cluster.apply_object(crd).await.unwrap();
        }
        let namespace = cluster.namespace("desk").await.unwrap();
        // The leader opens a desk for a pool that is there.
        let pool = json!({
            "apiVersion": "whereabouts.cni.cncf.io/v1alpha1", "kind": "IPPool",
            "metadata": { "name": "10.9.0.0-16", "namespace": namespace },
            "spec": { "range": "10.9.0.0/16", "allocations": {} },
        });
        cluster.apply_object(pool).await.unwrap();
        let all = &[
            "get", "list", "watch", "create", "update", "patch", "delete",
        ];
        let shared = [
            rule("whereabouts.cni.cncf.io", &["*"], all),
            rule("berth.dev", &["*"], all),
            rule("coordination.k8s.io", &["leases"], all),
            rule("", &["nodes", "pods"], &["get", "list", "watch"]),
            rule("", &["events", "configmaps"], all),
            rule("k8s.cni.cncf.io", &["*"], all),
        ];
        let mut reviews = shared.to_vec();
        reviews.push(rule(
            "authentication.k8s.io",
            &["tokenreviews"],
            &["create"],
        ));
        reviews.push(rule(
            "authorization.k8s.io",
            &["subjectaccessreviews"],
            &["create"],
        ));
        let agents = cluster.agents(&namespace).await;
        let agents = agents.unwrap();
        let controller = cluster.service_account(&namespace, "controller", json!(reviews));
        let controller = controller.await.unwrap();
        Site {
            cluster,
            namespace,
            agents,
            controller,
            dir: tempfile::tempdir().unwrap(),
        }
    }

    fn controller(&self, name: &str) -> Process {
        self.controller_with(name, 3, &[])
    }

    fn controller_with(&self, name: &str, lease: u32, more: &[String]) -> Process {
        let mut command = isolated(guarded(env!("CARGO_BIN_EXE_berth")));
        command
            .args(["controller", "--identity", name])
            .args(["--lease-duration", &lease.to_string()])
            .args(["--desk-listen", "127.0.0.1:0", "--log-format", "json"])
            .args(more)
            .env("BERTH_KUBECONFIG", self.controller.kubeconfig());
        Process::start(name, command, self.dir.path()).unwrap()
    }

    async fn node(&self, name: &str) -> Node {
        self.node_with(name, &[]).await
    }

    async fn node_with(&self, name: &str, more: &[String]) -> Node {
        let account = self.agents.on(name).await.unwrap();
        let token = self.cluster.pod_token(&account, name, AUDIENCE).await;
        let token_file = self.dir.path().join(format!("{name}.token"));
        std::fs::write(&token_file, token.unwrap()).unwrap();
        let berth = env!("CARGO_BIN_EXE_berth");
        let agent = Agent::start(berth, self.dir.path(), name, |command| {
            command
                .args(["--node", name, "--log-format", "json"])
                .args(more)
                .env("BERTH_KUBECONFIG", account.kubeconfig())
                .env("BERTH_DESK_TOKEN_FILE", &token_file);
        });
        Node(agent.unwrap())
    }

    async fn lease(&self) -> Option<Lease> {
        let leases: Api<Lease> =
            Api::namespaced(self.cluster.client().await.unwrap(), &self.namespace);
        leases.get_opt("berth-controller").await.unwrap()
    }

    /// Where the leader's desk listens.
    async fn desk(&self) -> SocketAddr {
        let lease = self.lease().await.unwrap();
        let endpoint = berth_leader::Endpoint::read(&lease, jiff::Timestamp::now()).unwrap();
        endpoint.address.parse().unwrap()
    }

    /// Who leads, as everybody can see.
    async fn leader(&self) -> Option<String> {
        let lease = self.lease().await?;
        let holder = lease.spec?.holder_identity?;
        (!holder.is_empty()).then_some(holder)
    }

    /// Address and pod of every entry of the range's object.
    async fn held(&self) -> BTreeMap<String, String> {
        use berth_api::whereabouts::IPPool;
        let pools: Api<IPPool> =
            Api::namespaced(self.cluster.client().await.unwrap(), &self.namespace);
        let Some(pool) = pools.get_opt("10.9.0.0-16").await.unwrap() else {
            return BTreeMap::new();
        };
        let entries = pool.spec.allocations.into_iter();
        entries
            .map(|(offset, entry)| {
                let offset: u32 = offset.parse().unwrap();
                (
                    format!("10.9.{}.{}/16", offset / 256, offset % 256),
                    entry.podref,
                )
            })
            .collect()
    }
}

async fn until(what: &str, check: impl AsyncFn() -> bool) {
    let begun = Instant::now();
    while !check().await {
        assert!(begun.elapsed() < PATIENCE, "{what}: not after {PATIENCE:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

impl Node {
    fn call(&self, verb: &str, pod: &str) -> Result<(bool, Value), ClientError> {
        let conf = json!({
            "cniVersion": "1.0.0", "name": "shared", "type": "macvlan", "ipam": ipam(),
        });
        let request = PodCall::new("whereabouts", verb, pod).request_of(&conf.to_string());
        let answer = http::call(&self.0.socket, &request, PATIENCE)?;
        let body = serde_json::from_str(&answer.stdout).unwrap_or(Value::Null);
        Ok((answer.exit == 0, body))
    }

    fn add(&self, pod: &str) -> String {
        let (done, body) = self.call("ADD", pod).unwrap();
        assert!(done, "{pod}: {body}; {}", self.0.process.tail());
        body["ips"][0]["address"].as_str().unwrap().to_owned()
    }

    /// Requests that the leader's desk answered, of all that this agent had.
    fn gathered(&self) -> u64 {
        use std::io::{Read, Write};
        let mut stream = std::os::unix::net::UnixStream::connect(&self.0.socket).unwrap();
        let request = "GET /metrics HTTP/1.1\r\nhost: berth\r\nconnection: close\r\n\r\n";
        stream.write_all(request.as_bytes()).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let counts = text
            .lines()
            .filter(|line| line.starts_with("berth_desk_common_total"))
            .filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok());
        counts.sum()
    }
}

/// Every node adds its pods, all nodes at once.
fn wave(nodes: &[Node], name: &str, each: usize) -> BTreeMap<String, String> {
    let mut given = BTreeMap::new();
    std::thread::scope(|scope| {
        let threads: Vec<_> = nodes
            .iter()
            .enumerate()
            .map(|(at, node)| {
                scope.spawn(move || {
                    let pods = (0..each).map(|pod| format!("{name}-{at}-{pod}"));
                    pods.map(|pod| (node.add(&pod), format!("ns/{pod}")))
                        .collect::<Vec<_>>()
                })
            })
            .collect();
        for thread in threads {
            for (address, pod) in thread.join().unwrap() {
                let before = given.insert(address.clone(), pod);
                assert_eq!(before, None, "{address} was given twice (I1)");
            }
        }
    });
    given
}

#[tokio::test(flavor = "multi_thread")]
async fn the_nodes_meet_in_the_leaders_desk_and_do_without_it() {
    let site = Site::new().await;
    let mut first = site.controller("first");
    until("the first leads", async || {
        site.leader().await.as_deref() == Some("first")
    })
    .await;
    let second = site.controller("second");
    let mut nodes = Vec::new();
    for name in ["n0", "n1", "n2"] {
        nodes.push(site.node(name).await);
    }
    let all = |nodes: &[Node]| nodes.iter().map(Node::gathered).sum::<u64>();

    let mut given = wave(&nodes, "calm", 6);
    assert_eq!(all(&nodes), 18, "the leader answered everybody");
    assert_eq!(site.held().await, given);

    // The leader is killed: nodes commit by themselves until the other one leads.
    first.kill().unwrap();
    given.extend(wave(&nodes, "killed", 4));
    assert_eq!(site.held().await, given);
    until("the second leads", async || {
        site.leader().await.as_deref() == Some("second")
    })
    .await;
    let before = all(&nodes);
    until("the nodes have found the second", async || {
        // The same pod, the same address (I3): asked as often as one likes.
        nodes[0].add("killed-0-0");
        all(&nodes) > before
    })
    .await;
    given.extend(wave(&nodes, "second", 4));
    assert_eq!(site.held().await, given);

    // The leader freezes with requests in its hands, and wakes up when they were served elsewhere.
    second.pause().unwrap();
    given.extend(wave(&nodes, "frozen", 2));
    second.resume().unwrap();
    given.extend(wave(&nodes, "thawed", 4));
    let held = site.held().await;
    for (address, pod) in &given {
        assert_eq!(
            held.get(address),
            Some(pod),
            "I2: what was answered is recorded"
        );
    }
    // Whatever the sleeper wrote late goes with its pod.
    for (at, node) in nodes.iter().enumerate() {
        for wave in ["calm", "killed", "second", "frozen", "thawed"] {
            for pod in 0..6 {
                assert!(node.call("DEL", &format!("{wave}-{at}-{pod}")).unwrap().0);
            }
        }
    }
    until("nothing is left", async || site.held().await.is_empty()).await;
}

/// One call of the real whereabouts; the address of an ADD.
fn peer(whereabouts: &Whereabouts, verb: &str, pod: &str) -> Option<String> {
    let container = format!("{pod}-container");
    let who = Attachment {
        pod,
        container: &container,
        ifname: "net1",
    };
    let output = whereabouts.call(verb, who, &ipam()).unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{verb} {pod}: {text}");
    let body: Value = serde_json::from_str(&text).unwrap_or_default();
    body["ips"][0]["address"].as_str().map(str::to_owned)
}

/// Nodes of which some still have whereabouts: the leader's desk and its processes write one object at once.
#[tokio::test(flavor = "multi_thread")]
async fn the_leaders_desk_and_whereabouts_give_from_one_pool() {
    let site = Site::new().await;
    let _first = site.controller("first");
    until("it leads", async || site.leader().await.is_some()).await;
    let nodes = [site.node("n0").await, site.node("n1").await];
    let rules = Whereabouts::rules();
    let account = site
        .cluster
        .service_account(&site.namespace, "whereabouts", rules);
    let account = account.await.unwrap();
    let whereabouts = Whereabouts::new(account.kubeconfig(), "n2").unwrap();
    let held: Mutex<BTreeMap<String, String>> = Mutex::default();
    let gain = |address: String, pod: &str| {
        let before = held
            .lock()
            .unwrap()
            .insert(address.clone(), format!("ns/{pod}"));
        assert_eq!(before, None, "{address} was given twice (I1)");
    };
    // From now on anybody may get the address.
    let lose = |pod: &str| {
        let pod = format!("ns/{pod}");
        held.lock().unwrap().retain(|_, holder| *holder != pod);
    };
    std::thread::scope(|scope| {
        for (at, node) in nodes.iter().enumerate() {
            for lane in 0..2 {
                let (gain, lose) = (&gain, &lose);
                scope.spawn(move || {
                    for n in 0..15 {
                        let pod = format!("berth-{at}-{lane}-{n}");
                        gain(node.add(&pod), &pod);
                        if n % 3 == 0 {
                            lose(&pod);
                            assert!(node.call("DEL", &pod).unwrap().0, "{pod}");
                        }
                    }
                });
            }
        }
        for lane in 0..2 {
            let (whereabouts, gain, lose) = (&whereabouts, &gain, &lose);
            scope.spawn(move || {
                for n in 0..15 {
                    let pod = format!("where-{lane}-{n}");
                    gain(peer(whereabouts, "ADD", &pod).unwrap(), &pod);
                    if n % 3 == 0 {
                        lose(&pod);
                        peer(whereabouts, "DEL", &pod);
                    }
                }
            });
        }
    });
    let gathered: u64 = nodes.iter().map(Node::gathered).sum();
    assert!(gathered > 0, "the leader answered nobody");
    let given = held.lock().unwrap().clone();
    assert_eq!(given.len(), 60);
    assert_eq!(site.held().await, given);
    // Each frees its own, at once, and no other's.
    std::thread::scope(|scope| {
        for (at, node) in nodes.iter().enumerate() {
            scope.spawn(move || {
                for n in (0..30).filter(|n| n % 15 % 3 != 0) {
                    let pod = format!("berth-{at}-{}-{}", n / 15, n % 15);
                    assert!(node.call("DEL", &pod).unwrap().0, "{pod}");
                }
            });
        }
        scope.spawn(|| {
            for n in (0..15).filter(|n| n % 3 != 0) {
                peer(&whereabouts, "DEL", &format!("where-0-{n}"));
            }
        });
    });
    let mut left = given;
    left.retain(|_, pod| pod.starts_with("ns/where-1-"));
    assert_eq!(site.held().await, left);
}
