//! The built `berth` binary on the embedded ledger, as a user runs it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use berth_testkit::{PodCall, fed, guarded, isolated, plugin_beside};
use tempfile::TempDir;

fn plugin() -> &'static Path {
    static PLUGIN: OnceLock<PathBuf> = OnceLock::new();
    PLUGIN.get_or_init(|| plugin_beside(env!("CARGO_BIN_EXE_berth")).unwrap())
}

fn berth(state: &Path, arguments: &[&str]) -> Output {
    isolated(Command::new(env!("CARGO_BIN_EXE_berth")))
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

/// The configuration of a network, in a file.
fn mk_network(state: &Path, range: &str) -> String {
    let ipam = serde_json::json!({ "type": "berth", "range": range });
    let conf =
        serde_json::json!({ "cniVersion": "1.0.0", "name": "n", "type": "macvlan", "ipam": ipam });
    let file = state.join("network.json");
    std::fs::write(&file, conf.to_string()).unwrap();
    file.to_str().unwrap().to_owned()
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
    let mut child = isolated(guarded(env!("CARGO_BIN_EXE_berth")))
        .args(["up"])
        .env("BERTH_STATE", state.path())
        .env("BERTH_PLUGIN", plugin())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("Serving until Ctrl-C")));
    // A second one on the same file says that the first owns it and disturbs nothing.
    let second = berth(state.path(), &["up", "--once"]);
    assert!(!second.status.success());
    assert!(
        stderr(&second).contains("owns this file"),
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

/// The example network excludes its first eight addresses.
#[test]
fn berth_15_3_the_commands_that_up_suggests_work() {
    let state = mk_state();
    let told = up(state.path());
    let suggested: Vec<&str> = told
        .lines()
        .filter_map(|line| line.trim_start().strip_prefix("berth "))
        .map(|line| line.split("   ").next().unwrap())
        .collect();
    assert_eq!(suggested.len(), 5, "{told}");
    let run = |line: &str| {
        let script = format!("exec {} {line}", env!("CARGO_BIN_EXE_berth"));
        let mut command = isolated(Command::new("sh"));
        command.args(["-c", &script]).stdin(Stdio::null());
        command.output().unwrap()
    };
    for line in &suggested {
        let output = run(line);
        // Nobody can be asked here.
        let code = if line.contains("release") { 4 } else { 0 };
        assert_eq!(
            output.status.code(),
            Some(code),
            "{line}: {}",
            stderr(&output)
        );
    }
    let addresses = stdout(&run(suggested[1]));
    let rows: serde_json::Value = serde_json::from_str(&addresses).unwrap();
    let rows = rows.as_array().unwrap().iter();
    let by_hand: Vec<&serde_json::Value> = rows.filter(|row| row["state"] == "by-hand").collect();
    let given: Vec<&str> = by_hand
        .iter()
        .map(|row| row["address"].as_str().unwrap())
        .collect();
    assert_eq!(given, ["10.77.0.13", "fd77::6"]);
    assert!(
        by_hand
            .iter()
            .all(|row| row["owner"] == "demo/printer" && row["note"] == "second floor")
    );
    let pools = stdout(&run(suggested[0]));
    let row: Vec<&str> = pools.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(row[2..6], ["247", "6", "0", "241"], "{pools}");
    // A restart of the agent, and a CNI GC, leave it alone.
    up(state.path());
    assert!(stdout(&run(suggested[1])).contains("demo/printer"));
}

#[test]
fn allocate_repeats_and_refuses() {
    let state = mk_state();
    let config = mk_network(state.path(), "10.5.0.0/30");
    let allocate = |owner: &str, more: &[&str]| {
        let mut arguments = vec!["allocate", "--config", &config, "--owner", owner];
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
    assert!(
        stderr(&held).contains("held by by-hand:a"),
        "{}",
        stderr(&held)
    );
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

/// An ADD as a container runtime makes it, in a process of its own, on the database of the state directory.
fn add(state: &Path, config: &str, netns: &Path) -> Output {
    let call = PodCall::new("berth", "ADD", "web")
        .of_container("container-1")
        .in_netns(netns);
    let mut command = call.command(env!("CARGO_BIN_EXE_berth"));
    command
        .args(["cni", "--plugin", "berth", "--database"])
        .arg(state.join("berth.db"));
    let added = fed(&mut command, std::fs::read(config).unwrap()).unwrap();
    assert!(added.status.success(), "{}", stdout(&added));
    added
}

#[test]
fn berth_15_1_without_a_cluster_a_running_containers_address_stays() {
    let state = mk_state();
    let config = mk_network(state.path(), "10.5.0.0/24");
    let directory = state.path().join("netns");
    std::fs::create_dir(&directory).unwrap();
    let netns = directory.join("cni-1");
    std::fs::write(&netns, "").unwrap();
    add(state.path(), &config, &netns);
    let refused = berth(state.path(), &["release", "--yes", "10.5.0.1"]);
    assert_eq!(refused.status.code(), Some(7), "{}", stderr(&refused));
    for told in ["container-1", "ns/web", "--force"] {
        assert!(stderr(&refused).contains(told), "{}", stderr(&refused));
    }
    assert!(berth(state.path(), &["who", "10.5.0.1"]).status.success());
    let forced = ["release", "10.5.0.1", "--force", "--confirm", "10.5.0.1"];
    let forced = berth(state.path(), &forced);
    assert!(forced.status.success(), "{}", stderr(&forced));

    // Its namespace is gone: nothing uses the address.
    add(state.path(), &config, &netns);
    std::fs::remove_file(&netns).unwrap();
    let released = berth(state.path(), &["release", "--yes", "10.5.0.1"]);
    assert!(released.status.success(), "{}", stderr(&released));
}

#[test]
fn berth_15_3_an_address_of_the_second_range_of_a_cidr_can_be_allocated() {
    let state = mk_state();
    let part = |start: u8, end: u8| {
        serde_json::json!({ "range": "10.5.0.0/24", "range_start": format!("10.5.0.{start}"),
            "range_end": format!("10.5.0.{end}") })
    };
    let ipam = serde_json::json!({ "type": "berth", "ipRanges": [part(10, 19), part(20, 29)] });
    let conf =
        serde_json::json!({ "cniVersion": "1.0.0", "name": "n", "type": "macvlan", "ipam": ipam });
    let file = state.path().join("network.json");
    std::fs::write(&file, conf.to_string()).unwrap();
    let allocate = |address: &str| {
        let config = file.to_str().unwrap();
        let who = format!("owner-of-{address}");
        let arguments = [
            "allocate",
            "--config",
            config,
            "--owner",
            &who,
            "--address",
            address,
        ];
        berth(state.path(), &arguments)
    };
    for address in ["10.5.0.25", "10.5.0.12"] {
        let given = allocate(address);
        assert!(given.status.success(), "{}", stderr(&given));
        assert!(stdout(&given).contains(address));
    }
    for address in ["10.5.0.40", "10.9.0.1"] {
        let refused = allocate(address);
        assert_eq!(refused.status.code(), Some(4), "{}", stderr(&refused));
        assert!(stderr(&refused).contains(address), "{}", stderr(&refused));
    }
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
        let config = mk_network(state.path(), range);
        let bad = berth(
            state.path(),
            &["allocate", "--config", &config, "--owner", "a"],
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

#[test]
fn the_settings_page_is_that_of_the_code() {
    let state = mk_state();
    let printed = stdout(&berth(state.path(), &["settings"]));
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/settings.md");
    let written = std::fs::read_to_string(page).unwrap();
    assert!(
        printed == written,
        "docs/settings.md differs from the code: run `cargo xtask settings`"
    );
}
