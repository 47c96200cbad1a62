//! The built `berth` binary on the embedded ledger, as a user runs it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use berth_testkit::plugin_beside;
use tempfile::TempDir;

fn plugin() -> &'static Path {
    static PLUGIN: OnceLock<PathBuf> = OnceLock::new();
    PLUGIN.get_or_init(|| plugin_beside(env!("CARGO_BIN_EXE_berth")).unwrap())
}

fn berth(state: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_berth"))
        .args(arguments)
        .env("BERTH_STATE", state)
        .env("BERTH_DATABASE", state.join("berth.db"))
        .env("BERTH_PLUGIN", plugin())
        .env_remove("BERTH_SOCKET")
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn up(state: &Path) -> String {
    let output = berth(state, &["up", "--once"]);
    assert!(output.status.success(), "{}", stderr(&output));
    stdout(&output)
}

fn mk_state() -> TempDir {
    tempfile::tempdir().unwrap()
}

#[test]
fn a_second_up_finds_the_first_ones_allocations() {
    let state = mk_state();
    let first = up(state.path());
    assert!(
        first.contains("demo/web-0") && first.contains("10.77.0.8/24, fd77::1/64"),
        "{first}"
    );
    assert!(first.contains("new") && !first.contains("kept"), "{first}");
    let second = up(state.path());
    assert!(
        second.contains("kept") && !second.contains("new  "),
        "{second}"
    );
    assert!(second.contains("10.77.0.8/24, fd77::1/64"), "{second}");
}

#[test]
fn up_serves_until_it_is_told_to_stop() {
    let state = mk_state();
    let mut child = Command::new(env!("CARGO_BIN_EXE_berth"))
        .args(["up"])
        .env("BERTH_STATE", state.path())
        .env("BERTH_PLUGIN", plugin())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("Serving until Ctrl-C")));
    // A second one on the same socket says that the first is there and disturbs nothing.
    let second = berth(state.path(), &["up", "--once"]);
    assert!(!second.status.success());
    assert!(
        stderr(&second).contains("another agent"),
        "{}",
        stderr(&second)
    );
    let interrupted = Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status()
        .unwrap();
    assert!(interrupted.success());
    assert!(child.wait().unwrap().success());
    assert!(
        !state.path().join("berth.sock").exists(),
        "the socket was left behind"
    );
}

#[test]
fn pools_addresses_and_who_answer_in_both_forms() {
    let state = mk_state();
    up(state.path());
    let pools = stdout(&berth(state.path(), &["pools"]));
    assert!(
        pools.contains("10.77.0.0-24") && pools.contains("fd77---64"),
        "{pools}"
    );
    let json = berth(state.path(), &["addresses", "--output", "json"]);
    let rows: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(rows.as_array().unwrap().len(), 10);
    let who = stdout(&berth(state.path(), &["who", "10.77.0.9"]));
    assert!(who.contains("demo/web-1") && who.contains("net1"), "{who}");
}

#[test]
fn allocate_repeats_and_refuses() {
    let state = mk_state();
    let allocate = |owner: &str, more: &[&str]| {
        let mut arguments = vec!["allocate", "--range", "10.5.0.0/30", "--owner", owner];
        arguments.extend(more);
        berth(state.path(), &arguments)
    };
    assert!(stdout(&allocate("a", &[])).contains("10.5.0.1"));
    assert!(
        stdout(&allocate("a", &[])).contains("10.5.0.1"),
        "the same owner, the same address (I3)"
    );
    let held = allocate("b", &["--address", "10.5.0.1"]);
    assert_eq!(held.status.code(), Some(4), "{}", stderr(&held));
    assert!(stderr(&held).contains("held by a"), "{}", stderr(&held));
    assert!(stdout(&allocate("b", &[])).contains("10.5.0.2"));
    let full = allocate("c", &[]);
    assert_eq!(full.status.code(), Some(4));
    assert!(
        stderr(&full).contains("no free address"),
        "{}",
        stderr(&full)
    );
}

#[test]
fn release_asks_first() {
    let state = mk_state();
    up(state.path());
    let asked = berth(state.path(), &["release", "10.77.0.8"]);
    assert_eq!(asked.status.code(), Some(4));
    assert!(stderr(&asked).contains("--yes"), "{}", stderr(&asked));
    assert!(
        berth(state.path(), &["who", "10.77.0.8"]).status.success(),
        "it was released unasked"
    );
    let wrong = berth(
        state.path(),
        &["release", "--yes", "--owner", "demo/web-9", "10.77.0.8"],
    );
    assert_eq!(
        wrong.status.code(),
        Some(3),
        "another owner's address is never freed (I6)"
    );
    assert!(
        berth(state.path(), &["release", "--yes", "10.77.0.8"])
            .status
            .success()
    );
    let gone = berth(state.path(), &["who", "10.77.0.8"]);
    assert_eq!(gone.status.code(), Some(3));
}

#[test]
fn what_can_not_be_read_is_named_with_its_exit_code() {
    let state = mk_state();
    let missing = berth(state.path(), &["pools"]);
    assert_eq!(missing.status.code(), Some(3), "{}", stderr(&missing));
    for (range, expected) in [
        ("10.0.0.0/33", "10.0.0.0/33"),
        ("10.0.0.9", "10.0.0.9"),
        ("192.168.1.5-192.168.2.25/28", "192.168.1.5"),
    ] {
        let bad = berth(
            state.path(),
            &["allocate", "--range", range, "--owner", "a"],
        );
        assert_eq!(bad.status.code(), Some(2), "{}", stderr(&bad));
        assert!(stderr(&bad).contains(expected), "{}", stderr(&bad));
    }
    std::fs::write(state.path().join("berth.db"), "x".repeat(8192)).unwrap();
    let corrupt = berth(state.path(), &["pools"]);
    assert_eq!(corrupt.status.code(), Some(6), "{}", stderr(&corrupt));
    assert!(
        stderr(&corrupt).contains("left as it is"),
        "{}",
        stderr(&corrupt)
    );
    assert_eq!(
        std::fs::read(state.path().join("berth.db")).unwrap(),
        vec![b'x'; 8192]
    );
    let unknown = berth(state.path(), &["who", "not-an-address"]);
    assert_eq!(unknown.status.code(), Some(2));
}
