//! The agent as a daemon: how it stops, and what it says to those who are no plugin of its own time.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use berth_cni::http::ClientError;
use berth_cni::wire::{CALL_PATH, PROTOCOL, PROTOCOL_HEADER};
use serde_json::json;

use super::{Agent, Machine, addresses, answers, call, conf};

impl Machine {
    /// What the agent answers on its socket, head and body.
    fn exchange(&self, request: &str) -> String {
        let mut stream = UnixStream::connect(self.socket()).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    fn get(&self, path: &str) -> String {
        self.exchange(&format!(
            "GET {path} HTTP/1.1\r\nhost: berth\r\nconnection: close\r\n\r\n"
        ))
    }
}

fn tell_to_stop(agent: &Agent) {
    let told = Command::new("kill").arg(agent.0.id().to_string()).status();
    assert!(told.unwrap().success());
}

fn until(what: &str, holds: impl Fn() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < Duration::from_secs(20), "never {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn an_agent_that_is_told_to_stop_finishes_and_removes_its_socket() {
    let machine = Machine::new();
    let mut agent = machine.agent();
    assert_eq!(
        addresses(&machine.ask("ADD", "a").unwrap()),
        ["10.0.0.1/16"]
    );
    // Somebody writes to the database for a while, so an ADD is under way when the agent is told.
    let other = rusqlite::Connection::open(machine.database()).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| machine.ask("ADD", "b"));
        until("under way", || {
            machine.get("/metrics").contains("calls_under_way 1\n")
        });
        tell_to_stop(&agent);
        until("stopping", || !answers(&machine.socket()));
        assert!(!asked.is_finished());
        assert!(agent.0.try_wait().unwrap().is_none());
        other.execute_batch("ROLLBACK").unwrap();
        assert_eq!(addresses(&asked.join().unwrap().unwrap()), ["10.0.0.2/16"]);
    });
    assert!(agent.0.wait().unwrap().success());
    assert!(!machine.socket().exists());
    assert!(matches!(
        machine.ask("ADD", "c"),
        Err(ClientError::NoAgent { .. })
    ));
    let holders: Vec<String> = machine.holders().into_iter().map(|(at, _)| at).collect();
    assert_eq!(holders, ["10.0.0.1", "10.0.0.2"]);
}

/// An upgrade that is stuck half-way: the plugin is newer than the agent.
#[test]
fn a_call_of_a_later_protocol_is_refused_and_nothing_is_given() {
    let machine = Machine::new();
    let _agent = machine.agent();
    let body = call("ADD", "a").request_of(&conf().to_string());
    let body = String::from_utf8(body.encode().unwrap()).unwrap();
    let call = |protocol: u32| {
        machine.exchange(&format!(
            "POST {CALL_PATH} HTTP/1.1\r\nhost: berth\r\n{PROTOCOL_HEADER}: {protocol}\r\n\
             content-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
            body.len()
        ))
    };
    let refused = call(PROTOCOL + 1);
    assert!(refused.starts_with("HTTP/1.1 426 "), "{refused}");
    let ours = format!("{PROTOCOL_HEADER}: {PROTOCOL}\r\n");
    assert!(refused.contains(&ours), "{refused}");
    assert_eq!(machine.holders(), []);
    assert!(call(PROTOCOL).starts_with("HTTP/1.1 200 "));
    assert_eq!(machine.holders().len(), 1);
}

/// Anyone on the node's network may ask: the cluster is not read for each of them.
#[test]
fn many_probes_cost_the_api_server_few_reads() {
    let machine = Machine::new();
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = server.local_addr().unwrap();
    let reads = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&reads);
    std::thread::spawn(move || {
        for stream in server.incoming().flatten() {
            let counter = Arc::clone(&counter);
            std::thread::spawn(move || answer_absent(&stream, &counter));
        }
    });
    let kubeconfig = machine.dir.path().join("kubeconfig");
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "here",
        "clusters": [{ "name": "here", "cluster": { "server": format!("http://{address}") } }],
        "users": [{ "name": "nobody", "user": {} }],
        "contexts": [{ "name": "here", "context": { "cluster": "here", "user": "nobody" } }],
    });
    fs::write(&kubeconfig, config.to_string()).unwrap();
    let _agent = machine.agent_with(&["--kubeconfig".as_ref(), kubeconfig.as_ref()]);
    let began = Instant::now();
    let before = reads.load(Ordering::SeqCst);
    std::thread::scope(|scope| {
        for _ in 0..10 {
            scope.spawn(|| {
                for _ in 0..100 {
                    let told = machine.get("/readyz");
                    assert!(told.starts_with("HTTP/1.1 200 "), "{told}");
                }
            });
        }
    });
    let reads = reads.load(Ordering::SeqCst) - before;
    let most = 2 + usize::try_from(began.elapsed().as_secs()).unwrap();
    assert!((1..=most).contains(&reads), "{reads} reads, {most} at most");
}

/// An API server that has nothing, and counts who asks whether the agent is ready.
fn answer_absent(mut stream: &TcpStream, reads: &AtomicUsize) {
    let mut seen = Vec::new();
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = stream.read(&mut buffer) {
        seen.extend_from_slice(&buffer[..count]);
        let Some(end) = seen.windows(4).position(|four| four == b"\r\n\r\n") else {
            continue;
        };
        let head = String::from_utf8_lossy(&seen[..end]).into_owned();
        seen.drain(..end + 4);
        if head.contains("/berth-ready") {
            reads.fetch_add(1, Ordering::SeqCst);
        }
        let body = json!({
            "kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404,
            "message": "overlappingrangeipreservations.whereabouts.cni.cncf.io \"berth-ready\" not found",
            "details": { "name": "berth-ready", "kind": "overlappingrangeipreservations", "group": "whereabouts.cni.cncf.io" },
        })
        .to_string();
        let length = body.len();
        let answer = format!(
            "HTTP/1.1 404 Not Found\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
        );
        if stream.write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}

/// A node whose pools are the cluster's gives nothing while the API server is away, and must not look as if it did.
#[test]
fn an_agent_whose_api_server_is_away_is_not_ready() {
    let machine = Machine::new();
    let kubeconfig = machine.dir.path().join("kubeconfig");
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "away",
        "clusters": [{ "name": "away", "cluster": { "server": "http://127.0.0.1:1" } }],
        "users": [{ "name": "nobody", "user": {} }],
        "contexts": [{ "name": "away", "context": { "cluster": "away", "user": "nobody" } }],
    });
    fs::write(&kubeconfig, config.to_string()).unwrap();
    let _agent = machine.agent_with(&["--kubeconfig".as_ref(), kubeconfig.as_ref()]);
    let told = machine.get("/readyz");
    assert!(told.starts_with("HTTP/1.1 503 "), "{told}");
    assert!(
        told.contains("127.0.0.1:1") || told.contains("refused"),
        "{told}"
    );
    // It lives all the same: restarting it would help nobody.
    assert!(machine.get("/healthz").starts_with("HTTP/1.1 200 "));
}
