//! Addresses of node slices: the node's own file is the truth, and only its agent writes it.

use std::path::PathBuf;

use berth_testkit::{Agent, PodCall, answered_addresses};
use serde_json::{Value, json};

use crate::world::{NODE, Said, World, bare, until};

struct Node {
    world: World,
    dir: tempfile::TempDir,
    ipam: Value,
    /// Killed with the test.
    _agent: Agent,
}

impl Node {
    async fn new(ipam: Value) -> Node {
        let world = World::new().await;
        let dir = tempfile::tempdir().unwrap();
        let flags = ["--garbage-grace=3600", "--slice-publish-within=0"];
        Node {
            _agent: world.start_agent(dir.path(), &flags).await,
            world,
            dir,
            ipam,
        }
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("berth.sock")
    }

    /// Where the network namespace of a pod's container is, if its test makes one.
    fn netns(&self, pod: &str) -> PathBuf {
        self.dir.path().join(format!("netns-{pod}"))
    }

    fn call(&self, verb: &str, pod: &str) -> Option<String> {
        let call = PodCall::new("whereabouts", verb, pod)
            .in_namespace(&self.world.namespace, pod)
            .in_netns(&self.netns(pod));
        let answer = call.ask(&self.socket(), &self.ipam).ok()?;
        let address = answered_addresses(&answer).ok()?.first()?.clone();
        Some(address.split('/').next().unwrap().to_owned())
    }

    /// The pod's address, once it is published.
    fn address(&self, pod: &str) -> String {
        until("an address", || self.call("ADD", pod).is_some());
        let address = self.call("ADD", pod).unwrap();
        let shown = || self.world.berth(&["who", &address]).code == 0;
        until("published", shown);
        address
    }

    fn release(&self, address: &str, more: &[&str]) -> Said {
        let socket = self.socket();
        let mut arguments = vec!["release", address, "--socket", socket.to_str().unwrap()];
        arguments.extend(more);
        self.world.berth(&arguments)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn berth_15_2_the_agent_releases_what_its_slices_hold() {
    let node = Node::new(json!({ "range": "10.8.0.0/24", "fast_ipam": true })).await;
    let world = &node.world;
    world.run_pod("a", json!({})).await;
    let address = node.address("a");

    // From anywhere else: refused, and told where to go.
    let elsewhere = [
        "release",
        &address,
        "--yes",
        "--socket",
        "/nonexistent/berth.sock",
    ];
    let told = world.berth(&elsewhere).failed(4);
    assert!(told.contains(&format!("node {NODE}")), "{told}");
    assert!(told.contains(&format!("berth release {address}")), "{told}");
    let told = node.release(&address, &["--yes"]).failed(7);
    assert!(told.contains(&format!("{}/a", world.namespace)), "{told}");
    world.berth(&["who", &address]).succeeded();
    // Nor by writing the node's file under its agent.
    let mut direct = bare();
    direct
        .arg("--database")
        .arg(node.dir.path().join("berth.db"))
        .args(["release", &address, "--yes"]);
    let told = Said::of(direct).failed(4);
    assert!(told.contains("agent"), "{told}");

    world.kubectl(&["delete", "pod", "a", "--force", "--grace-period=0"]);
    node.release(&address, &["--yes"]).succeeded();
    until("its reservation is gone", || {
        world.reservations().is_empty()
    });
    until("the published copy follows", || {
        world.berth(&["who", &address]).code == 3
    });
    // The node's own file had it released: the next pod gets it.
    world.run_pod("b", json!({})).await;
    assert_eq!(node.address("b"), address);
}

/// The pod was deleted by force, and its container is still there.
#[tokio::test(flavor = "multi_thread")]
async fn berth_15_2_the_agent_keeps_what_a_container_without_a_pod_may_use() {
    let node = Node::new(json!({ "range": "10.8.3.0/24", "fast_ipam": true })).await;
    let world = &node.world;
    world.run_pod("a", json!({})).await;
    std::fs::write(node.netns("a"), "").unwrap();
    let address = node.address("a");
    world.kubectl(&["delete", "pod", "a", "--force", "--grace-period=0"]);
    let told = node.release(&address, &["--yes"]).failed(7);
    for word in ["was deleted and may still run", NODE, &address] {
        assert!(told.contains(word), "{told}");
    }
    world.berth(&["who", &address]).succeeded();
    std::fs::remove_file(node.netns("a")).unwrap();
    node.release(&address, &["--yes"]).succeeded();
}

#[tokio::test(flavor = "multi_thread")]
async fn berth_15_2_another_nodes_slice_is_left_to_its_agent() {
    let node = Node::new(json!({ "range": "10.8.1.0/24", "fast_ipam": true })).await;
    let world = &node.world;
    until("the agent listens", || node.socket().exists());
    let spec = json!({ "range": "10.9.0.0/26", "allocations": {
        "1": { "id": "c", "podref": format!("{}/gone", world.namespace), "ifname": "net1" },
    } });
    let published = json!({ "berth.dev/published-by": "node-9" });
    let pool = "node-9-10.9.0.0-26";
    world.put_raw_pool(pool, spec, published).await;
    let told = node.release("10.9.0.1", &["--yes"]).failed(4);
    assert!(told.contains("node node-9"), "{told}");
    assert!(world.entries(pool)["1"].is_object());
}

#[tokio::test(flavor = "multi_thread")]
async fn berth_16_1_the_agent_ends_a_cooldown_of_its_slices() {
    let ipam = json!({ "range": "10.8.2.0/24", "fast_ipam": true, "cooldown_seconds": 3600,
        "enable_overlapping_ranges": false });
    let node = Node::new(ipam).await;
    node.world.run_pod("a", json!({})).await;
    let address = node.address("a");
    node.call("DEL", "a");
    let released = || node.world.berth(&["who", &address]).code == 3;
    until("it is released", released);
    let shown = || {
        let mut command = bare();
        let database = node.dir.path().join("berth.db");
        command.arg("--database").arg(database).arg("addresses");
        Said::of(command).succeeded()
    };
    assert!(shown().contains("cooling until"), "{}", shown());
    // Cooldowns are not published: from anywhere else its node is named, and no number is made up.
    let socket = "/nonexistent/berth.sock";
    let elsewhere = ["release", &address, "--yes", "--socket", socket];
    let told = node.world.berth(&elsewhere).failed(4);
    assert!(
        told.contains(&format!("of a slice of node {NODE}")),
        "{told}"
    );
    let pools = node.world.berth(&["pools", "--output", "json"]).succeeded();
    let pools: Value = serde_json::from_str(&pools).unwrap();
    let of_node = |row: &&Value| row["node"] == NODE;
    let slice = pools.as_array().unwrap().iter().find(of_node).unwrap();
    assert_eq!(slice["cooling"], Value::Null, "{slice}");
    node.release(&address, &["--yes"]).succeeded();
    assert!(!shown().contains("cooling until"), "{}", shown());
}
