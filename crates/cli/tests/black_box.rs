//! The built plugin and agent, fed with what nobody would send: they answer or refuse, and never panic or end.
//!
//! Short by default; `BERTH_FUZZ_SECONDS` makes it run for that long (`cargo xtask test --long`).
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr
)]

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use berth_fuzz::mutate::Mutator;
use berth_testkit::{Agent, fed, isolated, plugin_beside};
use serde_json::Value;

/// Inputs of a short run.
const TO_AGENT: u64 = 2_000;
const TO_PLUGIN: u64 = 100;

/// Counts inputs until there have been enough, or until the time is up where there is one.
struct Run {
    count: u64,
    enough: u64,
    end: Option<Instant>,
}

impl Run {
    fn new(enough: u64) -> Run {
        let seconds = std::env::var("BERTH_FUZZ_SECONDS").ok();
        let seconds = seconds.and_then(|text| text.parse().ok());
        Run {
            count: 0,
            enough,
            end: seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds)),
        }
    }

    fn goes_on(&mut self) -> bool {
        self.count += 1;
        match self.end {
            Some(end) => Instant::now() < end,
            None => self.count <= self.enough,
        }
    }
}

fn mutator(seeds: &[&str]) -> Mutator {
    let number: u64 = rand_seed();
    eprintln!("{seeds:?}: seed {number}");
    let seeds = seeds
        .iter()
        .flat_map(|name| berth_fuzz::seeds(name).unwrap());
    Mutator::new(number, seeds.collect())
}

/// A number that differs from run to run.
fn rand_seed() -> u64 {
    let now = std::time::SystemTime::now();
    let since = now.duration_since(std::time::UNIX_EPOCH).unwrap();
    since.as_nanos() as u64
}

fn exchange(socket: &Path, bytes: &[u8]) -> Vec<u8> {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    // The agent may have had enough before it has read all.
    let _ = stream.write_all(bytes);
    // What asks for an answer waits for it: a client that closes its side first may get none.
    if !bytes.ends_with(b"connection: close\r\n\r\n") {
        let _ = stream.shutdown(std::net::Shutdown::Write);
    }
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    answer
}

fn assert_lives(agent: &mut Agent) {
    assert!(
        agent.process.ended().unwrap().is_none(),
        "{}",
        agent.process.tail()
    );
    let asked = b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    assert!(exchange(&agent.socket, asked).starts_with(b"HTTP/1.1 200"));
    let log = std::fs::read(agent.process.log()).unwrap();
    let log = String::from_utf8_lossy(&log);
    assert!(!log.contains("panicked at"), "{}", agent.process.tail());
}

fn start(dir: &Path) -> Agent {
    Agent::start(env!("CARGO_BIN_EXE_berth"), dir, "fuzzed", |command| {
        command.args(["--node", "n1"]);
    })
    .unwrap()
}

#[test]
fn the_agent_answers_or_refuses_whatever_comes() {
    let dir = tempfile::tempdir().unwrap();
    let mut agent = start(dir.path());
    let (mut calls, mut heads) = (mutator(&["cni"]), mutator(&["heads"]));
    let mut run = Run::new(TO_AGENT);
    while run.goes_on() {
        let bytes = if run.count.is_multiple_of(4) {
            heads.next_input()
        } else {
            berth_cni::http::encode_request(&calls.next_input())
        };
        let answer = exchange(&agent.socket, &bytes);
        let told = String::from_utf8_lossy(&bytes);
        assert!(
            answer.is_empty() || answer.starts_with(b"HTTP/1."),
            "{told:?}"
        );
    }
    eprintln!("agent: {} inputs", run.count);
    assert_lives(&mut agent);
}

#[test]
fn the_plugin_prints_json_and_exits_with_0_or_1_whatever_it_is_called_with() {
    let dir = tempfile::tempdir().unwrap();
    let mut agent = start(dir.path());
    let plugin = plugin_beside(env!("CARGO_BIN_EXE_berth")).unwrap();
    let mut inputs = mutator(&["cni"]);
    let mut run = Run::new(TO_PLUGIN);
    while run.goes_on() {
        let input = inputs.next_input();
        let text = String::from_utf8_lossy(&input).replace('\0', "0");
        let (head, _) = text.split_once("\n\n").unwrap_or((&text, ""));
        let at = (head.len() + 2).min(input.len());
        let mut lines = head.lines();
        let mut command = isolated(Command::new(&plugin));
        command.env("BERTH_SOCKET", &agent.socket);
        for name in ["COMMAND", "CONTAINERID", "NETNS", "IFNAME", "ARGS", "PATH"] {
            command.env(format!("CNI_{name}"), lines.next().unwrap_or_default());
        }
        let output = fed(&mut command, input.get(at..).unwrap_or_default()).unwrap();
        let told = String::from_utf8_lossy(&output.stdout);
        assert!(
            matches!(output.status.code(), Some(0 | 1)),
            "{text:?}: {:?}",
            output.status
        );
        let is_json = serde_json::from_slice::<Value>(&output.stdout).is_ok();
        // A call without a verb introduces the plugin to whoever has started it by hand.
        assert!(
            told.trim().is_empty() || is_json || head.lines().next().unwrap_or_default().is_empty(),
            "{text:?}: {told}"
        );
    }
    eprintln!("plugin: {} inputs", run.count);
    assert_lives(&mut agent);
}
