//! A test process that is killed leaves nothing behind: no process, no file, no cgroup.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout
)]

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use berth_testkit::{Netns, Node, NodeOptions};

const VICTIM: &str = "BERTH_TESTKIT_VICTIM";

/// Every process that names one of the scratch directories on its command line, including the sandboxes' first
/// processes.
fn processes(traces: &[String]) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        if traces.iter().any(|trace| line.contains(trace)) {
            found.push(line);
        }
    }
    found
}

fn cgroups(pid: u32) -> String {
    let name = format!("berth-node-{pid}-*");
    let found = Command::new("find")
        .args(["/sys/fs/cgroup", "-name", &name])
        .output()
        .unwrap();
    String::from_utf8(found.stdout).unwrap()
}

#[tokio::test]
async fn kill_9_leaves_nothing() {
    if std::env::var_os(VICTIM).is_some() {
        let node = Node::start(NodeOptions::default()).await.unwrap();
        let netns = Netns::new().unwrap();
        let (a, b) = (node.dir().display(), node.cluster().dir().display());
        // Around the test harness, which keeps what a test prints until it ends.
        writeln!(
            std::io::stderr(),
            "traces {a} {b} {}",
            netns.path().display()
        )
        .unwrap();
        std::thread::sleep(Duration::from_secs(600));
    }
    let mut victim = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "kill_9_leaves_nothing", "--nocapture"])
        .env(VICTIM, "1")
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(victim.stderr.take().unwrap()).lines();
    let mut heard = Vec::new();
    for line in lines.map_while(Result::ok) {
        heard.push(line);
        if heard.last().unwrap().starts_with("traces ") {
            break;
        }
        // For example a process that the victim waits for.
        writeln!(std::io::stderr(), "{}", heard.last().unwrap()).unwrap();
    }
    let traces: Vec<String> = heard
        .last()
        .and_then(|line| line.strip_prefix("traces "))
        .unwrap_or_else(|| panic!("the victim did not get as far as to be killed: {heard:#?}"))
        .split(' ')
        .map(str::to_owned)
        .collect();
    let capsule = format!("berth-node-{}-", victim.id());
    let all = [&traces[..2], &[capsule]].concat();
    assert!(processes(&all).len() >= 7, "{:#?}", processes(&all));
    assert_ne!(cgroups(victim.id()), "");

    victim.kill().unwrap();
    victim.wait().unwrap();

    let started = Instant::now();
    let left = || {
        let files: Vec<_> = traces
            .iter()
            .filter(|path| Path::new(path).exists())
            .collect();
        let (processes, cgroups) = (processes(&all), cgroups(victim.id()));
        (!files.is_empty() || !processes.is_empty() || !cgroups.is_empty())
            .then(|| format!("{files:?} {processes:#?} {cgroups}"))
    };
    while let Some(left) = left() {
        assert!(started.elapsed() < Duration::from_secs(30), "{left}");
        std::thread::sleep(Duration::from_millis(100));
    }
}
