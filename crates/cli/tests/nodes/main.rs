//! The built command with `--nodes`: two controllers and agents of three nodes under the roles of deploy/, on an API server with the definitions and the
//! admission policy of kubernetes-nmstate v0.86.0. Claims meet in the leader's desk; leader and agents are killed, and no address is given
//! twice or lost.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use std::path::PathBuf;
use std::time::{Duration, Instant};

use berth_parts::Parts;
use berth_testkit::{Account, Agent, Agents, Cluster, Process, guarded, isolated};
use serde_json::{Value, json};

const BERTH: &str = env!("CARGO_BIN_EXE_berth");
const HOME: &str = "kube-system";
const AUDIENCE: &str = "desk.berth.dev";
const PATIENCE: Duration = Duration::from_secs(90);

/// Keeps the state that it was last told to apply: the host is not what is tested here.
const HOST: &str = r#"#!/bin/sh
dir=$(dirname "$0")
for last; do :; done
case "$1" in
show) cat "$dir/$(basename "$0").state" 2>/dev/null || echo '{"interfaces":[]}' ;;
apply) cp "$last" "$0.next" && mv "$0.next" "$0.state" ;;
esac
"#;

struct Site {
    cluster: Cluster,
    agents: Agents,
    controller: Account,
    dir: tempfile::TempDir,
}

impl Site {
    async fn new() -> Site {
        let cluster = Cluster::start().await.unwrap();
        for crd in berth_api::crds().unwrap() {
            cluster.apply_object(crd).await.unwrap();
        }
        let upstream = Parts::find().unwrap().kubernetes_nmstate().unwrap();
        for file in ["crds.yaml", "admission.yaml"] {
            let text = std::fs::read_to_string(upstream.join(file)).unwrap();
            cluster.apply(&text).await.unwrap();
        }
        for text in [
            include_str!("../../../../deploy/crds/namespace-slices.yaml"),
            include_str!("../../../../deploy/controller/rbac.yaml"),
            include_str!("../../../../deploy/nodes/rbac.yaml"),
            include_str!("../../../../deploy/nodes/captures.yaml"),
            include_str!("../../../../deploy/nodes/policies.yaml"),
        ] {
            cluster.apply(text).await.unwrap();
        }
        let agents = cluster.agents_beside_a_controller(HOME).await.unwrap();
        let controller = cluster.account(HOME, "berth-controller").await.unwrap();
        Site {
            cluster,
            agents,
            controller,
            dir: tempfile::tempdir().unwrap(),
        }
    }

    fn controller(&self, name: &str) -> Process {
        let mut command = isolated(guarded(BERTH));
        command
            .args(["controller", "--identity", name, "--lease-duration", "3"])
            .args(["--desk-listen", "127.0.0.1:0", "--log-format", "json"])
            .args(["--nodes", "--nodes-grace", "1"])
            .env("BERTH_KUBECONFIG", self.controller.kubeconfig());
        Process::start(name, command, self.dir.path()).unwrap()
    }

    fn host_program(&self, node: &str) -> PathBuf {
        use std::os::unix::fs::PermissionsExt;
        let path = self.dir.path().join(format!("host-{node}"));
        if !path.exists() {
            std::fs::write(&path, HOST).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        path
    }

    async fn agent(&self, node: &str, more: &[&str]) -> Agent {
        let account = self.agents.on(node).await.unwrap();
        let token = self.cluster.pod_token(&account, node, AUDIENCE).await;
        let token_file = self.dir.path().join(format!("{node}.token"));
        std::fs::write(&token_file, token.unwrap()).unwrap();
        let program = self.host_program(node);
        let agent = Agent::start(BERTH, self.dir.path(), node, |command| {
            command
                .args(["--node", node, "--log-format", "json", "--nodes"])
                .arg("--host-program")
                .arg(&program)
                .args(more)
                .env("BERTH_KUBECONFIG", account.kubeconfig())
                .env("BERTH_DESK_TOKEN_FILE", &token_file);
        });
        agent.unwrap()
    }

    async fn node(&self, name: &str) {
        let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": name } });
        self.cluster.apply_object(node).await.unwrap();
        let ready = r#"{"status":{"conditions":[{"type":"Ready","status":"True"}]}}"#;
        let arguments = [
            "patch",
            "node",
            name,
            "--subresource=status",
            "--type=merge",
            "-p",
            ready,
        ];
        self.kubectl(&arguments);
    }

    fn kubectl(&self, arguments: &[&str]) -> String {
        let output = self.cluster.kubectl(arguments).unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn get(&self, kind: &str, name: &str) -> Value {
        let arguments = ["get", kind, name, "-o", "json", "--ignore-not-found"];
        serde_json::from_str(&self.kubectl(&arguments)).unwrap_or_default()
    }

    fn until(&self, kind: &str, name: &str, what: impl Fn(&Value) -> bool) -> Value {
        let begun = Instant::now();
        loop {
            let object = self.get(kind, name);
            if what(&object) {
                return object;
            }
            assert!(
                begun.elapsed() < PATIENCE,
                "{kind} {name}: {}",
                object["status"]
            );
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// An agent's token can't change another node's enactment, and changes its own.
    async fn refuses_what_is_of_another_node(&self) {
        let account = self.agents.on("node01").await.unwrap();
        let patch = |node: &str| {
            let file = format!("--kubeconfig={}", account.kubeconfig().display());
            let arguments = [
                "annotate",
                "nnce",
                &format!("{node}.static-ip"),
                "touched=yes",
            ];
            let mut command = isolated(std::process::Command::new(self.cluster.kubectl_file()));
            // kubectl keeps a cache below its home.
            command.env("HOME", self.dir.path());
            command.arg(file).args(arguments).output().unwrap()
        };
        let refused = patch("node02");
        let told = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(told.contains("of its own node, node01"), "{told}");
        let own = patch("node01");
        assert!(own.status.success(), "{own:?}");
    }

    /// The pool's allocations: node -> address.
    fn allocations(&self, pool: &Value) -> Vec<(String, String)> {
        let list = pool["status"]["allocations"].as_array();
        let read = |one: &Value| (text(&one["node"]), text(&one["ip"]));
        let mut all: Vec<_> = list.into_iter().flatten().map(read).collect();
        all.sort();
        all
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// The message of the condition that is True.
fn message(object: &Value) -> String {
    let conditions = object.pointer("/status/conditions");
    let mut all = conditions.and_then(Value::as_array).into_iter().flatten();
    let current = all.find(|one| one["status"] == "True");
    current.map(|one| text(&one["message"])).unwrap_or_default()
}

const OBJECTS: &str = r#"
apiVersion: nmstate.io/v1
kind: NodeIPPool
metadata:
  name: traffic-1
spec:
  range:
    cidr: 10.10.10.0/24
    start: 10.10.10.1
    end: 10.10.10.10
    exclude: ["10.10.10.4", "10.10.10.7"]
---
apiVersion: nmstate.io/v1
kind: NodeNetworkConfigurationPolicy
metadata:
  name: static-ip
spec:
  maxUnavailable: 100%
  capture:
    address: ippool.traffic-1.allocate
  desiredState:
    interfaces:
    - name: eth1
      type: ethernet
      state: up
      ipv4:
        address:
        - ip: "{{ capture.address.ip }}"
          prefix-length: "{{ capture.address.prefix-length }}"
        dhcp: false
        enabled: true
"#;

#[tokio::test(flavor = "multi_thread")]
async fn hosts_keep_their_addresses_through_kills_of_leader_and_agents() {
    let site = Site::new().await;
    let mut controllers = vec![site.controller("one"), site.controller("two")];
    for node in ["node01", "node02", "node03"] {
        site.node(node).await;
    }
    let mut agents = Vec::new();
    for node in ["node01", "node02", "node03"] {
        agents.push(site.agent(node, &[]).await);
    }
    site.cluster.apply(OBJECTS).await.unwrap();
    let all = "3/3 nodes successfully configured";
    site.until("nncp", "static-ip", |policy| message(policy) == all);
    let pool = site.until("nip", "traffic-1", |pool| {
        pool["status"]["used"] == 3 && message(pool) == "The pool is up to date"
    });
    let before = site.allocations(&pool);
    assert_eq!(before.len(), 3);
    site.refuses_what_is_of_another_node().await;
    // The leader is killed; a node joins all the same.
    let lease = site.kubectl(&[
        "get",
        "lease",
        "-n",
        HOME,
        "berth-controller",
        "-o",
        "jsonpath={.spec.holderIdentity}",
    ]);
    let leader = usize::from(lease.starts_with("two"));
    controllers.remove(leader).kill().unwrap();
    site.node("node04").await;
    let fourth = site.agent("node04", &[]).await;
    let joined = "4/4 nodes successfully configured";
    site.until("nncp", "static-ip", |policy| message(policy) == joined);
    // An agent is killed and starts again: its address is the same, and is applied.
    let mut killed = agents.remove(0);
    killed.process.kill().unwrap();
    drop(killed);
    let _again = site.agent("node01", &[]).await;
    let pool = site.until("nip", "traffic-1", |pool| pool["status"]["used"] == 4);
    let after = site.allocations(&pool);
    assert_eq!(after[..3], before[..]);
    // The fourth node goes, not gracefully. Nothing shows its address any more; the other leader frees it.
    drop(fourth);
    site.kubectl(&["delete", "node", "node04"]);
    site.kubectl(&["delete", "nns", "node04", "--ignore-not-found"]);
    let pool = site.until("nip", "traffic-1", |pool| pool["status"]["used"] == 3);
    assert_eq!(site.allocations(&pool), before);
    site.until("nncp", "static-ip", |policy| message(policy) == all);
    let shown = site.kubectl(&["get", "nip,nncp,nnce"]);
    assert!(
        shown.contains("traffic-1") && shown.contains("node02.static-ip"),
        "{shown}"
    );
}

/// Beside kubernetes-nmstate, but without what keeps it away from pool policies: the agent does not start, and says what to apply.
#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_could_meet_kubernetes_nmstate_does_not_start() {
    let site = Site::new().await;
    let text = include_str!("../../../../deploy/nodes/beside-nmstate/rbac.yaml");
    site.cluster.apply(text).await.unwrap();
    let account = site.agents.on("node01").await.unwrap();
    let begun = Instant::now();
    loop {
        let output = isolated(guarded(BERTH))
            .env("BERTH_KUBECONFIG", account.kubeconfig())
            .env("BERTH_DATABASE", site.dir.path().join("a.db"))
            .env("BERTH_SOCKET", site.dir.path().join("a.sock"))
            .args([
                "agent",
                "--node",
                "node01",
                "--nodes",
                "--nodes-apply=policy",
            ])
            .output()
            .unwrap();
        assert!(!output.status.success());
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        if told.contains("deploy/nodes/beside-nmstate") {
            break;
        }
        // The authorizer learns of a role a moment later.
        assert!(begun.elapsed() < PATIENCE, "{told}");
        std::thread::sleep(Duration::from_millis(200));
    }
}
