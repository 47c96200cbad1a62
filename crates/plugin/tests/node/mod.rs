//! A node under test: the built plugin in a directory of its own, and an agent that it talks to.

use std::fs;
use std::path::PathBuf;
use std::process::Output;
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use berth_agent::AgentConfig;
use berth_front::Node;
use berth_pods::garbage::{GarbageSettings, GracePeriods};
use berth_pods::node::PodFront;
use berth_testkit::{PodCall, fed};
use serde_json::{Value, json};
use tokio::sync::oneshot;

/// Longer than any test.
const NEVER: Duration = Duration::from_secs(24 * 60 * 60);

/// Copies of the plugin are made one at a time: a file that a forked child still holds open for writing cannot be
/// run (ETXTBSY).
static INSTALLING: Mutex<()> = Mutex::new(());

/// The plugin, installed as `whereabouts`, and its agent.
pub struct TestNode {
    dir: tempfile::TempDir,
    /// The plugin's file; the agent's socket is beside it.
    pub plugin: PathBuf,
    /// Keys that every `ipam` object of this node gets, for instance its kubeconfig.
    pub defaults: Value,
    agent: Option<Agent>,
}

struct Agent {
    stop: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

/// One interface of one container of one pod.
#[derive(Clone)]
pub struct Interface {
    pub pod: String,
    pub container: String,
    pub ifname: String,
    /// Appended to CNI_ARGS.
    pub args: String,
}

/// What the plugin did.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    pub exit: i32,
    pub stdout: String,
}

pub fn pod(name: &str) -> Interface {
    Interface {
        pod: name.into(),
        container: format!("{name}-container"),
        ifname: "net1".into(),
        args: String::new(),
    }
}

impl Interface {
    pub fn container(mut self, container: &str) -> Self {
        self.container = container.into();
        self
    }

    pub fn ifname(mut self, ifname: &str) -> Self {
        self.ifname = ifname.into();
        self
    }

    pub fn args(mut self, args: &str) -> Self {
        self.args = args.into();
        self
    }
}

impl Outcome {
    pub fn of(output: Output) -> Outcome {
        let stdout = String::from_utf8(output.stdout).unwrap();
        Outcome {
            exit: output.status.code().unwrap(),
            stdout: stdout.trim_end().to_owned(),
        }
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout)
            .unwrap_or_else(|error| panic!("{error}: {:?}", self.stdout))
    }

    /// The result of a success.
    pub fn result(&self) -> Value {
        assert_eq!(self.exit, 0, "{}", self.stdout);
        self.json()
    }

    /// The addresses of a success, with their lengths, in order.
    pub fn addresses(&self) -> Vec<String> {
        let result = self.result();
        let ips = result["ips"].as_array().cloned().unwrap_or_default();
        ips.iter()
            .map(|ip| ip["address"].as_str().unwrap().to_owned())
            .collect()
    }

    /// The code and message of a failure.
    pub fn error(&self) -> (u64, String) {
        assert_eq!(self.exit, 1, "{}", self.stdout);
        let error = self.json();
        (
            error["code"].as_u64().unwrap(),
            error["msg"].as_str().unwrap().to_owned(),
        )
    }

    pub fn succeeded(&self) {
        assert_eq!((self.exit, self.stdout.as_str()), (0, ""));
    }
}

impl TestNode {
    /// A node whose networks have these keys in their `ipam` objects.
    pub fn with_defaults(defaults: Value) -> TestNode {
        let _turn = INSTALLING.lock().unwrap_or_else(PoisonError::into_inner);
        let dir = tempfile::tempdir().unwrap();
        let plugin = dir.path().join("whereabouts");
        fs::copy(env!("CARGO_BIN_EXE_berth-cni"), &plugin).unwrap();
        let mut node = TestNode {
            dir,
            plugin,
            defaults,
            agent: None,
        };
        node.start();
        node
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("berth.sock")
    }

    /// Starts the agent and waits for its socket.
    pub fn start(&mut self) {
        let config = AgentConfig {
            socket: self.socket(),
            listen: None,
            node: Node {
                name: "node-1".into(),
                database: self.dir.path().join("berth.db"),
                ..Node::default()
            },
            fronts: vec![Box::new(PodFront {
                flat_places: Some(Vec::new()),
                // Tests name their clusters in the network.
                definition_paths: Some(vec!["/".into()]),
                // The pods of these tests are in no API server: the collector would release their addresses once its
                // grace period is over, in the middle of a test that takes longer.
                garbage: GarbageSettings {
                    grace: GracePeriods {
                        pod: NEVER,
                        node: NEVER,
                    },
                    ..GarbageSettings::default()
                },
                ..PodFront::default()
            })],
        };
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Runtime::new().unwrap();
            let served = berth_agent::serve(config, async {
                let _ = stopped.await;
            });
            runtime.block_on(served).unwrap();
        });
        let started = Instant::now();
        while !self.socket().exists() {
            assert!(
                started.elapsed() < Duration::from_secs(20),
                "the agent does not start"
            );
            std::thread::sleep(Duration::from_millis(2));
        }
        self.agent = Some(Agent { stop, thread });
    }

    /// Stops the agent, as a service manager does.
    pub fn stop(&mut self) {
        if let Some(agent) = self.agent.take() {
            let _ = agent.stop.send(());
            agent.thread.join().unwrap();
        }
    }

    pub fn add(&self, who: &Interface, ipam: Value) -> Outcome {
        self.run("ADD", who, &self.conf("0.3.1", ipam))
    }

    pub fn add_at(&self, version: &str, who: &Interface, ipam: Value) -> Outcome {
        self.run("ADD", who, &self.conf(version, ipam))
    }

    pub fn del(&self, who: &Interface, ipam: Value) -> Outcome {
        self.run("DEL", who, &self.conf("0.3.1", ipam))
    }

    /// The network configuration around an `ipam` object.
    pub fn conf(&self, version: &str, mut ipam: Value) -> Value {
        for (key, value) in self.defaults.as_object().unwrap() {
            ipam[key] = value.clone();
        }
        ipam["type"] = json!("whereabouts");
        json!({"cniVersion": version, "name": "net", "type": "macvlan", "ipam": ipam})
    }

    pub fn run(&self, verb: &str, who: &Interface, conf: &Value) -> Outcome {
        let call = PodCall::new("whereabouts", verb, &who.pod)
            .of_container(&who.container)
            .of_interface(&who.ifname)
            .and_args(&who.args);
        let mut command = call.command(&self.plugin);
        command.env("BERTH_SOCKET", self.socket());
        Outcome::of(fed(&mut command, conf.to_string()).unwrap())
    }
}

impl Drop for TestNode {
    fn drop(&mut self) {
        self.stop();
    }
}
