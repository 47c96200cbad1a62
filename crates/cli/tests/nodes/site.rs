//! Two replicas of the controller, agents, and what they run on.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use berth_parts::Parts;
use berth_testkit::{Account, Agent, Agents, Cluster, Process, guarded, isolated};
use serde_json::{Value, json};

pub const BERTH: &str = env!("CARGO_BIN_EXE_berth");
pub const HOME: &str = "kube-system";
const AUDIENCE: &str = "desk.berth.dev";
pub const PATIENCE: Duration = Duration::from_secs(90);

/// Keeps the state that it was last told to apply: the host is not what is tested here.
const HOST: &str = r#"#!/bin/sh
dir=$(dirname "$0")
for last; do :; done
case "$1" in
show) cat "$dir/$(basename "$0").state" 2>/dev/null || echo '{"interfaces":[]}' ;;
apply) cp "$last" "$0.next" && mv "$0.next" "$0.state" ;;
esac
"#;

pub struct Site {
    pub cluster: Cluster,
    pub agents: Agents,
    pub controller: Account,
    pub dir: tempfile::TempDir,
    /// Deletes what belongs to a node that is gone; ends with the site.
    _collector: Process,
}

impl Site {
    pub async fn new() -> Site {
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
            include_str!("../../../../deploy/slices/rbac.yaml"),
            include_str!("../../../../deploy/nodes/rbac.yaml"),
            include_str!("../../../../deploy/nodes/captures.yaml"),
            include_str!("../../../../deploy/nodes/capture-syntax.yaml"),
            include_str!("../../../../deploy/nodes/policies.yaml"),
            include_str!("../../../../deploy/nodes/status-policies.yaml"),
        ] {
            cluster.apply(text).await.unwrap();
        }
        let agents = cluster.agents(HOME).await.unwrap();
        let controller = cluster.account(HOME, "berth-controller").await.unwrap();
        Site {
            _collector: cluster.garbage_collector().unwrap(),
            cluster,
            agents,
            controller,
            dir: tempfile::tempdir().unwrap(),
        }
    }

    pub fn controller(&self, name: &str) -> Process {
        self.controller_by(name, self.controller.kubeconfig())
    }

    /// A controller that reaches the API server that way.
    pub fn controller_by(&self, name: &str, kubeconfig: &Path) -> Process {
        self.controller_with(name, kubeconfig, &[])
    }

    pub fn controller_with(&self, name: &str, kubeconfig: &Path, more: &[&str]) -> Process {
        let mut command = isolated(guarded(BERTH));
        command
            .args(["controller", "--identity", name, "--lease-duration", "3"])
            .args(["--desk-listen", "127.0.0.1:0", "--log-format", "json"])
            .args(["--nodes", "--nodes-grace", "1"])
            .args(more)
            .env("BERTH_KUBECONFIG", kubeconfig);
        Process::start(name, command, self.dir.path()).unwrap()
    }

    pub fn host_program(&self, node: &str) -> PathBuf {
        use std::os::unix::fs::PermissionsExt;
        let path = self.dir.path().join(format!("host-{node}"));
        if !path.exists() {
            std::fs::write(&path, HOST).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        path
    }

    pub async fn agent(&self, node: &str, more: &[&str]) -> Agent {
        let account = self.agents.on(node).await.unwrap();
        let token_file = self.desk_token(node, &account).await;
        self.agent_by(node, account.kubeconfig(), |command| {
            command.args(more).env("BERTH_DESK_TOKEN_FILE", &token_file);
        })
    }

    /// A file with the token by which an agent's claims reach the leader's desk.
    pub async fn desk_token(&self, node: &str, account: &Account) -> PathBuf {
        let token = self.cluster.pod_token(account, node, AUDIENCE).await;
        let file = self.dir.path().join(format!("{node}.token"));
        std::fs::write(&file, token.unwrap()).unwrap();
        file
    }

    /// An agent that reaches the API server that way.
    pub fn agent_by(
        &self,
        node: &str,
        kubeconfig: &Path,
        more: impl FnOnce(&mut Command),
    ) -> Agent {
        let program = self.host_program(node);
        let agent = Agent::start(BERTH, self.dir.path(), node, |command| {
            command
                .args(["--node", node, "--log-format", "json", "--nodes"])
                .arg("--host-program")
                .arg(&program)
                .env("BERTH_KUBECONFIG", kubeconfig);
            more(command);
        });
        agent.unwrap()
    }

    pub async fn node(&self, name: &str) {
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

    /// Waits for a leader: its name.
    pub fn until_led(&self) -> String {
        let begun = Instant::now();
        loop {
            let holder = self.kubectl(&[
                "get",
                "lease",
                "-n",
                HOME,
                "berth-controller",
                "--ignore-not-found",
                "-o",
                "jsonpath={.spec.holderIdentity}",
            ]);
            if !holder.is_empty() {
                return holder;
            }
            assert!(begun.elapsed() < PATIENCE, "no leader");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    pub fn kubectl(&self, arguments: &[&str]) -> String {
        let output = self.cluster.kubectl(arguments).unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    pub fn get(&self, kind: &str, name: &str) -> Value {
        let place = format!("--namespace={HOME}");
        let arguments = [
            "get",
            kind,
            name,
            &place,
            "-o",
            "json",
            "--ignore-not-found",
        ];
        serde_json::from_str(&self.kubectl(&arguments)).unwrap_or_default()
    }

    pub fn until(&self, kind: &str, name: &str, what: impl Fn(&Value) -> bool) -> Value {
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
    pub async fn refuses_what_is_of_another_node(&self) {
        let account = self.agents.on("node01").await.unwrap();
        let patch = |node: &str| {
            let file = format!("--kubeconfig={}", account.kubeconfig().display());
            let arguments = [
                "annotate",
                "nnce",
                &format!("{node}.static-ip"),
                "touched=yes",
            ];
            let mut command = isolated(Command::new(self.cluster.kubectl_file()));
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
    pub fn allocations(&self, pool: &Value) -> Vec<(String, String)> {
        let list = pool["status"]["allocations"].as_array();
        let read = |one: &Value| (text(&one["node"]), text(&one["ip"]));
        let mut all: Vec<_> = list.into_iter().flatten().map(read).collect();
        all.sort();
        all
    }
}

/// What is served under `/metrics`.
pub fn metrics(mut stream: impl Read + Write) -> String {
    let request = "GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (_, body) = text.split_once("\r\n\r\n").unwrap();
    body.to_owned()
}

/// The value of a series of an agent's `/metrics`, summed over its labels.
pub fn metric(agent: &Agent, name: &str) -> f64 {
    let text = metrics(UnixStream::connect(&agent.socket).unwrap());
    let lines = text.lines().filter(|line| line.starts_with(name));
    let values = lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
    values.sum()
}

pub fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// The message of the condition that is True.
pub fn message(object: &Value) -> String {
    let conditions = object.pointer("/status/conditions");
    let mut all = conditions.and_then(Value::as_array).into_iter().flatten();
    let current = all.find(|one| one["status"] == "True");
    current.map(|one| text(&one["message"])).unwrap_or_default()
}

pub const OBJECTS: &str = r#"
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
