//! The built plugin, black-box: what it prints and how it exits, with an agent, without one, and with an
//! engine to fall back on.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use berth_testkit::{PodCall, fed};
use serde_json::Value;

const CONF: &str =
    r#"{"cniVersion":"1.1.0","name":"net","type":"macvlan","ipam":{"type":"whereabouts"}}"#;

/// One node at a time: a file being written in one thread cannot be run while another thread's fork still
/// holds it open (ETXTBSY).
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// A directory with the plugin installed under a name, and no agent.
struct Node {
    _turn: MutexGuard<'static, ()>,
    dir: tempfile::TempDir,
    plugin: PathBuf,
}

impl Node {
    fn with_plugin_as(name: &str) -> Node {
        let turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let dir = tempfile::tempdir().unwrap();
        let bin = dir.path().join("bin");
        fs::create_dir(&bin).unwrap();
        let plugin = bin.join(name);
        fs::copy(env!("CARGO_BIN_EXE_berth-cni"), &plugin).unwrap();
        Node {
            _turn: turn,
            dir,
            plugin,
        }
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("berth.sock")
    }

    fn run(&self, verb: &str, stdin: &str, more: &[(&str, &str)]) -> Output {
        let call = PodCall::new("whereabouts", verb, "p")
            .of_container("c1")
            .in_netns(Path::new("/var/run/netns/x"));
        let mut command = call.command(&self.plugin);
        command
            .env("BERTH_SOCKET", self.socket())
            .envs(more.iter().copied())
            .stderr(Stdio::piped());
        fed(&mut command, stdin).unwrap()
    }
}

fn script(path: &Path, body: &str) {
    fs::write(path, format!("#!/bin/sh\n{body}\n")).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stdout)))
}

#[test]
fn version_needs_neither_agent_nor_stdin() {
    let node = Node::with_plugin_as("whereabouts");
    let output = node.run("VERSION", "", &[]);
    assert!(output.status.success());
    assert_eq!(
        json(&output)["supportedVersions"].as_array().unwrap().len(),
        7
    );
}

#[test]
fn run_by_hand_it_introduces_itself_on_stderr() {
    let node = Node::with_plugin_as("berth");
    let output = node.run("", "", &[]);
    assert!(output.status.success());
    assert!(output.stdout.is_empty());
    assert!(String::from_utf8_lossy(&output.stderr).contains("1.1.0"));
}

#[test]
fn the_call_reaches_the_agent_whole_and_its_answer_comes_back() {
    let node = Node::with_plugin_as("whereabouts");
    let listener = UnixListener::bind(node.socket()).unwrap();
    let agent = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut bytes = Vec::new();
        let mut chunk = [0; 4096];
        let body = loop {
            let n = stream.read(&mut chunk).unwrap();
            bytes.extend_from_slice(&chunk[..n]);
            let text = String::from_utf8_lossy(&bytes).into_owned();
            if let Some((_, body)) = text.split_once("\r\n\r\n")
                && serde_json::from_str::<Value>(body).is_ok()
            {
                break serde_json::from_str::<Value>(body).unwrap();
            }
        };
        let answer = r#"{"exit":3,"stdout":"{\"ips\":[]}"}"#;
        write!(
            stream,
            "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{answer}",
            answer.len()
        )
        .unwrap();
        body
    });
    let output = node.run("ADD", CONF, &[]);
    let asked = agent.join().unwrap();
    assert_eq!(output.status.code(), Some(3));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "{\"ips\":[]}\n");
    assert_eq!(asked["protocol"], 1);
    assert_eq!(asked["plugin"], "whereabouts");
    assert_eq!(asked["command"], "ADD");
    assert_eq!(asked["container_id"], "c1");
    assert_eq!(asked["netns"], "/var/run/netns/x");
    assert_eq!(asked["ifname"], "net1");
    assert_eq!(
        asked["args"],
        "IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME=p"
    );
    assert_eq!(asked["stdin"], CONF);
}

#[test]
fn without_agent_and_engine_every_verb_fails_and_says_what_to_do() {
    let node = Node::with_plugin_as("whereabouts");
    for (verb, code) in [
        ("ADD", 11),
        ("CHECK", 11),
        ("DEL", 11),
        ("GC", 11),
        ("STATUS", 50),
    ] {
        let output = node.run(verb, CONF, &[("PATH", "/nonexistent")]);
        assert_eq!(output.status.code(), Some(1), "{verb}");
        let error = json(&output);
        assert_eq!(error["code"], code, "{verb}");
        assert_eq!(error["cniVersion"], "1.1.0");
        let message = error["msg"].as_str().unwrap();
        assert!(
            message.contains(&node.socket().display().to_string()),
            "{message}"
        );
        assert!(error["details"].as_str().unwrap().contains("berth agent"));
    }
}

#[test]
fn without_agent_the_engine_beside_the_plugin_gets_the_same_call() {
    let node = Node::with_plugin_as("whereabouts");
    let engine = node.plugin.with_file_name("berth-full");
    script(
        &engine,
        r#"echo "$@ $CNI_COMMAND $CNI_CONTAINERID $(cat)"; exit 7"#,
    );
    let output = node.run("ADD", CONF, &[("PATH", "/usr/bin:/bin")]);
    assert_eq!(output.status.code(), Some(7));
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        format!("cni --plugin whereabouts ADD c1 {CONF}\n")
    );
}

/// A runtime that times out kills the plugin: the engine must not continue and allocate an address after the DEL.
#[test]
fn the_engine_takes_the_plugins_place_and_dies_with_it() {
    let node = Node::with_plugin_as("whereabouts");
    let engine = node.plugin.with_file_name("berth-full");
    script(&engine, "echo $$");
    let mut command = PodCall::new("whereabouts", "ADD", "p").command(&node.plugin);
    let running = command
        .env("BERTH_SOCKET", node.socket())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let plugin = running.id().to_string();
    let output = running.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), plugin);
}

#[test]
fn a_configuration_larger_than_a_pipe_reaches_the_engine_whole() {
    let node = Node::with_plugin_as("whereabouts");
    script(&node.plugin.with_file_name("berth-full"), "wc -c");
    let length = |bytes: usize| {
        let stdin = " ".repeat(bytes);
        let output = node.run("ADD", &stdin, &[("PATH", "/usr/bin:/bin")]);
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    assert_eq!(length(120_000), "120000");
    // Of an input that is too long, only as much as shows that it is.
    assert_eq!(length(300_000), "131073");
}

#[test]
fn the_engine_on_path_is_found_and_a_copy_of_the_plugin_is_not_taken_for_it() {
    let node = Node::with_plugin_as("berth");
    let copies = node.dir.path().join("copies");
    fs::create_dir(&copies).unwrap();
    fs::copy(&node.plugin, copies.join("berth")).unwrap();
    let real = node.dir.path().join("real");
    fs::create_dir(&real).unwrap();
    script(&real.join("berth"), "echo engine");
    let path = format!(
        "{}:{}:{}:/usr/bin:/bin",
        node.plugin.parent().unwrap().display(),
        copies.display(),
        real.display()
    );
    let output = node.run("ADD", CONF, &[("PATH", &path)]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "engine\n");
}

#[test]
fn a_plugin_taken_for_the_engine_stops_at_once() {
    let node = Node::with_plugin_as("berth");
    let plugin = node.plugin.display().to_string();
    let output = node.run("ADD", CONF, &[("BERTH_BIN", &plugin)]);
    assert_eq!(json(&output)["code"], 11);
    assert!(
        json(&output)["msg"]
            .as_str()
            .unwrap()
            .contains("this plugin itself")
    );
}

#[test]
fn a_configuration_that_is_not_text_is_a_decoding_error() {
    let node = Node::with_plugin_as("berth");
    let mut command = PodCall::new("berth", "ADD", "p").command(&node.plugin);
    let output = fed(&mut command, [0xff, 0xfe]).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(json(&output)["code"], 6);
}
