//! The built command as a node runs it: `berth cni` by itself, `berth agent` as a daemon, and both on one
//! database.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod agentless;
mod daemon;

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use berth_cni::http::{self, ClientError};
use berth_cni::wire::Answer;
use berth_testkit::{PodCall, fed, isolated};
use serde_json::{Value, json};

const BERTH: &str = env!("CARGO_BIN_EXE_berth");

struct Machine {
    dir: tempfile::TempDir,
}

/// `berth agent`, killed when dropped.
struct Agent(Child);

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn conf() -> Value {
    json!({"cniVersion": "1.1.0", "name": "net", "type": "bridge",
        "ipam": {"type": "berth", "range": "10.0.0.0/16"}})
}

fn call(verb: &str, pod: &str) -> PodCall {
    PodCall::new("berth", verb, pod).of_interface("eth0")
}

/// A program with nothing in its environment but what a runtime puts there.
fn asked(program: impl AsRef<OsStr>, verb: &str, pod: &str) -> Command {
    call(verb, pod).command(program)
}

fn addresses(answer: &Answer) -> Vec<String> {
    assert_eq!(answer.exit, 0, "{}", answer.stdout);
    let result: Value = serde_json::from_str(&answer.stdout).unwrap();
    let ips = result["ips"].as_array().unwrap();
    ips.iter()
        .map(|ip| ip["address"].as_str().unwrap().to_owned())
        .collect()
}

impl Machine {
    fn new() -> Machine {
        Machine {
            dir: tempfile::tempdir().unwrap(),
        }
    }

    fn database(&self) -> PathBuf {
        self.dir.path().join("berth.db")
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("berth.sock")
    }

    /// One call in a process of its own.
    fn cni(&self, verb: &str, pod: &str) -> Answer {
        let mut command = asked(BERTH, verb, pod);
        // As the plugin calls it, but for the database.
        command
            .args(["cni", "--plugin", "berth", "--database"])
            .arg(self.database());
        let output = fed(&mut command, conf().to_string()).unwrap();
        Answer {
            exit: output.status.code().unwrap(),
            stdout: String::from_utf8(output.stdout)
                .unwrap()
                .trim_end()
                .to_owned(),
            delegate: None,
        }
    }

    fn agent(&self) -> Agent {
        self.agent_with(&[])
    }

    fn agent_with(&self, more: &[&OsStr]) -> Agent {
        let child = isolated(Command::new(BERTH))
            .args(["agent", "--node", "node-1", "--socket"])
            .arg(self.socket())
            .arg("--database")
            .arg(self.database())
            .args(more)
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let agent = Agent(child);
        let began = Instant::now();
        while !answers(&self.socket()) {
            assert!(
                began.elapsed() < Duration::from_secs(20),
                "the agent does not start"
            );
            std::thread::sleep(Duration::from_millis(2));
        }
        agent
    }

    /// One call to the agent, as the plugin makes it.
    fn ask(&self, verb: &str, pod: &str) -> Result<Answer, ClientError> {
        let request = call(verb, pod).request_of(&conf().to_string());
        http::call(&self.socket(), &request, Duration::from_secs(30))
    }

    /// The holders of all addresses, by `berth addresses`.
    fn holders(&self) -> Vec<(String, String)> {
        let output = isolated(Command::new(BERTH))
            .args(["addresses", "--output", "json", "--database"])
            .arg(self.database())
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let rows: Value = serde_json::from_slice(&output.stdout).unwrap();
        let row = |row: &Value| {
            let text = |key: &str| row[key].as_str().unwrap_or_default().to_owned();
            (text("address"), text("owner"))
        };
        rows.as_array().unwrap().iter().map(row).collect()
    }
}

fn answers(socket: &Path) -> bool {
    std::os::unix::net::UnixStream::connect(socket).is_ok()
}

#[test]
fn one_call_needs_no_agent() {
    let machine = Machine::new();
    assert_eq!(addresses(&machine.cni("ADD", "a")), ["10.0.0.1/16"]);
    assert_eq!(addresses(&machine.cni("ADD", "a")), ["10.0.0.1/16"]);
    assert_eq!(addresses(&machine.cni("ADD", "b")), ["10.0.0.2/16"]);
    assert_eq!(machine.cni("DEL", "a"), Answer::success(String::new()));
    assert_eq!(addresses(&machine.cni("ADD", "c")), ["10.0.0.1/16"]);
    assert_eq!(machine.cni("STATUS", "x"), Answer::success(String::new()));
    let version: Value = serde_json::from_str(&machine.cni("VERSION", "x").stdout).unwrap();
    assert_eq!(version["supportedVersions"].as_array().unwrap().len(), 7);
    let refused: Value = serde_json::from_str(&machine.cni("UPDATE", "x").stdout).unwrap();
    assert_eq!(refused["code"], 4);
}

#[test]
fn many_processes_share_one_database() {
    let machine = Machine::new();
    let given: Vec<String> = std::thread::scope(|scope| {
        let lanes: Vec<_> = (0..4)
            .map(|lane| {
                let machine = &machine;
                scope.spawn(move || {
                    let pods = (lane..24).step_by(4);
                    pods.flat_map(|n| addresses(&machine.cni("ADD", &format!("p{n}"))))
                        .collect::<Vec<_>>()
                })
            })
            .collect();
        lanes
            .into_iter()
            .flat_map(|lane| lane.join().unwrap())
            .collect()
    });
    assert_eq!(given.iter().collect::<BTreeSet<_>>().len(), 24, "{given:?}");
}

#[test]
fn an_agent_and_processes_beside_it_see_each_other() {
    let machine = Machine::new();
    let agent = machine.agent();
    assert_eq!(
        addresses(&machine.ask("ADD", "a").unwrap()),
        ["10.0.0.1/16"]
    );
    assert_eq!(addresses(&machine.cni("ADD", "a")), ["10.0.0.1/16"]);
    assert_eq!(addresses(&machine.cni("ADD", "b")), ["10.0.0.2/16"]);
    assert_eq!(
        addresses(&machine.ask("ADD", "b").unwrap()),
        ["10.0.0.2/16"]
    );
    assert_eq!(machine.ask("DEL", "b").unwrap().exit, 0);
    assert_eq!(machine.cni("DEL", "a").exit, 0);
    assert_eq!(machine.holders(), []);
    drop(agent);
}

/// Why an agent on this socket and this file does not start.
fn refusal_of_agent(socket: &Path, database: &Path) -> String {
    let output = isolated(Command::new(BERTH))
        .args(["agent", "--socket"])
        .arg(socket)
        .arg("--database")
        .arg(database)
        .output()
        .unwrap();
    assert!(!output.status.success());
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_second_agent_on_the_socket_or_on_the_file_is_refused() {
    let (machine, other) = (Machine::new(), Machine::new());
    let _first = machine.agent();
    let text = refusal_of_agent(&machine.socket(), &other.database());
    assert!(text.contains("another agent listens"), "{text}");
    let text = refusal_of_agent(&other.socket(), &machine.database());
    assert!(text.contains("owns this file"), "{text}");
    assert_eq!(
        addresses(&machine.ask("ADD", "a").unwrap()),
        ["10.0.0.1/16"]
    );
}

/// kill -9 at any moment of an ADD: the repeat gives the pod one address, and nothing leaks.
#[test]
fn an_agent_killed_in_mid_add_leaks_nothing() {
    let machine = Machine::new();
    let mut pods = 0;
    for round in 0..8 {
        let mut agent = machine.agent();
        let failed = std::thread::scope(|scope| {
            let machine = &machine;
            let asker = scope.spawn(move || {
                for n in 0.. {
                    let pod = format!("p{round}-{n}");
                    if !machine
                        .ask("ADD", &pod)
                        .is_ok_and(|answer| answer.exit == 0)
                    {
                        return n;
                    }
                }
                0
            });
            // A different moment each round.
            std::thread::sleep(Duration::from_millis(20 + 7 * round));
            agent.0.kill().unwrap();
            agent.0.wait().unwrap();
            asker.join().unwrap()
        });
        let agent = machine.agent();
        let again = format!("p{round}-{failed}");
        assert_eq!(addresses(&machine.ask("ADD", &again).unwrap()).len(), 1);
        pods += failed + 1;
        drop(agent);
    }
    let holders = machine.holders();
    assert_eq!(holders.len(), pods);
    let owners: BTreeSet<&String> = holders.iter().map(|(_, owner)| owner).collect();
    assert_eq!(owners.len(), pods, "somebody has two addresses");
}
