//! Applies that do not end, and programs that are killed.
//!
//! What hangs is real: nmstate verifies a setting that no kernel knows for seconds, with the addresses in place, and its process is
//! stopped meanwhile.

use std::process::{Child, Command};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::host::{Host, Said, until, with};

/// A state that nmstate applies at once and then verifies in vain: only NetworkManager can turn LLDP on.
fn never_verified(address: &str) -> Value {
    let mut state = with(&[address]);
    state["interfaces"][0]["lldp"] = json!({ "enabled": true });
    state
}

fn signal(name: &str, pid: u32) {
    let sent = Command::new("kill").args([name, &pid.to_string()]).status();
    assert!(sent.unwrap().success());
}

fn children(pid: u32) -> Vec<u32> {
    let path = format!("/proc/{pid}/task/{pid}/children");
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.split_whitespace()
        .map(|pid| pid.parse().unwrap())
        .collect()
}

/// The process that applies: nsenter has become the program, whose child it is.
fn worker(program: &Child) -> u32 {
    let is_worker = |pid: &u32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).any(|word| word == b"work")
    };
    children(program.id()).into_iter().find(is_worker).unwrap()
}

#[test]
fn what_can_not_be_verified_is_undone() {
    for host in [Host::new(), Host::with_nic_down()] {
        let was_up = host.is_up();
        let complaint = host.apply(&never_verified("192.0.2.7/24"), &[]).failed();
        assert!(
            complaint.contains("VerificationError") && complaint.contains("rolled back"),
            "{complaint}"
        );
        assert_eq!(host.addresses(), Vec::<String>::new());
        assert_eq!(host.is_up(), was_up);
    }
}

#[test]
fn an_apply_that_hangs_is_undone_in_time() {
    let host = Host::with_nic_down();
    let begun = Instant::now();
    let program = host.begin(&never_verified("192.0.2.7/24"), &["--timeout", "8"]);
    until("the address is there", || !host.addresses().is_empty());
    signal("-STOP", worker(&program));
    let said = Said::from(program.wait_with_output().unwrap());
    let took = begun.elapsed();
    let complaint = said.failed();
    assert!(
        complaint.contains("did not finish within") && complaint.contains("rolled back"),
        "{complaint}"
    );
    assert_eq!(host.addresses(), Vec::<String>::new());
    assert!(!host.is_up() && !host.has_record());
    // Its own limit, and not nmstate's: a stopped process ends by itself never.
    assert!(took >= Duration::from_secs(8), "{took:?}");
}

#[test]
fn a_killed_apply_is_undone_by_its_guard() {
    let host = Host::with_nic_down();
    let mut program = host.begin(&never_verified("192.0.2.7/24"), &["--timeout", "8"]);
    until("the address is there", || !host.addresses().is_empty());
    signal("-KILL", program.id());
    program.wait().unwrap();
    until("the guard has undone the change", || !host.has_record());
    assert_eq!(host.addresses(), Vec::<String>::new());
    assert!(!host.is_up());
}

/// The guard dies too, with its container: the next apply finds the record and takes the way back first (I9).
#[test]
fn an_apply_undoes_what_a_dead_guard_left() {
    let host = Host::with_nic_down();
    let state = with(&["192.0.2.7/24"]);
    host.apply(&state, &["--no-commit", "--timeout", "5"])
        .succeeded();
    host.kill_guard();
    until("its time is up", || host.is_overdue());
    assert_eq!(host.addresses(), ["192.0.2.7/24"], "nobody has undone it");
    // Of another interface: the NIC is as before the change that was undone.
    let lo = json!({ "interfaces": [{ "name": "lo", "type": "loopback", "state": "up" }] });
    host.apply(&lo, &[]).succeeded();
    assert_eq!(host.addresses(), Vec::<String>::new());
    assert!(!host.is_up());
}
