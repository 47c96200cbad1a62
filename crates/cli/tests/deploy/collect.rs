//! What a lost node's pods held in plain pools, as deploy/ ships it: agents may not release it, and the leader does
//! (`berth controller --collect`).

use std::time::{Duration, Instant};

use berth_api::whereabouts::{IPPool, OverlappingRangeIPReservation};
use berth_testkit::{
    Account, Agent, Cluster, PodCall, Process, answered_addresses, guarded, isolated,
};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, DeleteParams, DynamicObject, PostParams};
use kube::core::{ApiResource, NamespaceResourceScope};
use serde_json::{Value, json};

use crate::{HOME, deploy, kubectl};

const BERTH: &str = env!("CARGO_BIN_EXE_berth");
const POOL: &str = "10.78.0.0-24";

/// A cluster of its own: agents and the controller collect in the pools of all tests.
struct Site {
    cluster: Cluster,
    dir: tempfile::TempDir,
}

impl Site {
    async fn new() -> Site {
        let cluster = Cluster::start().await.unwrap();
        let crds = deploy("crds");
        kubectl(&cluster, &["apply", "--filename", crds.to_str().unwrap()]);
        for part in ["agent", "controller", "slices"] {
            kubectl(&cluster, &["apply", "-k", deploy(part).to_str().unwrap()]);
        }
        Site {
            cluster,
            dir: tempfile::tempdir().unwrap(),
        }
    }

    async fn api<K>(&self, namespace: &str) -> Api<K>
    where
        K: kube::Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.cluster.client().await.unwrap(), namespace)
    }

    async fn nodes(&self) -> Api<Node> {
        Api::all(self.cluster.client().await.unwrap())
    }

    /// The arguments of the shipped Deployment, listening on ports of this machine.
    fn shipped_arguments() -> Vec<String> {
        let text = std::fs::read_to_string(deploy("controller/deployment.yaml")).unwrap();
        let manifest: Value = serde_saphyr::from_str(&text).unwrap();
        let arguments = &manifest["spec"]["template"]["spec"]["containers"][0]["args"];
        let local = |argument: &Value| match argument.as_str().unwrap().split_once('=') {
            Some((flag @ ("--listen" | "--desk-listen"), _)) => format!("{flag}=127.0.0.1:0"),
            _ => argument.as_str().unwrap().to_owned(),
        };
        arguments.as_array().unwrap().iter().map(local).collect()
    }

    fn controller(&self, account: &Account) -> Process {
        let mut command = isolated(guarded(BERTH));
        command
            .args(["controller", "--identity=one", "--lease-duration=2"])
            .args(["--garbage-grace=1", "--garbage-node-grace=1"])
            .arg("--garbage-interval=1")
            .args(Site::shipped_arguments())
            .env("BERTH_KUBECONFIG", account.kubeconfig());
        Process::start("controller", command, self.dir.path()).unwrap()
    }

    fn agent(&self, node: &str, account: &Account) -> Agent {
        let agent = Agent::start(BERTH, self.dir.path(), node, |command| {
            command
                .args(["--node", node, "--garbage-grace=1"])
                .args(["--garbage-node-grace=1", "--garbage-interval=1"])
                .env("BERTH_LOG", "info,berth_collector=debug")
                .env("BERTH_KUBECONFIG", account.kubeconfig());
        });
        agent.unwrap()
    }

    async fn run(&self, pod: &str, node: &str) {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": { "name": pod },
            "spec": { "nodeName": node, "containers": [{ "name": "c", "image": "nothing" }] },
        }))
        .unwrap();
        let pods: Api<Pod> = self.api("default").await;
        pods.create(&PostParams::default(), &pod).await.unwrap();
    }

    /// The nodes of the pool's entries by pod, and the names of reservations.
    async fn held(&self) -> (Vec<(String, String)>, Vec<String>) {
        let client = self.cluster.client().await.unwrap();
        // The type has whereabouts' fields alone.
        let resource = ApiResource::erase::<IPPool>(&());
        let pools: Api<DynamicObject> = Api::namespaced_with(client, HOME, &resource);
        let pool = pools.get(POOL).await.unwrap();
        let entries = pool.data["spec"]["allocations"].as_object().unwrap();
        let text = |entry: &Value, field: &str| entry[field].as_str().unwrap().to_owned();
        let entries = entries.values();
        let mut entries: Vec<_> = entries
            .map(|entry| (text(entry, "podref"), text(entry, "node")))
            .collect();
        entries.sort();
        let reservations: Api<OverlappingRangeIPReservation> = self.api(HOME).await;
        let all = reservations.list(&Default::default()).await.unwrap();
        let names = all.items.into_iter().filter_map(|one| one.metadata.name);
        (entries, names.collect())
    }
}

async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let begun = Instant::now();
    while !holds().await {
        let waited = begun.elapsed() < Duration::from_secs(120);
        assert!(waited, "not after 120 s: {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn add(agent: &Agent, pod: &str) -> Vec<String> {
    let ipam = json!({ "type": "whereabouts", "range": "10.78.0.0/24" });
    let call = PodCall::new("whereabouts", "ADD", pod).in_namespace("default", pod);
    answered_addresses(&call.ask(&agent.socket, &ipam).unwrap()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn berth_16_2_the_controller_releases_what_a_lost_node_held_and_agents_leave_it() {
    let site = Site::new().await;
    let agents = site.cluster.agents(HOME).await.unwrap();
    let nodes = site.nodes().await;
    for name in ["collect-1", "collect-2"] {
        let node = serde_json::from_value(json!({ "metadata": { "name": name } })).unwrap();
        nodes.create(&PostParams::default(), &node).await.unwrap();
    }
    site.run("goes", "collect-1").await;
    site.run("stays", "collect-2").await;
    let lost = site.agent("collect-1", &agents.on("collect-1").await.unwrap());
    let swept = agents.on("collect-2").await.unwrap();
    let other = site.agent("collect-2", &swept);
    assert_eq!(add(&lost, "goes"), ["10.78.0.1/24"]);
    assert_eq!(add(&other, "stays"), ["10.78.0.2/24"]);
    let of = |pod: &str, node: &str| (format!("default/{pod}"), node.to_owned());
    let both = vec![of("goes", "collect-1"), of("stays", "collect-2")];
    assert_eq!(site.held().await.0, both);

    // The machine is gone, with its pod and its Node.
    drop(lost);
    let pods: Api<Pod> = site.api("default").await;
    let forced = DeleteParams::default().grace_period(0);
    pods.delete("goes", &forced).await.unwrap();
    nodes.delete("collect-1", &forced).await.unwrap();
    // The other agent finds it, may not release it, and says so in a count.
    until("the agent's sweep leaves the entry", async || {
        let log = std::fs::read_to_string(other.process.log()).unwrap();
        log.contains("left to the controller")
    })
    .await;
    assert_eq!(site.held().await.0, both);

    let account = site.cluster.account(HOME, "berth-controller").await;
    let controller = site.controller(&account.unwrap());
    until(
        "the leader releases the entry and its reservation",
        async || {
            let (entries, reservations) = site.held().await;
            entries == [of("stays", "collect-2")] && reservations == ["10.78.0.2"]
        },
    )
    .await;
    assert_eq!(add(&other, "stays"), ["10.78.0.2/24"]);
    for process in [&other.process, &controller] {
        let log = std::fs::read_to_string(process.log()).unwrap();
        let mut shown = log.lines().filter(|line| !line.contains("DEBUG"));
        let wrong = ["403", "orbidden", "not collected", "stays until"];
        let refused = shown.find(|line| wrong.iter().any(|word| line.contains(word)));
        assert_eq!(refused, None, "{log}");
    }
}
